"""Who goes first on a machine that is shared."""

from enum import StrEnum


class Priority(StrEnum):
    """Of a run; the engine's process and its requests have it."""

    NORMAL = "normal"
    LOW = "low"
