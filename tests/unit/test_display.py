"""What people see: the live view, plain lines, summaries and tables; and that no text drives the terminal."""

import io
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from bulkinfer.display import (
    RunDisplay,
    describe_progress,
    describe_run,
    describe_running,
    describe_status,
    format_bytes,
    format_s,
    print_error,
    print_lines,
    print_table,
    render_summary,
    visible,
)
from bulkinfer.events import (
    Counting,
    Draining,
    EngineRestarting,
    EngineStarted,
    EngineStarting,
    Event,
    Progress,
    Reading,
    RunEnded,
    RunPhase,
    RunStarted,
    Warned,
)
from bulkinfer.records import FailureCode, RunStatus

PROGRESS = Progress(
    elapsed_s=100.0,
    num_read=2_000,
    num_skipped=5,
    num_to_do=1_500,
    num_succeeded=1_200,
    num_failed=34,
    failed_by_code={FailureCode.UNREADABLE_ROW: 4, FailureCode.TRUNCATED: 30},
    is_read_to_end=False,
    share_read=0.5,
    prompt_tokens=120_000,
    cached_tokens=5_000,
    output_tokens=34_567,
    prompt_tokens_per_s=2_345.6,
    output_tokens_per_s=345.4,
    tokens_left=98_765.4,
    time_left_s=190.0,
    num_queued=512,
    num_in_flight=128,
    num_active=64,
    kv_cache_usage=0.874,
    engine_memory_bytes=5 * 1024**3,
    runner_memory_bytes=300 * 1024**2,
)
BEGINNING = replace(
    PROGRESS,
    num_to_do=0,
    num_succeeded=0,
    num_failed=0,
    failed_by_code={},
    share_read=0.0,
    prompt_tokens=0,
    output_tokens=0,
    prompt_tokens_per_s=0.0,
    output_tokens_per_s=0.0,
    tokens_left=None,
    time_left_s=None,
    num_active=0,
)
SUMMARY: dict[str, Any] = {
    "job": "tickets",
    "status": "failed",
    "exit_code": 5,
    "database": "/data/out.duckdb",
    "documents": {
        "read": 12_000,
        "distinct": 11_000,
        "duplicates": 1_000,
        "already_done": 4_000,
        "succeeded": 5_000,
        "failed": 1_500,
        "failed_by_code": {"truncated": 1_400, "unreadable_row": 100},
        "failed_rows": 1_600,
        "not_finished": 500,
    },
    "tokens": {"prompt": 1_234_567, "cached": 345_678, "output": 98_765},
    "seconds": {"total": 190.0, "engine_start": 4.25, "generate": 180.5},
    "throughput": {"documents_per_s": 36.01, "prompt_tokens_per_s": 6_839.7, "output_tokens_per_s": 547.2},
    "latency_s": {
        "queue": {"p50": 0.5, "p95": 1.5, "p99": 2.5},
        "first_token": {"p50": 0.75, "p95": 61.0, "p99": None},
        "total": {"p50": None, "p95": None, "p99": None},
    },
    "engine": {
        "max_concurrency": 64,
        "peak_active": 63,
        "peak_queue_size": 512,
        "kv_cache_usage_peak": 0.876,
        "preemptions": 7,
        "prefix_cache_hit_rate": 0.28,
        "restarts": 2,
        "is_used": True,
    },
    "peak_memory_bytes": {"runner": 300 * 1024**2, "engine": 5 * 1024**3},
}
STARTED = RunStarted("tickets", UUID(int=1), UUID(int=2), "/data/out.duckdb", 12, 3 * 1024**2)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


