"""How numbers are spread when each stands for so many others: percentiles and a histogram. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bulkinfer.ordering import count_shared_chars

_NUM_BUCKETS = 10
"""About: widths are 1, 2 or 5 times a power of ten."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many numbers are at least `start` and below `end`; the last bucket has no end."""

    start: int
    end: int | None
    weight: float


@dataclass(slots=True)
class Spread:
    """Whole numbers with weights."""

    _weights: dict[int, float] = field(default_factory=dict)

    def add(self, value: int, weight: float) -> None:
        """Count a value, `weight` times."""
        self._weights[value] = self._weights.get(value, 0.0) + weight

    @property
    def weight(self) -> float:
        """How many numbers there are."""
        return sum(self._weights.values())

    @property
    def total(self) -> float:
        """Their sum."""
        return sum(value * weight for value, weight in self._weights.items())

    @property
    def largest(self) -> int:
        """The largest, 0 where there is none."""
        return max(self._weights, default=0)

    def percentiles(self, shares: Sequence[float]) -> list[int]:
        """For each share the smallest value that so many are not above: the nearest rank."""
        values = sorted(self._weights)
        limit = self.weight * (1 - 1e-12)
        found = []
        for share in shares:
            below = 0.0
            for value in values:
                below += self._weights[value]
                if below >= share * limit:
                    found.append(value)
                    break
        return found or [0] * len(shares)

    def histogram(self) -> list[Bucket]:
        """About ten buckets of one width up to the 99th percentile, and one for what is beyond."""
        if not self._weights:
            return []
        smallest = min(self._weights)
        (high,) = self.percentiles([0.99])
        width = _choose_width(high - smallest + 1)
        start = smallest // width * width
        edges = range(start, high + 1, width)
        last_edge = edges[-1] + width
        counts = dict.fromkeys(edges, 0.0)
        beyond = 0.0
        for value, weight in self._weights.items():
            if value < last_edge:
                counts[start + (value - start) // width * width] += weight
            else:
                beyond += weight
        buckets = [Bucket(edge, edge + width, weight) for edge, weight in counts.items()]
        return [*buckets, Bucket(last_edge, None, beyond)] if beyond else buckets


def _choose_width(extent: int) -> int:
    wanted = extent / _NUM_BUCKETS
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= wanted:
                return factor * power
        power *= 10


def shared_share(texts: Iterable[str]) -> float:
    """The share of all characters that a text has in common with the beginning of the text before it, when sorted.

    What a prefix cache can save at best when texts that begin alike follow each other, and of a sample a lower bound.
    """
    num_shared = num_chars = 0
    before = ""
    for text in sorted(texts):
        num_chars += len(text)
        num_shared += count_shared_chars(before, text)
        before = text
    return num_shared / num_chars if num_chars else 0.0
