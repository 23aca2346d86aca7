"""What is wrong with a demand on answers."""

from dataclasses import dataclass

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, in the words of an error."""

    path: Path
    """Where, below the key that holds the demand."""
    expected: str
    advice: str | None = None
