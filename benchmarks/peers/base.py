"""What the harness knows of a peer: how it is started, and what it left when it was done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.queues import Queue

MAX_NUM_SEQS = 256


class RunFailed(Exception):
    """A peer did not end well, not in time, or not as it must. The message holds what it said last."""


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of this process's."""
    good_exit_codes: frozenset[int] = frozenset({0})


@dataclass(frozen=True, slots=True)
class Answer:
    """What one row got."""

    document_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a peer left: its answers, and what it tells of itself. None: it does not tell."""

    answers: tuple[Answer, ...]
    prompt_tokens: int | None = None
    """Of the prompts that were computed; those from the prefix cache count too."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    engine_start_s: float | None = None
    generate_s: float | None = None
    full_step_share: float | None = None
    """Of the engine's steps, while there was more to do: those in which no slot was free."""


class Peer(Protocol):
    """One way to answer a queue."""

    @property
    def name(self) -> str:
        """How it is called on the command line and in results."""

    @property
    def title(self) -> str:
        """How it is called in tables."""

    def prepare(self, queue: Queue, folder: Path) -> Command:
        """Write its input into an empty folder; what comes after is timed."""

    def read(self, queue: Queue, folder: Path, stdout: str) -> Report:
        """Read what it left, after it ended well. Raises for anything that is not as it must be."""
