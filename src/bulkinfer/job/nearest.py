"""The known name that somebody most likely meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """The member of `known` that looks most like `name`, or None when none does. Case is ignored.

    Only the first 100 characters of `name` are looked at: the comparison takes quadratic time.
    """
    by_lower_case = {candidate.lower(): candidate for candidate in sorted(known, reverse=True)}
    matches = get_close_matches(name[:100].lower(), by_lower_case, n=1, cutoff=0.6)
    return by_lower_case[matches[0]] if matches else None
