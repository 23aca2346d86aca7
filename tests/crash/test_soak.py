"""A short soak finds nothing wrong, and finds what is broken on purpose."""

import re

import pytest

from tests.crash.soak import main

pytestmark = pytest.mark.timeout(300)


def read_counts(printed: str) -> dict[str, int]:
    """The table at the end, by the names of its lines."""
    lines = re.findall(r"^ *(\S.*?) {2,}([\d,]+)$", printed, re.MULTILINE)
    return {name: int(count.replace(",", "")) for name, count in lines}


def test_a_short_soak_finds_nothing_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code = main(["--seed", "20260101", "--kills", "12", "--engine", "simulated"])
    printed = capsys.readouterr().out
    assert exit_code == 0, printed
    assert printed.startswith("SEED=20260101\n")
    counts = read_counts(printed)
    assert counts["killed: all"] >= 12
    assert counts["killed: engine alone"] + counts["killed: both"] > 0
    assert counts["of these with work unfinished"] >= 10
    assert counts["acknowledged outcomes"] > 100
    for name in ("runs that did not go on", "asked again", "parts of commits", "lost", "doubled", "changed", "orphans"):
        assert counts[name] == 0


def test_a_soak_finds_what_is_broken_on_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code = main(["--seed", "3", "--kills", "30", "--engine", "simulated", "--lose-log"])
    printed = capsys.readouterr().out
    assert exit_code == 1, printed
    assert read_counts(printed)["lost"] > 0
