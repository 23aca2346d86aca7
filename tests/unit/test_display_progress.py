"""Where a run stands, as a view and in a line: at any width, without blocks, and whatever the ids are."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from bulkinfer.display import describe_progress, render_progress
from bulkinfer.display.progress import MIN_ENGINE_LINES, describe_facts
from bulkinfer.display.sparkline import Sparkline, draw_sparkline
from bulkinfer.events import ActiveDocument, EnginePhase, EngineProgress, Progress, RunPhase, Trend
from tests.unit.test_display import BEGINNING, HOSTILE, HOSTILE_SHOWN, PROGRESS, render

SLOWEST = (ActiveDocument("T-00471", 62.0, 1, 4_512, 0), ActiveDocument("T-00815", 4.25, 2, 812, 0))
BUSY = replace(
    PROGRESS,
    documents_per_s=12.34,
    queue_capacity=600,
    window_capacity=128,
    since_result_s=0.5,
    slowest=SLOWEST,
    trend=Trend(8.0, (0, 4, 8, 0, 2), (10, 400, 780, 0, 100), (0, 0, 20, 0, 100)),
)
ENGINES = (
    EngineProgress(0, EnginePhase.READY, 1_234, 64, 128, 32, 0.87, 0, 1.0),
    EngineProgress(1, EnginePhase.READY, 1_034, 128, 128, 64, 0.5, 1, 43.0),
    EngineProgress(2, EnginePhase.RESTARTING, 3, 0, 0, 0, 0.0, 4, None),
    EngineProgress(3, EnginePhase.LOADING, 0, 0, 0, 0, 0.0, 0, None),
    EngineProgress(4, EnginePhase.GIVEN_UP, 0, 0, 0, 0, 0.0, 4, None),
    EngineProgress(5, EnginePhase.UNUSED, 0, 0, 0, 0, 0.0, 0, None),
)
FLEET = replace(BUSY, num_replicas=5, num_replicas_ready=2, engines=ENGINES)


def lines_of(progress: Progress, width: int = 80) -> list[str]:
    """The view's lines, white space made one."""
    return [" ".join(line.split()) for line in render(render_progress(progress), width).splitlines()]


