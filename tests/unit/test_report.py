"""Every number of a report, against a database of which all is known; and whatever can be wrong with the question."""

import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from uuid import UUID, uuid4

import duckdb
import orjson
import pytest
from matplotlib.image import imread

from bulkinfer.charts import BarChart, HistogramChart, LineChart
from bulkinfer.errors import JobError
from bulkinfer.records import Outcome, Result
from bulkinfer.report import write_report
from bulkinfer.report.measures import compare, measure_run
from bulkinfer.report.page import list_asked, list_notices, measures_of, render_page
from bulkinfer.report.pictures import Picture, draw_pictures
from bulkinfer.report.subject import Subject, read_subject
from bulkinfer.store import CommitLimits, Reader, RemoteReader, RunRecord, Store, TaskRecord, open_reader
from tests.unit.report_support import (
    GIB,
    STARTED,
    TASK,
    Told,
    first_commits,
    make_answers,
    make_known_database,
    second_commits,
    tell,
    write_run,
)
from tests.unit.store_support import make_file, make_sample


def test_of_the_job_only_numbers_and_the_names_of_the_model_are_shown() -> None:
    """A chat template is often the system prompt."""
    model = {"path": "m", "revision": "r", "trust_remote_code": False, "chat_template": "SECRET {{ messages }}"}
    asked = list_asked(
        {"model": model, "sampling": {"max_tokens": 8, "stop": ["SECRET"]}, "prompt": {"user": "SECRET"}}
    )
    assert asked == [
        ("model.path", "m"),
        ("model.revision", "r"),
        ("model.trust_remote_code", "False"),
        ("sampling.max_tokens", "8"),
    ]


def read(database: Path, name: str | None = None, run_id: str | None = None) -> Subject:
    """What a report of this database is about."""
    with Reader.open(database) as reader:
        return read_subject(reader, name, run_id)


def find(subject: Subject, title: str) -> Picture:
    """A picture by its title."""
    [found] = [picture for picture in draw_pictures(subject) if picture.chart.title == title]
    return found


