"""Limits that are shares: how many documents may fail, written `100` or `5%`, and what is kept free, `25%`."""

import re
from dataclasses import dataclass

from bulkinfer.errors import JobError

COUNT_PATTERN = r"[0-9]{1,12}"
SHARE_PATTERN = r"(?:100(?:\.0{1,6})?|[0-9]{1,2}(?:\.[0-9]{1,6})?) ?%"
RESERVE_PATTERN = r"[0-9]{1,2}(?:\.[0-9]{1,6})? ?%"
RESERVE_EXPECTED = 'a share such as "25%" (0% to less than 100%)'
EXPECTED = 'a count such as 100, or a share such as "5%" (0% to 100%)'


@dataclass(frozen=True, slots=True)
class FailureLimit:
    """The most documents that may fail. Exactly one of the two is given."""

    count: int | None = None
    """Documents."""
    share: float | None = None
    """0 to 1, of the documents that have an outcome."""

    def __str__(self) -> str:
        return f"{self.count}" if self.share is None else f"{100 * self.share:g}%"


def parse_failure_limit(text: str) -> FailureLimit:
    """Parse `100` or `5%`, as the option `--max-failures` has it. Raises JobError when it is neither."""
    if re.fullmatch(COUNT_PATTERN, text):
        return FailureLimit(count=int(text))
    if re.fullmatch(SHARE_PATTERN, text):
        return FailureLimit(share=float(text.rstrip(" %")) / 100)
    raise JobError(f"max_failures: expected {EXPECTED}, found the text {text[:40]!r}")


def parse_reserve(text: str) -> float | None:
    """A share from 0 to less than 1, from a text such as `25%`; None when it is none."""
    return float(text.rstrip(" %")) / 100 if re.fullmatch(RESERVE_PATTERN, text) else None
