"""The benchmark of many engines runs, small, and measures every part."""

import re

import pytest
from benchmarks.replicas import simulate


def test_a_hundred_engines_answer_all_documents_and_each_part_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(num_documents=3_000, num_chars=200, num_replicas=100)
    shown = capsys.readouterr().out
    assert "3,000 documents of 200 characters, 100 engines" in shown
    parts = re.findall(r"^  (whole|real: whole run|reader|writer|loop|simulation)", shown, flags=re.MULTILINE)
    assert parts == ["real: whole run", "reader", "writer", "loop", "simulation"]
    [virtual_s] = re.findall(r"virtual: ([0-9.]+) s", shown)
    # 30 documents for each engine run side by side: a step of 20 ms for each of the 64 tokens of the longest answer.
    assert 1.2 <= float(virtual_s) <= 3.0
