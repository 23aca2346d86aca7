"""What engines chose, and how they fared, in lines for people; from what `run --json` prints."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def describe_settings(settings: Mapping[str, Any]) -> list[str]:
    """What was chosen for the engine and not given by the job, and why: one line each."""
    return [f"{name} {settings.get(name)}: {reason}" for name, reason in settings.get("reasons", {}).items()]


def describe_replicas(replicas: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Several engines: how the documents spread, and those that were not well. Label, text and style of each line."""
    if counts := [replica["documents"] for replica in replicas]:
        yield "engines", f"{len(replicas)}; {min(counts):,} to {max(counts):,} documents each", ""
    for number, replica in enumerate(replicas):
        if replica["restarts"] or replica["is_retired"]:
            end = ", given up" if replica["is_retired"] else ""
            yield "", f"engine {number}: {replica['documents']:,} documents, {replica['restarts']} restarts{end}", "red"