def points_of(picture: Picture) -> dict[str, list[tuple[float, float | None]]]:
    """Each line of a chart by its name."""
    assert isinstance(picture.chart, LineChart)
    return {series.name: list(series.points) for series in picture.chart.series}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Both runs."""
    make_known_database(tmp_path / "out.duckdb")
    return tmp_path / "out.duckdb"


def test_rates_are_what_happened_between_two_samples(database: Path) -> None:
    subject = read(database)
    documents = find(subject, "Documents per second")
    assert points_of(documents) == {
        "answered": [(0, 0.5), (10, 0.3), (20, 2 / 60), (80, 2 / 60)],
        "failed": [(0, 0.0), (10, 0.2), (20, 1 / 60), (80, 1 / 60)],
    }
    assert documents.head == ["from", "to", "answered", "failed"]
    assert documents.rows == [
        ["0 s", "10 s", "0.5", "0"],
        ["10 s", "20 s", "0.3", "0.2"],
        ["20 s", "1.33 min", "0.0333", "0.0167"],
    ]
    assert points_of(find(subject, "Tokens per second")) == {
        "prompt": [(0, 50), (10, 50), (20, 5), (80, 5)],
        "output": [(0, 5), (10, 5), (20, 0.5), (80, 0.5)],
    }


def test_readings_are_the_samples_own(database: Path) -> None:
    subject = read(database)
    gib = 1024**3
    assert points_of(find(subject, "Memory")) == {
        "runner": [(10, gib), (20, 2 * gib), (80, gib)],
        "engine, at most until then": [(10, 2 * gib), (20, 3 * gib), (80, 3 * gib)],
    }
    assert points_of(find(subject, "Documents on their way")) == {
        "waiting in the queue": [(10, 10), (20, 5), (80, 0)],
        "in flight": [(10, 5), (20, 5), (80, 0)],
        "active in the engine": [(10, 4), (20, 5), (80, 0)],
    }
    assert points_of(find(subject, "KV cache and prefix cache")) == {
        "KV cache in use": [(0, 0.25), (10, 0.75), (20, 0), (80, 0)],
        "prompt tokens from the cache": [(0, 0.2), (10, 0.5), (20, pytest.approx(1 / 6)), (80, pytest.approx(1 / 6))],
    }
    assert points_of(find(subject, "Preemptions and restarts")) == {
        "preemptions": [(10, 0), (20, 3), (80, 4)],
        "engine restarts": [(10, 0), (20, 1), (80, 1)],
    }


def test_stalls_and_restarts_are_marked(database: Path) -> None:
    subject = read(database)
    for picture in draw_pictures(subject):
        if isinstance(picture.chart, LineChart):
            assert [(span.label, span.start, span.end) for span in picture.chart.spans] == [("stall", 30, 75)]
            assert [(mark.label, mark.x) for mark in picture.chart.marks] == [("restart", 20)]
            assert "Marked: 1 of stalls, 1 of restarts." in picture.chart.alt
    assert subject.stall_limit_s == 10, "documents took 7.2 s in the engine at most"
    assert "30 s" in render_page(subject)


def test_memory_of_gpus_is_drawn_where_there_are_any(database: Path) -> None:
    subject = read(database)
    moments = [replace(moment, gpu_memory_bytes=5 * GIB) for moment in subject.details.moments]
    on_gpu = find(replace(subject, details=replace(subject.details, moments=moments)), "Memory")
    assert find(subject, "Memory").head == ["at", "runner", "engine, at most until then"]
    assert on_gpu.head == ["at", "runner", "engine, at most until then", "GPU, by whomever"]
    assert {row[-1] for row in on_gpu.rows} == {"5 GiB"}


def test_a_silence_is_no_stall_where_documents_take_that_long(tmp_path: Path) -> None:
    commits = second_commits()
    slow = [Told([duration_times_ten(outcome) for outcome in told.outcomes], told.sample) for told in commits]
    write_run(tmp_path / "a.duckdb", slow)
    subject = read(tmp_path / "a.duckdb")
    assert subject.stall_limit_s > 45
    assert subject.stalls == []


def duration_times_ten(outcome: Outcome) -> Outcome:
    """The same answer, ten times slower."""
    return replace(outcome, total_s=10 * outcome.total_s) if isinstance(outcome, Result) else outcome


def test_latencies_are_binned_and_their_percentiles_marked(database: Path) -> None:
    picture = find(read(database), "Time to the whole answer")
    chart = picture.chart
    assert isinstance(chart, HistogramChart)
    assert not chart.x.is_log, "the longest is less than 20 times the median"
    assert [mark.label for mark in chart.marks] == ["p50 1.5 s", "p95 6.2 s", "p99 7.64 s"]
    assert picture.head == ["from", "to below", "answers"]
    assert picture.rows == [
        ["1 s", "1.5 s", "5"], ["2 s", "2.5 s", "3"], ["4 s", "4.5 s", "1"], ["8 s", "8.5 s", "1"],
    ]  # fmt: skip
    assert sum(chart.counts) == 10
    assert "10 answers" in chart.alt
    [queue, first] = [find(read(database), f"Time {title}").chart for title in ("in the queue", "to the first token")]
    assert [mark.label for mark in queue.marks] == ["p50 150 ms", "p95 620 ms", "p99 764 ms"]  # type: ignore[union-attr]
    assert [mark.label for mark in first.marks] == ["p50 300 ms", "p95 1.24 s", "p99 1.53 s"]  # type: ignore[union-attr]


def test_durations_far_apart_are_binned_by_their_logarithm(tmp_path: Path) -> None:
    lengths = (0, 1, 10, 10, 10, 10, 100, 1_000, 10_000, 100_000)
    write_run(tmp_path / "a.duckdb", [Told(make_answers(lengths), second_commits()[0].sample)])
    chart = find(read(tmp_path / "a.duckdb"), "Time to the whole answer").chart
    assert isinstance(chart, HistogramChart)
    assert chart.x.is_log
    assert all(high / low == pytest.approx(10 ** (1 / 20)) for low, high in pairwise(chart.edges))
    counted = {round(low, 6): count for low, count in zip(chart.edges, chart.counts, strict=False) if count}
    assert counted == {0.0001: 1, 0.01: 1, 0.1: 4, 1: 1, 10: 1, 100: 1, 1000: 1}, "no time at all counts as 0.1 ms"


def test_lengths_are_counted(database: Path) -> None:
    subject = read(database)
    prompts, answers = find(subject, "Lengths of prompts"), find(subject, "Lengths of answers")
    assert prompts.head == ["from", "to below", "answers"]
    assert prompts.rows == [["100", "150", "5"], ["200", "250", "3"], ["400", "450", "1"], ["800", "850", "1"]]
    assert answers.rows == [[str(number), str(number + 1), "1"] for number in range(1, 11)]


def test_failures_are_counted_by_code(database: Path) -> None:
    picture = find(read(database), "Failures by code")
    assert isinstance(picture.chart, BarChart)
    assert [(bar.name, bar.value) for bar in picture.chart.bars] == [("truncated", 2), ("prompt_too_long", 1)]
    assert picture.rows == [["truncated", "2"], ["prompt_too_long", "1"]]


def test_the_numbers_of_a_run_and_the_run_before(database: Path) -> None:
    subject = read(database)
    assert subject.previous is not None
    now = {measure.label: measure.describe() for measure in measure_run(subject.details)}
    assert now == {
        "documents answered": "10",
        "documents failed": "3",
        "share that failed": "23.1%",
        "duration": "1.33 min",
        "loading the model": "1 s",
        "generating": "40 s",
        "documents/s over the whole run": "0.163",
        "documents/s while generating": "0.325",
        "prompt tokens/s while generating": "32.5",
        "output tokens/s while generating": "3.25",
        "prompt tokens": "1,300",
        "output tokens": "130",
        "prompt tokens from the prefix cache": "30.8%",
        "queue time, p50": "150 ms",
        "queue time, p95": "620 ms",
        "queue time, p99": "764 ms",
        "first token time, p50": "300 ms",
        "first token time, p95": "1.24 s",
        "first token time, p99": "1.53 s",
        "total time, p50": "1.5 s",
        "total time, p95": "6.2 s",
        "total time, p99": "7.64 s",
        "steps of the engine that were full": "50%",
        "KV cache in use, at most": "75%",
        "preemptions": "4",
        "engine restarts": "1",
        "memory of the runner, at most": "2 GiB",
        "memory of the engine, at most": "3 GiB",
    }
    lines = {
        line.label: (line.now, line.before, line.difference, line.ratio)
        for line in compare(measure_run(subject.details), measure_run(subject.previous))
    }
    assert lines["documents answered"] == ("10", "4", "+6", "×2.50")  # noqa: RUF001  # as it is shown
    assert lines["duration"] == ("1.33 min", "8 s", "+1.2 min", "×10.00")  # noqa: RUF001
    assert lines["documents/s over the whole run"] == ("0.163", "0.5", "−0.338", "×0.33")  # noqa: RUF001
    assert lines["documents failed"] == ("3", "0", "+3", "–")  # noqa: RUF001
    assert lines["prompt tokens from the prefix cache"] == ("30.8%", "20%", "+10.8 points", "×1.54")  # noqa: RUF001
    assert lines["loading the model"] == ("1 s", "1 s", "±0 s", "×1.00")  # noqa: RUF001


def test_the_run_before_is_one_of_the_same_task_with_outcomes(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    other = TaskRecord(UUID("22222222-2222-2222-2222-222222222222"), "{}")
    first = write_run(database, first_commits())
    write_run(database, first_commits(), task=other)
    write_run(database, [Told([], make_sample(1.0))])
    write_run(database, second_commits())
    subject = read(database)
    assert subject.previous is not None
    assert subject.previous.run.run_id == first
    assert read(database, run_id=str(first)).previous is None
    assert "no earlier run of this task" in render_page(read(database, run_id=str(first)))


def test_a_killed_run_is_told_from_its_samples(tmp_path: Path) -> None:
    write_run(tmp_path / "a.duckdb", second_commits(), ends=False)
    subject = read(tmp_path / "a.duckdb")
    assert subject.details.run.status == "killed"
    measures = {measure.label: measure.describe() for measure in measure_run(subject.details)}
    assert measures["duration"] == "1.33 min"
    assert measures["prompt tokens"] == "1,300"
    assert measures["preemptions"] == "4"
    assert measures["memory of the runner, at most"] == "2 GiB"
    assert measures["generating"] == "–"  # noqa: RUF001  # as it is shown
    assert any("killed" in notice for notice in list_notices(subject))
    page = render_page(subject)
    assert "fits into memory" in page, "the settings are in the samples"
    assert "0.32.0" in page


@pytest.mark.parametrize("has_table", [True, False])
def test_without_samples_there_is_what_the_commits_tell(tmp_path: Path, has_table: bool) -> None:
    database = tmp_path / "a.duckdb"
    write_run(database, second_commits(), has_samples=False)
    with duckdb.connect(database) as connection:
        connection.execute(
            "update commits set committed_at = timestamptz '2026-01-02 03:04:05+00' + to_seconds(20 * seq)"
        )
        if not has_table:
            connection.execute("drop table samples")
    subject = read(database)
    assert not subject.details.has_samples
    titles = [picture.chart.title for picture in draw_pictures(subject)]
    assert "Memory" not in titles
    assert len(titles) == 8
    answered = points_of(find(subject, "Documents per second"))["answered"]
    assert answered == [(0, 0.25), (20, 0.15), (40, 0.1), (60, 0.1)]
    assert any("no samples" in notice for notice in list_notices(subject))
    assert "Not known: the run recorded no samples." in render_page(subject)


def test_a_long_run_is_drawn_with_few_points(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    write_run(database, second_commits())
    with duckdb.connect(database) as connection:
        connection.execute("""
            insert into samples by name select run_id, 100 + n as seq, sampled_at, 80.0 + n as elapsed_s, 20 as read,
                10 + n as succeeded, 3 as failed, 0 as queued, 0 as in_flight, 0 as active, 0 as kv_cache_usage,
                4 as preemptions, 1 as restarts, 60 as engine_steps, 1300 as prompt_tokens, 130 as output_tokens,
                400 as cached_tokens, 1 as runner_memory_bytes, 1 as engine_memory_bytes, 0 as silence_s,
                0 as silence_ended_s
            from (select * from samples order by seq desc limit 1), range(1, 17920) as t(n)
        """)
    subject = read(database)
    assert 100 < len(subject.details.moments) <= 120
    assert subject.details.moments[-1].elapsed_s == 80 + 17_919
    answered = points_of(find(subject, "Documents per second"))["answered"]
    assert sum(value * (end - begin) for (begin, value), (end, _) in pairwise(answered) if value) == pytest.approx(
        10 + 17_919
    ), "no answer is lost by drawing fewer points"
    assert len(render_page(subject)) < 500_000


class Page(HTMLParser):
    """What a browser would ask for, and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        """Note it."""
        self.text += data