class Clock:
    """The monotonic clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 100 columns, and no wish of the machine's owner as to colours."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")


def render(renderable: RenderableType, width: int = 100) -> str:
    """What a terminal of this width would show."""
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue()


def show(events: Sequence[Event], *, is_quiet: bool = False, stream: io.StringIO | None = None) -> str:
    """All that a display writes for these events."""
    stream = stream or io.StringIO()
    with RunDisplay(is_quiet=is_quiet, stream=stream) as display:
        for event in events:
            display(event)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (STARTED, f"tickets: 12 input file(s), 3.0 MiB; run {UUID(int=1)}; database /data/out.duckdb\n"),
        (Warned("no socket can be made"), "warning: no socket can be made\n"),
        (EngineStarting("my-model", 0), "loading my-model\n"),
        (EngineStarting("my-model", 2), "restarting the engine: loading my-model\n"),
        (EngineStarted(4.26, {}), "engine ready after 4.3 s\n"),
        (
            EngineRestarting("the engine ended: killed", 128, 4.0),
            "the engine ended: killed; 128 documents go back into the queue, next start in 4 s\n",
        ),
        (
            Draining(15, 128, 30.0),
            "stopping: 128 documents in flight may finish for up to 30 s; a second signal gives them up\n",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_event_is_one_plain_line(event: Event, expected: str) -> None:
    assert show([event]) == expected


def test_a_long_plain_line_is_not_broken() -> None:
    [line] = show([replace(STARTED, database="/data/" + "folder/" * 60 + "out.duckdb")]).splitlines()
    assert line.endswith("folder/out.duckdb")


def test_the_end_of_a_run_is_its_summary() -> None:
    assert show([RunEnded(RunStatus.FAILED, SUMMARY)]) == render(render_summary(SUMMARY))


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["no terminal", "terminal"])
def test_quiet_says_nothing(stream: io.StringIO) -> None:
    events: list[Event] = [
        STARTED,
        EngineStarting("m", 0),
        EngineStarted(1.0, {}),
        PROGRESS,
        EngineRestarting("killed", 1, 1.0),
        Draining(2, 1, 1.0),
        RunEnded(RunStatus.FAILED, SUMMARY),
    ]
    assert show(events, is_quiet=True, stream=stream) == ""


def test_without_a_terminal_progress_is_one_line_in_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    stream = io.StringIO()
    seen = []
    with RunDisplay(stream=stream) as display:
        display(EngineStarted(1.0, {}))
        for step in range(80):  # four readings a second
            clock.now_s = 1_000.0 + step / 4
            display(PROGRESS)
            seen.append(stream.getvalue().count("1,234/~3,000"))
    assert [seen.index(count) for count in (1, 2, 3)] == [20, 40, 60]
    assert seen[-1] == 3
    lines = stream.getvalue().splitlines()
    assert lines[1][8:] == " " + describe_progress(PROGRESS)
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


@pytest.mark.parametrize(
    ("phase", "told"),
    [
        (RunPhase.READING, "reading the input"),
        (RunPhase.LOADING, "loading the model"),
        (RunPhase.RUNNING, "running"),
        (RunPhase.RESTARTING, "waiting to restart the engine"),
        (RunPhase.STOPPING, "stopping"),
    ],
)
def test_progress_tells_the_phase(monkeypatch: pytest.MonkeyPatch, phase: RunPhase, told: str) -> None:
    clock = Clock(monkeypatch)
    plain, live = io.StringIO(), Terminal()
    for stream in (plain, live):
        with RunDisplay(stream=stream) as display:
            display(PROGRESS)
            clock.now_s += 5
            display(replace(PROGRESS, phase=phase))
    assert f" {told}: 1,234/~3,000 41 % " in plain.getvalue()
    assert told in live.getvalue()


def test_on_a_terminal_the_view_is_drawn_again_and_goes_away_at_the_end() -> None:
    stream = Terminal()
    with RunDisplay(stream=stream) as display:
        display(EngineStarted(1.0, {}))
        display(PROGRESS)
        before = stream.getvalue()
        assert "1,234/~3,000" in before
        display(replace(PROGRESS, num_succeeded=1_300))
        assert "1,334/~3,000" in stream.getvalue()[len(before) :]
        drawn = len(stream.getvalue())
        display(RunEnded(RunStatus.FAILED, SUMMARY))
        end = stream.getvalue()[drawn:]
    assert end.count("\x1b[2K") >= 6, "each line of the view is erased"
    assert "failed (exit code 5)" in end
    assert stream.getvalue().endswith(end), "nothing is drawn after the summary"
    assert "\x1b[?25h" in end, "the cursor is shown again"


def test_a_display_that_is_left_by_an_error_gives_the_terminal_back() -> None:
    stream = Terminal()

    def fail() -> None:
        with RunDisplay(stream=stream) as display:
            display(PROGRESS)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_hostile_names_in_events_are_text() -> None:
    hostile = "[red]x[/red]\x1b[2J\u202e"
    shown = "[red]x[/red]\\x1b[2J\\u202e"
    events: list[Event] = [
        replace(STARTED, job=hostile, database=hostile),
        Warned(hostile),
        EngineStarting(hostile, 0),
        EngineRestarting(hostile, 1, 1.0),
        RunEnded(RunStatus.FAILED, {**SUMMARY, "database": hostile}),
    ]
    written = show(events)
    assert written.count(shown) == 6
    assert "\x1b" not in written


def test_the_summary_of_a_run_with_failures() -> None:
    lines = [" ".join(line.split()) for line in render(render_summary(SUMMARY)).splitlines()]
    assert lines == [
        "status failed (exit code 5)",
        "documents 5,000 answered, 1,500 failed, 4,000 done before",
        "1,400 truncated",
        "100 unreadable_row",
        "500 known and not finished",
        "input 12,000 rows, 1,000 of them equal to another; 1,600 failed and have no answer",
        "time 3 min 10 s: 4.2 s loading the model, 3 min 00 s generating",
        "tokens 1,234,567 prompt (345,678 from the prefix cache), 98,765 output",
        "speed 36.0 documents/s, 6,840 prompt and 547 output tokens/s",
        "queue time p50 500 ms, p95 1.5 s, p99 2.5 s",
        "first token p50 750 ms, p95 1 min 01 s",
        "total time no answer in this run",
        "engine 63 of 64 sequences, KV cache 88 %, 7 preemptions, 2 restarts",
        "memory at most 300.0 MiB runner, 5.0 GiB engine",
        "database /data/out.duckdb",
    ]


def test_a_summary_of_a_run_that_wrote_nothing_tells_no_output_and_no_first_token() -> None:
    tokens = {"prompt": 1_234_567, "cached": 0, "output": 0}
    rates = {**SUMMARY["throughput"], "output_tokens_per_s": 0.0}
    summary = {**SUMMARY, "tokens": tokens, "throughput": rates}
    lines = [" ".join(line.split()) for line in render(render_summary(summary)).splitlines()]
    assert "time 3 min 10 s: 4.2 s loading the model, 3 min 00 s at work" in lines
    assert "tokens 1,234,567 prompt (0 from the prefix cache)" in lines
    assert "speed 36.0 documents/s, 6,840 prompt tokens/s" in lines
    assert not [line for line in lines if "output" in line or line.startswith("first token")]


def test_a_summary_of_a_run_that_asked_nothing_leaves_the_engine_out() -> None:
    documents = {**SUMMARY["documents"], "failed_by_code": {}, "failed": 0, "not_finished": 0, "failed_rows": 0}
    summary = {**SUMMARY, "documents": documents, "engine": {**SUMMARY["engine"], "is_used": False}}
    lines = [" ".join(line.split()) for line in render(render_summary(summary)).splitlines()]
    assert lines == [
        "status failed (exit code 5)",
        "documents 5,000 answered, 0 failed, 4,000 done before",
        "input 12,000 rows, 1,000 of them equal to another",
        "time 3 min 10 s; there was nothing to ask the model",
        "database /data/out.duckdb",
    ]


def test_a_summary_says_what_was_chosen_for_the_engine_and_why() -> None:
    settings = {
        "block_size": 32,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "reasons": {"block_size": "whole blocks", "enforce_eager": "about 3 s of work"},
    }
    summary = {**SUMMARY, "engine": {**SUMMARY["engine"], "settings": settings}}
    lines = [" ".join(line.split()) for line in render(render_summary(summary)).splitlines()]
    first = lines.index("settings block_size 32: whole blocks")
    assert lines[first + 1] == "enforce_eager True: about 3 s of work"
    assert "dtype" not in " ".join(lines)


def test_a_summary_without_latencies_is_shown() -> None:
    summary = {key: value for key, value in SUMMARY.items() if key != "latency_s"}
    assert render(render_summary(summary)).count("no answer in this run") == 3


RUNNING: dict[str, Any] = {
    "job": "tickets",
    "pid": 42,
    "host": "node-1",
    "elapsed_s": 190.0,
    "updated_at": "2026-01-02T03:04:05Z",
    "documents": {
        "read": 2_000,
        "skipped": 5,
        "to_do": 1_500,
        "succeeded": 1_200,
        "failed": 34,
        "failed_by_code": {},
        "is_read_to_end": False,
        "queued": 512,
        "in_flight": 128,
    },
    "tokens": {"prompt": 1, "cached": 1, "output": 1},
    "engine": {"active": 64, "kv_cache_usage": 0.874, "preemptions": 0, "restarts": 2},
}


def test_a_live_run_is_told_from_its_status() -> None:
    assert [line.strip() for line in describe_running(RUNNING)] == [
        "tickets: running, pid 42 on node-1",
        "1,200 answered, 34 failed of 1,500",
        "2,000 rows read, more to come",
        "512 queued, 128 in flight, 64 active",
        "KV cache 87 %, 2 restarts",
        "3 min 10 s so far; last commit 2026-01-02T03:04:05Z",
    ]


def test_a_live_run_before_its_first_commit_is_one_line() -> None:
    assert describe_running({"pid": 42, "host": "node-1"}) == ["?: running, pid 42 on node-1"]


PAST: dict[str, Any] = {
    "name": "tickets",
    "status": "failed",
    "exit_code": 5,
    "num_rows": 12_000,
    "num_answered": 10_400,
    "failed_by_code": {"truncated": 1_500, "unreadable_row": 100},
    "started_at": "2026-01-02 03:04:05.678901+00:00",
    "ended_at": "2026-01-02 04:00:00+00:00",
    "run_id": "r1",
    "summary": {"error": "1,600 of 12,000 documents failed"},
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {},
            [
                "tickets: failed, exit code 5",
                "12,000 input rows, 10,400 answered; failed: 1,500 truncated, 100 unreadable_row",
                "started 2026-01-02 03:04:05Z, ended 2026-01-02 04:00:00Z, run r1",
                "error: 1,600 of 12,000 documents failed",
            ],
        ),
        (
            {"status": "completed", "exit_code": 0, "failed_by_code": {}, "summary": {"error": None}},
            [
                "tickets: completed, exit code 0",
                "12,000 input rows, 10,400 answered",
                "started 2026-01-02 03:04:05Z, ended 2026-01-02 04:00:00Z, run r1",
            ],
        ),
        (
            {"status": None, "exit_code": None, "ended_at": None, "failed_by_code": {}, "summary": None},
            [
                "tickets: ended without a word (killed, or the machine stopped): run it again to resume",
                "12,000 input rows, 10,400 answered",
                "started 2026-01-02 03:04:05Z, ended ?, run r1",
            ],
        ),
    ],
)
def test_a_past_run_is_told_from_the_database(changes: dict[str, Any], expected: list[str]) -> None:
    assert [line.strip() for line in describe_run({**PAST, **changes})] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text, 漢字, é", "plain text, 漢字, é"),
        ("a\nb\tc", "a b c"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x00\x07\x08\r\x7f", "\\x00\\x07\\x08\\r\\x7f"),
        ("\x9b2J\x85", "\\x9b2J\\x85"),  # C1: one character that is ESC [, and one that is a new line
        ("\u202ecod.exe\u202c", "\\u202ecod.exe\\u202c"),  # bidi override
        ("\u2066\u2067\u2068\u2069\u200e\u200f\u061c", "\\u2066\\u2067\\u2068\\u2069\\u200e\\u200f\\u061c"),
        ("\u2028\u2029\ufeff\u200b", "\\u2028\\u2029\\ufeff\\u200b"),
        ("\ud800", "\\ud800"),  # half a character
        ("\U000e0041", "\\U000e0041"),  # an invisible tag
        ("[red]'\"\\", "[red]'\"\\"),
        ("", ""),
    ],
)
def test_what_could_drive_a_terminal_is_shown_as_an_escape(text: str, expected: str) -> None:
    assert visible(text) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        (1_536, "1.5 KiB"),
        (1_024**2, "1.0 MiB"),
        (300 * 1_024**2, "300.0 MiB"),
        (5.25 * 1_024**3, "5.2 GiB"),
        (1_024**4, "1.0 TiB"),
        (2_048 * 1_024**4, "2048.0 TiB"),
    ],
)
def test_bytes(count: float, expected: str) -> None:
    assert format_bytes(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 ms"),
        (0.0152, "15 ms"),
        (0.999, "999 ms"),
        (1, "1.0 s"),
        (4.24, "4.2 s"),
        (59.9, "59.9 s"),
        (60, "1 min 00 s"),
        (190, "3 min 10 s"),
        (3_599, "59 min 59 s"),
        (3_599.6, "1 h 00 min"),
        (7_500, "2 h 05 min"),
        (45_300, "12 h 35 min"),
        (400_000, "111 h 06 min"),
    ],
)
def test_seconds(seconds: float, expected: str) -> None:
    assert format_s(seconds) == expected


HOSTILE = "[red]x[/red]\x1b[2J\nnext\u202e"
HOSTILE_SHOWN = "[red]x[/red]\\x1b[2J next\\u202e"


def test_a_table_on_a_terminal_is_ruled_and_cut_to_its_width() -> None:
    stream = Terminal()
    print_table(("id", "message"), [("a", HOSTILE), (None, "word " * 60), (HOSTILE, 7)], stream=stream)
    plain = stream.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[1;", "")
    assert max(map(cell_len, plain.splitlines())) <= 100
    assert HOSTILE_SHOWN in plain
    assert "│ None " in plain
    assert "\x1b[2J" not in stream.getvalue()
    assert "\u202e" not in stream.getvalue()


def test_of_a_vector_a_terminal_shows_the_beginning_and_a_pipe_all() -> None:
    vector = [0.25, -0.5, 0.123456, 1.0, 2.0, 3.0]
    stream, pipe = Terminal(), io.StringIO()
    print_table(("id", "vector"), [("a", vector), ("b", vector[:3])], stream=stream)
    assert "[0.25, -0.5, 0.1235, 1, ... 6 numbers]" in stream.getvalue()
    assert "[0.25, -0.5, 0.123456]" in stream.getvalue()
    print_table(("id", "vector"), [("a", vector)], stream=pipe)
    assert pipe.getvalue().splitlines()[1] == f"a\t{vector}"


def test_a_table_without_a_terminal_is_whole() -> None:
    stream = io.StringIO()
    print_table(("id", HOSTILE), [("a", "word " * 60 + "end"), (None, HOSTILE)], stream=stream)
    head, first, second = stream.getvalue().splitlines()
    assert head.endswith(HOSTILE_SHOWN)
    assert first.endswith("word end")
    assert second.startswith("None")
    assert second.endswith(HOSTILE_SHOWN)


def test_a_table_without_rows_has_its_head() -> None:
    stream = io.StringIO()
    print_table(("id",), [], stream=stream)
    assert stream.getvalue() == "id\n"


def test_lines_are_not_broken_and_not_obeyed() -> None:
    stream = io.StringIO()
    print_lines(["word " * 60 + "end", HOSTILE], stream=stream)
    first, second = stream.getvalue().splitlines()
    assert first.endswith("word end")
    assert second == HOSTILE_SHOWN


def test_lines_for_people_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(["one"])
    assert capsys.readouterr() == ("", "one\n")


def test_an_error_keeps_its_lines_and_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(f"job.yaml: two problems\n  [b]first[/b]\x1b[2J {'word ' * 60}end\n  second")
    out, err = capsys.readouterr()
    assert out == ""
    first, second, third = err.splitlines()
    assert first == "error: job.yaml: two problems"
    assert second.startswith("  [b]first[/b]\\x1b[2J word")
    assert second.endswith("word end")
    assert third == "  second"


def test_a_run_that_is_ending_is_shown_by_what_its_summary_has() -> None:
    lines = list(describe_status({**SUMMARY, "status": RunStatus.RUNNING, "pid": 7, "host": "here"}))
    assert lines[0].endswith("running, pid 7 on here")
    assert lines[1].startswith("  ending; ")


REPLICAS = [
    {"documents": 90, "active": 3, "restarts": 0, "is_retired": False},
    {"documents": 1_110, "active": 4, "restarts": 2, "is_retired": False},
    {"documents": 0, "active": 0, "restarts": 4, "is_retired": True},
]


def test_several_engines_are_told_apart() -> None:
    events: list[Event] = [
        EngineStarting("my-model", 0, 1),
        EngineStarted(4.25, {}, 0),
        EngineRestarting("killed", 8, 1.0, 2),
    ]
    assert show([*events, EngineStarting("my-model", 1, 2)]).splitlines() == [
        "engine 1: loading my-model",
        "engine 0: engine ready after 4.2 s",
        "engine 2: killed; 8 documents go back into the queue, next start in 1 s",
        "engine 2: restarting the engine: loading my-model",
    ]


def test_the_summary_of_several_engines_names_those_that_were_not_well() -> None:
    counts = {"max_concurrency": 512, "peak_active": 500, "replicas": REPLICAS}
    summary = {**SUMMARY, "engine": {**SUMMARY["engine"], **counts}}
    lines = [" ".join(line.split()) for line in render(render_summary(summary)).splitlines()]
    assert any(line.startswith("engine 500 of 512 sequences, ") for line in lines)
    first = lines.index("engines 3; 0 to 1,110 documents each")
    assert lines[first + 1 : first + 3] == [
        "engine 1: 1,110 documents, 2 restarts",
        "engine 2: 0 documents, 4 restarts, given up",
    ]


def test_a_live_run_with_several_engines_says_how_many() -> None:
    status = {**RUNNING, "engine": {**RUNNING["engine"], "replicas": REPLICAS}}
    assert any(line.endswith(" active in 3 engines") for line in describe_running(status))


def test_a_plan_tells_how_far_it_is_one_line_in_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    stream = io.StringIO()
    with RunDisplay(stream=stream) as display:
        for num_read in range(0, 5_000_000, 500_000):
            clock.now_s += 1
            display(Reading(num_read, num_read / 5_000_000))
        clock.now_s += 5
        display(Counting(20_000, 256))
    assert [line.partition(" ")[2] for line in stream.getvalue().splitlines()] == [
        "reading the input: 2,500,000 rows, 50 %",
        "counting tokens: 256 of a sample of 20,000 documents",
    ]


def test_on_a_terminal_a_plan_shows_it_in_place() -> None:
    shown = show([Reading(1_000, 0.25), Counting(100, 50)], stream=Terminal())
    assert "reading the input: 1,000 rows, 25 %" in shown
    assert "counting tokens: 50 of a sample of 100 documents" in shown


def test_the_share_of_full_steps_is_told_where_there_is_one() -> None:
    engine = SUMMARY["engine"] | {"full_step_share": 0.9876}
    text = " ".join(render(render_summary(SUMMARY | {"engine": engine})).split())
    assert "7 preemptions, 2 restarts, 99 % of steps full" in text
    lines = describe_running(RUNNING | {"engine": RUNNING["engine"] | {"full_step_share": 0.5}})
    assert lines[4].endswith("2 restarts, 50 % of steps full")


def test_a_terminal_gets_the_first_rows_of_a_table_without_end() -> None:
    stream = Terminal()
    print_table(("n",), ((number,) for number in itertools.count(1)), stream=stream)
    assert "10000" in stream.getvalue()
    assert "10001" not in stream.getvalue()
    assert "the first 10,000 rows; a pipe or a file gets all" in stream.getvalue()