def dumb(renderable: RenderableType, width: int) -> str:
    """What a terminal without Unicode would show."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=stream, width=width, force_terminal=False).print(renderable)
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("ascii")


@pytest.mark.parametrize("width", [80, 200])
def test_the_view_shows_the_numbers(width: int) -> None:
    lines = lines_of(BUSY, width)
    bar = "━" * 40
    assert lines[0] == "running"
    assert lines[1].split()[-9:] == ["1,234/~3,000", "41", "%", "about", "3", "min", "10", "s", "left"]
    assert lines[2] == "documents 12.3/s .▄█.▂ 40 s"
    assert lines[3] == "tokens 2,346 in + 345 out /s ▁▄█.▂"
    assert lines[4].startswith("queue 512 of 600 ━")
    assert lines[5] == f"window 128 of 128 in flight {bar}"
    assert lines[6].startswith("KV cache 87 % ━")
    assert lines[7:] == [
        "work 154,567 tokens done, about 98,765 left; 64 sequences active",
        "failed 30 truncated, 4 unreadable_row",
        "slowest 1 min 02 s T-00471, 4,512 characters",
        "4.2 s T-00815, attempt 2, 812 characters",
        "memory runner 300.0 MiB, engine 5.0 GiB",
    ]


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("factor", [1, 1_000_000])
@pytest.mark.parametrize("progress", [BUSY, FLEET], ids=["one engine", "several"])
def test_no_line_of_the_view_is_wider_than_the_terminal(progress: Progress, width: int, factor: int) -> None:
    large = replace(
        progress,
        num_to_do=1_500 * factor,
        num_succeeded=1_200 * factor,
        prompt_tokens=120_000 * factor,
        tokens_left=98_765.0 * factor,
        time_left_s=190.0 * factor,
        slowest=(replace(SLOWEST[0], document_id="long-id-" * 20 * factor.bit_length()), SLOWEST[1]),
        trend=Trend(8.0, tuple(range(60)), (0,) * 60, (7,) * 60),
    )
    assert max(map(cell_len, render(render_progress(large), width).splitlines())) <= width


def test_the_view_of_one_engine_fits_a_terminal_of_24_lines_and_so_does_that_of_a_thousand() -> None:
    many = tuple(replace(ENGINES[1], replica=number) for number in range(1_000))
    five = (*SLOWEST, *SLOWEST, SLOWEST[0])
    assert len(lines_of(replace(BUSY, slowest=five))) <= 15
    assert len(lines_of(replace(FLEET, slowest=five, engines=many))) <= 22, "`status` has two lines more"


def test_a_narrow_view_breaks_between_words() -> None:
    shown = " ".join(lines_of(BUSY, 40))
    assert "work 154,567 tokens done, about 98,765 left; 64 sequences active" in shown
    assert "tokens 2,346 in + 345 out /s" in shown


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_view_before_the_first_document(width: int) -> None:
    shown = render(render_progress(replace(BEGINNING, phase=RunPhase.READING)), width)
    assert "reading the input" in shown
    assert "0/~0" in shown
    for absent in ("left", "failed", "slowest", "no result", "nan", "inf", " of "):
        assert absent not in shown


def test_totals_are_certain_once_the_input_is_read() -> None:
    done = replace(PROGRESS, is_read_to_end=True, share_read=1.0)
    assert "1,234/1,500 82 %" in " ".join(lines_of(done))
    assert "1,234/1,500 82 %" in describe_progress(done)


def test_a_plain_line_has_the_same_numbers() -> None:
    assert describe_progress(BUSY) == (
        "running: 1,234/~3,000 41 % about 3 min 10 s left, 12.3 documents/s, tokens 2,346 in + 345 out /s, "
        "34 failed (30 truncated, 4 unreadable_row), 128 of 128 in flight, 512 queued, KV cache 87 %"
    )
    assert describe_progress(replace(BEGINNING, phase=RunPhase.READING)) == (
        "reading the input: 0/~0, 0.0 documents/s, tokens 0 in + 0 out /s, 0 failed, 128 in flight, 512 queued, "
        "KV cache 87 %"
    )


def test_a_run_that_writes_nothing_tells_no_output_tokens() -> None:
    embedding = replace(BUSY, output_tokens=0, output_tokens_per_s=0.0)
    assert ", tokens 2,346 in /s, " in describe_progress(embedding)
    first = replace(embedding, num_succeeded=0)
    assert ", tokens 2,346 in + 0 out /s, " in describe_progress(first), "not known yet"


def test_a_block_of_plain_lines_tells_what_the_counts_do_not() -> None:
    assert describe_facts(replace(BUSY, since_result_s=75.0)) == [
        "12.3 documents/s, tokens 2,346 in + 345 out /s, about 3 min 10 s left",
        "failed: 30 truncated, 4 unreadable_row",
        "no result for 1 min 15 s",
        "in flight for 1 min 02 s: T-00471, 4,512 characters",
        "in flight for 4.2 s: T-00815, attempt 2, 812 characters",
    ]


@pytest.mark.parametrize(("since_s", "told"), [(None, ""), (0.25, ""), (9.9, ""), (10.0, "no result for 10.0 s")])
def test_a_stall_is_told_once_it_is_one(since_s: float | None, told: str) -> None:
    stalled = replace(BUSY, since_result_s=since_s)
    assert lines_of(stalled)[0] == f"running {told}".strip()
    line = describe_progress(stalled)
    assert line.endswith(f"{told}, slowest for 1 min 02 s: T-00471, 4,512 characters" if told else "KV cache 87 %")


def test_each_of_several_engines_has_a_line_and_those_that_need_a_look_are_marked() -> None:
    lines = [" ".join(line.split()) for line in render(render_progress(FLEET, height=50), 100).splitlines()]
    first = lines.index("engines 2 of 5 engines ready")
    assert lines[first + 1 : first + 7] == [
        "engine 0 ready 1,234 done 64 in flight KV cache 87 %",
        "engine 1 ready 1,034 done 128 in flight no result for 43.0 s, 1 restarts",
        "engine 2 to restart 3 done 4 restarts",
        "engine 3 loading 0 done",
        "engine 4 given up 0 done 4 restarts",
        "engine 5 not needed yet 0 done",
    ]
    assert "2 of 5 engines ready" in describe_progress(FLEET)
    assert "engines" not in describe_progress(BUSY)


def test_of_many_engines_those_that_need_a_look_come_first() -> None:
    well = tuple(replace(ENGINES[0], replica=number) for number in range(40))
    stalled = replace(ENGINES[1], replica=37)
    lines = lines_of(replace(FLEET, engines=(*well[:37], stalled, *well[38:])))
    shown = [line for line in lines if line.startswith("engine ")]
    assert len(shown) == MIN_ENGINE_LINES
    assert shown[-1].startswith("engine 37 ready 1,034 done 128 in flight no result for 43.0 s")
    assert "and 36 more" in lines


def test_ids_cannot_drive_the_terminal_and_long_ones_are_cut() -> None:
    slowest = replace(SLOWEST[0], document_id=HOSTILE), replace(SLOWEST[1], document_id="x" * 99)
    hostile = replace(BUSY, slowest=slowest)
    shown = render(render_progress(hostile), 200)
    assert f"{HOSTILE_SHOWN}, 4,512 characters" in shown
    assert f" {'x' * 60}..., attempt 2" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((), ""),
        ((0, 0), ".."),
        ((5,), "█"),
        ((0, 1, 2, 3, 4, 5, 6, 7, 8), ".▁▂▃▄▅▆▇█"),
        ((1, 1_000_000), "▁█"),
        ((3, 3, 3), "███"),
    ],
)
def test_a_sparkline_is_a_block_for_each_count(counts: tuple[int, ...], expected: str) -> None:
    assert draw_sparkline(counts) == expected


def test_without_blocks_a_sparkline_is_digits() -> None:
    assert draw_sparkline((0, 1, 2, 8), is_ascii=True) == ".128"
    assert dumb(Sparkline((0, 4, 8), 1.0), 80) == ".48 3 s"
    assert "12.3/s" in dumb(render_progress(BUSY), 80)


@pytest.mark.parametrize(
    ("width", "expected"),
    [(17, "▂▃▄▄▅▆▇██▁ 2 min"), (200, "▁▂▃▄▄▅▆▇██▁ 2 min"), (9, "█▁ 20 s"), (7, ""), (1, "")],
)
def test_a_sparkline_shows_the_latest_that_fit_and_how_long_they_took(width: int, expected: str) -> None:
    counts = (*range(1, 11), 1)
    assert render(Sparkline(counts, 10.0), width).strip() == expected
