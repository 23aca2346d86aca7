"""What people read of a plan."""

from collections.abc import Mapping
from typing import Any

import pytest

from bulkinfer.plan_view import describe_plan

FOUND: dict[str, Any] = {
    "job": "big",
    "database": "/data/out.duckdb",
    "documents": {"read": 10_000_000, "distinct": 9_000_000, "to_do": 8_500_000, "answered": 499_000,
                  "failed_before": 1_000, "to_ask": 8_400_000},
    "unreadable": {"rows": 12, "first": ["a.jsonl:7", "a.jsonl:9"], "by_reason": {"broken JSON at column …": 12},
                   "hint": None},
    "expected_failures": {
        "missing_field": {"documents": 900, "is_exact": False},
        "unreadable_row": {"documents": 12, "is_exact": True},
    },
    "failed_rows": {"rows": 1_234, "is_exact": False},
    "overlong": {"policy": "fail", "documents": 0, "cut": 0, "parts": 0, "is_exact": True},
    "exceeds_max_failures": True,
    "tokens": {
        "counted_by": "tokenizer", "is_exact": False, "prompt": 1_234_567_890, "output_at_most": 403_200_000,
        "output_expected": 200_000_000, "shared_prefix_share": 0.613,
        "max_context_tokens": 2_048, "max_context_tokens_from": "job",
        "per_prompt": {"mean": 147.0, "p50": 140, "p95": 300, "p99": 410, "max": 1_990},
        "histogram": [{"from": 0, "below": 100, "documents": 8_000_000}, {"from": 100, "below": None, "documents": 9}],
    },
    "sample": {"documents": 20_000, "is_complete": False},
    "time": {"seconds": 7_200.0, "low": 5_400.0, "high": 9_000.0, "engine_start": 12.0, "advice": "",
             "reason": "200 answers of the run aaaaaaaa of 2026-01-02 03:04"},
    "seconds": {"total": 95.0},
    "peak_memory_bytes": 700 * 2**20,
}  # fmt: skip


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """As they are printed without a terminal."""
    return list(describe_plan(found))


def test_a_large_plan_reads_well_and_fits_80_columns() -> None:
    assert lines_of(FOUND) == [
        "job         big",
        "input       10,000,000 rows, 9,000,000 different documents",
        "documents   8,500,000 to do, 499,000 answered, 1,000 failed before",
        "unreadable  12 rows, the first: a.jsonl:7, a.jsonl:9",
        "            12 broken JSON at column …",
        "will fail   about 900 missing_field",
        "            12 unreadable_row",
        "            about 1,234 rows without an answer: exit code 5 by max_failures",
        "tokens      about 1,234,567,890 prompt, about 200,000,000 output",
        "            at most 403,200,000 output",
        "            per prompt: mean 147, p50 140, p95 300, p99 410, max 1,990",
        "                   0-99 ############################## 8,000,000",
        "            100 or more #                              9",
        "            about 61 % of the prompt text are shared prefixes",
        "counted by  the model's tokenizer and template, a sample of 20,000 documents",
        "time        about 2 h 00 min (1 h 30 min to 2 h 30 min), and 12.0 s loading",
        "            from 200 answers of the run aaaaaaaa of 2026-01-02 03:04",
        "database    /data/out.duckdb",
        "plan        1 min 35 s, 700.0 MiB; nothing was changed",
    ]
    assert max(map(len, lines_of(FOUND))) <= 80


def test_what_is_not_known_is_not_said() -> None:
    tokens = {**FOUND["tokens"], "output_expected": None, "shared_prefix_share": 0.01}
    time = {
        **FOUND["time"],
        "seconds": None,
        "reason": "no run with this model on this machine yet",
        "advice": "bulkinfer run j",
    }
    found = {**FOUND, "tokens": tokens, "time": time, "exceeds_max_failures": False, "expected_failures": {}}
    lines = lines_of(found)
    assert "tokens      about 1,234,567,890 prompt, at most 403,200,000 output" in lines
    assert "time        unknown: no run with this model on this machine yet" in lines
    assert "            `bulkinfer run j` gives a base" in lines
    assert not any("shared" in line or "fail " in line for line in lines)


def test_with_nothing_to_ask_there_are_no_tokens() -> None:
    documents = {**FOUND["documents"], "to_do": 0, "to_ask": 0}
    lines = lines_of({**FOUND, "documents": documents})
    assert "time        nothing to ask the model" in lines
    assert not any(line.startswith(("tokens", "counted")) for line in lines)


def test_one_value_is_a_bucket_of_its_own_and_a_sure_time_has_no_range() -> None:
    tokens = {**FOUND["tokens"], "histogram": [{"from": 7, "below": 8, "documents": 3}]}
    time = {**FOUND["time"], "low": 10.0, "high": 10.0, "seconds": 10.0, "engine_start": 0.0}
    lines = lines_of({**FOUND, "tokens": tokens, "time": time})
    assert f"            7 {'#' * 30} 3" in lines
    assert "time        about 10.0 s" in lines


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        ("model", "            context 2,048, the model's own: less where memory is short"),
        ("unknown", "            context unknown: none counts as too long"),
    ],
)
def test_a_context_that_a_run_may_not_have_is_said(origin: str, line: str) -> None:
    found = {**FOUND, "tokens": {**FOUND["tokens"], "max_context_tokens_from": origin}}
    assert line in lines_of(found)
    assert not any("context" in text for text in lines_of(FOUND))


def test_what_is_cut_has_a_line() -> None:
    cut = {"policy": "truncate_tail", "documents": 1_240, "cut": 1_234, "parts": 0, "is_exact": False}
    assert "too long    about 1,234, cut by limits.overlong: truncate_tail" in lines_of(FOUND | {"overlong": cut})
    exact = cut | {"is_exact": True}
    assert "too long    1,234, cut by limits.overlong: truncate_tail" in lines_of(FOUND | {"overlong": exact})


def test_what_is_wrong_with_all_of_the_input_is_said_last() -> None:
    lines = lines_of({**FOUND, "unreadable": {**FOUND["unreadable"], "hint": "no row can be asked"}})
    assert lines[lines.index("            12 broken JSON at column …") + 1] == "hint        no row can be asked"