def parse(html: str) -> Page:
    """A page as a parser sees it."""
    page = Page()
    page.feed(html)
    return page


def test_the_page_asks_nothing_of_any_network(database: Path) -> None:
    html = render_page(read(database))
    page = parse(html)
    forbidden = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a", "image", "video", "audio"}
    assert forbidden.isdisjoint(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in {"src", "href", "srcset", "action", "data", "poster", "background", "ping"}
        if name.endswith(":href"):
            assert value.startswith("#")
        if "url(" in value:
            assert set(re.findall(r"url\(([^)]?)", value)) == {"#"}, (tag, name, value)
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    addresses = set(re.findall(r"[a-z]+://[^\s\"'<>]+", html))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, "names of XML, not addresses"
    assert "default-src 'none'" in html


def test_the_page_is_accessible(database: Path) -> None:
    page = parse(render_page(read(database)))
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert ("html", "lang", "en") in page.attributes
    drawings = page.tags.count("svg")
    assert drawings == 12
    labels = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert len(labels) == drawings
    assert all(len(label) > 20 for label in labels)
    assert page.attributes.count(("svg", "role", "img")) == drawings
    assert page.tags.count("details") == drawings, "each has the table of its numbers"
    assert page.tags.count("h1") == 1


def test_names_are_untrusted_text(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\"'>{{ 7 * 7 }}$x$\u202e\x1b[31m"
    write_run(tmp_path / "a.duckdb", second_commits(), name=name)
    html = render_page(read(tmp_path / "a.duckdb"))
    page = parse(html)
    assert "script" not in page.tags
    assert "&lt;script&gt;alert(1)" in html
    assert "{{ 7 * 7 }}" in page.text
    assert "\u202e" not in html
    assert "\x1b" not in html


def test_no_text_of_prompts_answers_or_documents_is_shown(database: Path) -> None:
    html = render_page(read(database))
    for text in ("SECRET", "answer to", "half an ans", "cut at 3 tokens", "id-cut 1", "document 1"):
        assert text not in html
    assert "the-model" in html
    assert "sampling.max_tokens" in html


def test_the_files_are_html_and_png(database: Path, tmp_path: Path) -> None:
    with Reader.open(database) as reader:
        run = write_report(reader, "tickets", tmp_path / "a.HTML")
        assert str(run.run_id) in (tmp_path / "a.HTML").read_text(encoding="utf-8")
        write_report(reader, None, tmp_path / "a.png")
    pixels = imread(tmp_path / "a.png")
    assert pixels.shape[1] > 1_200
    assert float(pixels[..., :3].std()) > 0.05
    assert sorted(path.name for path in tmp_path.iterdir() if "a." in path.name) == ["a.HTML", "a.png"]


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.html.gz", ".html"])
def test_an_unknown_ending_is_refused_before_anything_is_read(database: Path, tmp_path: Path, name: str) -> None:
    with Reader.open(database) as reader:
        reader.close()
        with pytest.raises(JobError, match=r"must be \.html or \.png"):
            write_report(reader, None, tmp_path / name)


def test_a_target_that_cannot_be_written_is_said_and_leaves_nothing(database: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    with Reader.open(database) as reader:
        for target in (tmp_path / "none" / "a.html", tmp_path / "folder.html", Path("/proc/a.png")):
            with pytest.raises(JobError, match="cannot be written") as caught:
                write_report(reader, None, target)
            assert str(target) in str(caught.value)
    assert not list(tmp_path.glob(".*"))


def test_a_run_that_never_committed_is_no_report(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    run_id = write_run(database, [Told([], make_sample(1.0))], ends=False)
    for wanted in (None, str(run_id)):
        with pytest.raises(JobError, match=f"{run_id} .killed. has committed no outcome"):
            read(database, run_id=wanted)
    first = write_run(database, first_commits())
    newest = write_run(database, [Told([], make_sample(1.0))])
    subject = read(database)
    assert subject.details.run.run_id == first
    assert any(str(newest) in notice for notice in list_notices(subject)), "and it is said"
    with pytest.raises(JobError, match="has committed no outcome"):
        read(database, run_id=str(newest))


def test_a_run_is_named_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    first, second = make_known_database(database)
    assert read(database, run_id=str(first)).details.run.run_id == first
    assert read(database, run_id=first.hex).details.run.run_id == first
    length = next(n for n in range(1, 37) if str(first)[:n] != str(second)[:n])
    assert read(database, run_id=str(second)[:length].upper()).details.run.run_id == second
    if length > 1:
        with pytest.raises(JobError, match="more than one run"):
            read(database, run_id=str(first)[: length - 1])
    with pytest.raises(JobError, match=rf"no such run; the newest are {second} \(tickets\), {first}"):
        read(database, run_id="00000000-0000-4000-8000-000000000000")
    for odd in ("", "%", "x' or 1=1", "g", "0" * 99):
        with pytest.raises(JobError, match="--run"):
            read(database, run_id=odd)


def test_a_database_without_runs_and_a_job_without_one(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    Store.open(database).close()
    with pytest.raises(JobError, match="holds no run; `bulkinfer run` makes one"):
        read(database)
    make_known_database(database)
    with pytest.raises(JobError, match="holds no run of a job named 'other'"):
        read(database, name="other")


def test_an_end_that_only_the_status_file_tells_is_told(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    run_id = write_run(database, second_commits(), ends=False)
    told = {"run_id": str(run_id), "status": "failed", "exit_code": 4, "updated_at": "2026-01-02T03:09:05+00:00",
            "error": "the disk is full", "seconds": {"total": 300.0}}  # fmt: skip
    Path(f"{database}.status.json").write_bytes(orjson.dumps(told))
    subject = read(database)
    assert (subject.details.run.status, subject.details.run.exit_code) == ("failed", 4)
    page = render_page(subject)
    assert "failed (exit code 4)" in page
    assert "the disk is full" in page
    assert "5 min" in page


@pytest.mark.parametrize(
    ("since_result_s", "expected"), [(1.0, []), (None, []), (9.0, []), (35.0, [(19_965.0, 20_000.0)])]
)
def test_a_live_run_stalls_since_its_last_outcome_not_since_its_last_sample(
    database: Path, since_result_s: float | None, expected: list[tuple[float, float]]
) -> None:
    """Old runs are sampled once a minute."""
    subject = read(database)
    live = {"elapsed_s": 20_000.0, "documents": {"in_flight": 5}, "since_result_s": since_result_s}
    seen = replace(subject, live=live, details=replace(subject.details, silences=[]))
    assert [(stall.begin_s, stall.end_s) for stall in seen.stalls] == expected


def test_a_live_run_is_reported_through_its_socket(tmp_path: Path) -> None:
    database = tmp_path / "a.duckdb"
    first = write_run(database, first_commits())
    told = second_commits()
    store = Store.open(database, limits=CommitLimits(max_wait_s=60))
    record = RunRecord(uuid4(), "tickets", "/jobs/tickets.yaml", STARTED)
    store.begin_run(record, TASK, [make_file()], "body")
    store.samples.source = partial(tell, told[0].sample)
    store.status_source = lambda: {
        "run_id": str(record.run_id), "elapsed_s": 40.0, "documents": {"in_flight": 5}, "since_result_s": 30.0
    }  # fmt: skip
    store.listen(5.0)
    try:
        store.add(told[0].outcomes)
        store.flush()
        with open_reader(database) as reader:
            assert isinstance(reader, RemoteReader)
            subject = read_subject(reader, "tickets", None)
            write_report(reader, "tickets", tmp_path / "a.html")
            before = read_subject(reader, None, str(first))
    finally:
        store.close()
    assert subject.details.run.run_id == record.run_id
    assert subject.details.run.status == "running"
    assert subject.details.totals.num_succeeded == 5
    assert [(stall.begin_s, stall.end_s) for stall in subject.stalls] == [(10, 40)], "nothing came for 30 s until now"
    measures = {measure.label: measure.describe() for measure in measures_of(subject)}
    assert measures["duration"] == "40 s"
    assert measures["documents/s over the whole run"] == "0.125"
    assert subject.previous is not None
    assert subject.previous.run.run_id == first
    assert "The run goes on" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert before.details.run.status == "completed"
    assert before.live == {}
