"""The benchmarks' own parts: queues are what they say, figures are right, nothing is left behind. Nothing is timed."""

import json
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks import __main__ as suite
from benchmarks.drive import Driven, drive, make_request, make_requests
from benchmarks.figures import Spread, find_gaps, measure_noise, share_different, summarise
from benchmarks.machine import describe_machine
from benchmarks.measure import WrongAnswers, check_answers, find_missing, plan_noise, plan_queue
from benchmarks.peers.base import Answer, Command, Report, RunFailed
from benchmarks.peers.catalogue import PEERS, find_peer
from benchmarks.queues import Queue, create_queue, queue_names, write_queue
from benchmarks.results import Results, Run, Series
from benchmarks.simulated_order import (
    CONSTANT,
    ORDERS,
    PROPORTIONAL,
    WINDOWS,
    StepCost,
    find_makespan,
    make_lengths,
    measure,
    render_lines,
)
from benchmarks.steps import VARIANTS, Reading, Variant, keep_readings, load_readings, render_steps
from benchmarks.table import format_spread, render_gaps, render_goals, render_rows, write_between
from benchmarks.watch import run_watched

from bulkinfer.job import load_job
from bulkinfer.prompt import PromptTemplate
from bulkinfer.records import Document, Message, Origin
from tests.conftest import ROOT
from tests.engine_support import is_alive, simulated_spec, wait_until


@pytest.mark.parametrize("name", queue_names())
def test_a_queue_is_the_same_every_time_and_its_ids_differ(name: str) -> None:
    queue = create_queue(name)
    assert queue == create_queue(name)
    assert len({entry.document_id for entry in queue.entries}) == len(queue.entries) >= 100
    assert len(create_queue(name, 2).entries) == 2 * len(queue.entries)
    assert len(create_queue(name, 0.125).entries) < len(queue.entries)


@pytest.mark.parametrize(("name", "share"), [("reference", 0.10), ("equal", 0.20)])
def test_queues_with_equal_documents_hold_the_share_that_they_name(name: str, share: float) -> None:
    assert create_queue(name).share_equal == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("name", ["classification", "summaries", "groups", "tail", "tiny"])
def test_the_other_queues_have_no_equal_documents(name: str) -> None:
    assert create_queue(name).share_equal < 0.01


def test_the_reference_queue_is_the_one_of_the_goals() -> None:
    queue = create_queue("reference")
    lengths = [len(entry.text) for entry in queue.entries]
    assert (len(lengths), queue.max_tokens, queue.max_context_tokens) == (512, 32, 4096)
    assert 200 < min(lengths) <= max(lengths) <= 241


def test_summaries_spread_widely_and_groups_share_long_prefixes() -> None:
    lengths = sorted(len(entry.text) for entry in create_queue("summaries").entries)
    assert lengths[-1] > 4 * lengths[len(lengths) // 2] > 8 * lengths[0]
    groups = create_queue("groups").entries
    systems = {entry.system for entry in groups}
    assert len(systems) == 24
    assert min(map(len, systems)) > 1000
    neighbours = sum(one.system == other.system for one, other in pairwise(groups))
    assert neighbours < len(groups) / 8


@pytest.mark.parametrize("name", queue_names())
def test_bulkinfer_renders_the_messages_that_the_others_get(name: str, tmp_path: Path) -> None:
    queue = create_queue(name, 0.1)
    find_peer("bulkinfer").prepare(queue, tmp_path)
    spec = load_job(tmp_path / "job.yaml").spec
    assert spec.sampling.max_tokens == queue.max_tokens
    template = PromptTemplate.of(spec)
    for entry, conversation in zip(queue.entries, queue.conversations(), strict=True):
        fields = {"system": entry.system, "text": entry.text}
        messages = template.render(Document(Origin("documents.jsonl", 1, entry.document_id), fields))
        assert messages == tuple(Message(message["role"], message["content"]) for message in conversation)


def test_a_queue_is_written_with_a_row_for_each_entry(tmp_path: Path) -> None:
    queue = create_queue("tiny", 0.1)
    write_queue(queue, tmp_path / "documents.jsonl")
    assert len((tmp_path / "documents.jsonl").read_text().splitlines()) == len(queue.entries)


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer.name not in {"ray-data", "datatrove"}])
def test_every_peer_can_be_prepared(peer: object, tmp_path: Path) -> None:
    known = next(known for known in PEERS if known is peer)
    command = known.prepare(create_queue("tiny", 0.1), tmp_path)
    assert command.arguments[0] == sys.executable
    assert list(tmp_path.iterdir())


def test_peers_take_turns() -> None:
    queue, peers = create_queue("tiny", 0.1), [find_peer("bulkinfer"), find_peer("llm-chat"), find_peer("run-batch")]
    steps = list(plan_queue(queue, peers, lambda _, peer: 1 if peer == "run-batch" else 2))
    names = [step.peer.name for step in steps]
    assert names == ["bulkinfer", "llm-chat", "run-batch", "llm-chat", "bulkinfer"]
    noise = list(plan_noise(queue, peers[1], 2))
    assert [(step.peer.name, step.series) for step in noise] == [("llm-chat", Series.NOISE)] * 4


def test_an_answer_that_is_missing_or_doubled_is_found() -> None:
    queue = create_queue("tiny", 0.1)
    answers = tuple(Answer(entry.document_id, "x") for entry in queue.entries)
    check_answers(queue, Report(answers, output_tokens=len(answers)))
    for wrong in (answers[1:], (*answers, answers[0]), (*answers[1:], answers[1])):
        with pytest.raises(WrongAnswers, match="documents"):
            check_answers(queue, Report(wrong))
    with pytest.raises(WrongAnswers, match="max_tokens"):
        check_answers(queue, Report(answers, output_tokens=5 * len(answers)))


def test_a_command_is_watched_to_its_end(tmp_path: Path) -> None:
    watched = run_watched(Command((sys.executable, "-c", "print('x' * 3)")), tmp_path, 60)
    assert watched.stdout.strip() == "xxx"
    assert watched.wall_s > 0


def test_a_command_that_fails_says_what_it_said_last(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"exit code 3; it said last:\n.*alas"):
        run_watched(
            Command((sys.executable, "-c", "import sys; print('alas', file=sys.stderr); sys.exit(3)")), tmp_path, 60
        )


def test_a_command_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    sleep = "import time; time.sleep(600)"
    start = f"subprocess.Popen([sys.executable, '-c', {sleep!r}], start_new_session=True)"
    program = f"import subprocess, sys, time; print({start}.pid, flush=True); time.sleep(600)"
    with pytest.raises(RunFailed, match="not done within 3 s"):
        run_watched(Command((sys.executable, "-c", program)), tmp_path, 3)
    pid = int((tmp_path / "stdout.txt").read_text())
    wait_until(lambda: not is_alive(pid), 10)


def make_run(
    peer: str, number: int, wall_s: float, *, queue: str = "tiny", series: Series = Series.MAIN, suite: str = "1"
) -> Run:
    return Run(
        suite=suite,
        series=series,
        queue=queue,
        peer=peer,
        round=number,
        num_documents=100,
        num_distinct=90,
        wall_s=wall_s,
        peak_memory_bytes=3 << 30,
        prompt_tokens=1000,
        cached_tokens=250,
        output_tokens=400,
        engine_start_s=5.0,
        generate_s=wall_s / 2,
        full_step_share=0.9 if peer == "bulkinfer" else None,
    )


RUNS = [
    make_run("bulkinfer", 0, 10.0),
    make_run("llm-chat", 0, 15.0),
    make_run("bulkinfer", 1, 20.0),
    make_run("llm-chat", 1, 25.0),
    make_run("run-batch", 1, 60.0),
]


def test_ratios_are_taken_between_runs_of_one_round() -> None:
    ours, theirs, batch = summarise(RUNS, "bulkinfer")
    assert ours.times_slower == Spread(1.0, 1.0, 1.0)
    assert theirs.times_slower == Spread(1.375, 1.25, 1.5)
    assert batch.times_slower == Spread(3.0, 3.0, 3.0)
    assert theirs.tokens_ratio == Spread(1.375, 1.25, 1.5)
    assert (theirs.wall_s, theirs.num_runs, theirs.cached_share) == (Spread(20.0, 15.0, 25.0), 2, 0.25)


def test_runs_of_different_suites_are_not_compared() -> None:
    _, theirs = summarise([RUNS[0], make_run("llm-chat", 0, 12.0, suite="2")], "bulkinfer")
    assert theirs.wall_s == Spread(12.0, 12.0, 12.0)
    assert theirs.times_slower is None


def make_noise(number: int, wall_s: float, suite: str = "1") -> Run:
    return make_run("llm-chat", number, wall_s, series=Series.NOISE, suite=suite)


def test_noise_is_the_ratio_of_the_two_runs_of_a_pair_wherever_they_stand_in_the_file() -> None:
    runs = [make_noise(number, wall_s) for number, wall_s in enumerate((10.0, 8.0, 6.0, 8.0))]
    expected = {"tiny": Spread(1.0, 0.75, 1.25)}
    assert measure_noise([*RUNS, *runs]) == expected
    assert measure_noise([runs[2], runs[0], runs[3], *RUNS, runs[1]]) == expected
    assert len(summarise([*RUNS, *runs], "bulkinfer")) == 3


def test_half_a_pair_and_halves_of_two_suites_are_no_noise() -> None:
    assert measure_noise([make_noise(1, 10.0), make_noise(2, 5.0), make_noise(3, 4.0)]) == {
        "tiny": Spread(1.25, 1.25, 1.25)
    }
    assert measure_noise([make_noise(0, 10.0), make_noise(1, 5.0, suite="2")]) == {}


def test_what_is_missing_is_made_again_by_whole_turns() -> None:
    queue, peers = create_queue("tiny", 0.1), [find_peer("bulkinfer"), find_peer("llm-chat")]
    steps = [*plan_noise(queue, peers[1], 2), *plan_queue(queue, peers, lambda *_: 2)]
    runs = [make_run(step.peer.name, step.round, 1.0, queue=step.queue.name, series=step.series) for step in steps]
    assert find_missing(steps, runs) == []
    lost = {(Series.NOISE, "llm-chat", 2), (Series.MAIN, "bulkinfer", 1)}
    kept = [run for run in runs if (run.series, run.peer, run.round) not in lost]
    assert [(step.series, step.peer.name, step.round) for step in find_missing(steps, kept)] == [
        (Series.NOISE, "llm-chat", 2),
        (Series.NOISE, "llm-chat", 3),
        (Series.MAIN, "llm-chat", 1),
        (Series.MAIN, "bulkinfer", 1),
    ]


def test_answers_that_differ_are_counted() -> None:
    assert share_different({"1": "a", "2": "b"}, {"1": "a", "2": "c"}) == 0.5
    with pytest.raises(ValueError, match="different documents"):
        share_different({"1": "a"}, {"2": "a"})


def test_results_are_kept_and_dropped_by_queue_and_peer(tmp_path: Path) -> None:
    results = Results(tmp_path)
    noise = make_run("llm-chat", 0, 9.0, series=Series.NOISE)
    for run in (*RUNS, noise):
        results.add(run, [Answer("1", run.peer)])
    assert results.load() == [*RUNS, noise]
    assert results.load_answers(RUNS[1]) == {"1": "llm-chat"}
    results.drop({(Series.MAIN, "tiny", "llm-chat"), (Series.MAIN, "other", "bulkinfer")})
    assert results.load() == [run for run in RUNS if run.peer != "llm-chat"] + [noise]


COPY = "import json, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(json.dumps([*range(int(sys.argv[2]))]))"


@dataclass(frozen=True, slots=True)
class NumberedPeer:
    """Answers each document with its number, in a process of its own."""

    name: str
    num_missing: int = 0
    title: str = "numbered"

    def prepare(self, queue: Queue, folder: Path) -> Command:
        num_answers = len(queue.entries) - self.num_missing
        return Command((sys.executable, "-c", COPY, str(folder / "answers.json"), str(num_answers)))

    def read(self, queue: Queue, folder: Path, stdout: str) -> Report:
        numbers = json.loads((folder / "answers.json").read_text())
        texts = zip(queue.entries, numbers, strict=False)
        return Report(tuple(Answer(entry.document_id, str(number)) for entry, number in texts))


def run_suite(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str, num_missing: int = 0) -> int:
    peers = {name: NumberedPeer(name, num_missing) for name in ("bulkinfer", "llm-chat")}
    monkeypatch.setattr(suite, "find_peer", peers.__getitem__)
    monkeypatch.setattr(
        sys, "argv", ["benchmarks", "--quick", "--only", "tiny", "tail", "--results", str(folder), *more]
    )
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return suite.main()


def test_a_suite_measures_in_turns_and_resumes_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_suite(tmp_path, monkeypatch) == 0
    runs = Results(tmp_path).load()
    assert [(run.series, run.queue, run.peer) for run in runs] == [
        ("noise", "reference", "llm-chat"),
        ("noise", "reference", "llm-chat"),
        ("main", "tiny", "bulkinfer"),
        ("main", "tiny", "llm-chat"),
        ("main", "tail", "bulkinfer"),
        ("main", "tail", "llm-chat"),
    ]
    assert "tiny 0.0%, tail 0.0%" in capsys.readouterr().out
    Results(tmp_path).drop({(Series.MAIN, "tail", "bulkinfer")})
    assert run_suite(tmp_path, monkeypatch, "--resume") == 0
    again = Results(tmp_path).load()
    kept = [run for run in runs if run.queue != "tail"]
    assert [run for run in again if run.queue != "tail"] == kept
    assert not [run for run in again if run.queue == "tail" and run in runs]  # the whole turn was made again
    assert len(again) == len(runs)
    assert len({run.suite for run in again}) == 1
    assert (tmp_path / "performance.png").exists()


def test_a_suite_goes_on_after_a_peer_that_loses_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_suite(tmp_path, monkeypatch, "--noise-pairs", "0", num_missing=1) == 1
    assert capsys.readouterr().out.count("FAILED: 80 documents, 79 answers: 1 missing, 0 doubled") == 2
    assert Results(tmp_path).load() == []


def test_the_table_shows_medians_and_ranges() -> None:
    table = render_rows(summarise(RUNS, "bulkinfer"), {"llm-chat": "LLM.chat"})
    head, line, *rows = table.splitlines()
    assert {text.count("|") for text in (head, line, *rows)} == {12}
    assert "| tiny | LLM.chat | 20.0 (15.0-25.0) | 1.38 (1.25-1.50) | 10.0 (7.5-12.5) |" in table
    assert [row.split("|")[9].strip() for row in (head, *rows)] == ["steps full", "0.90", "-", "-"]
    assert format_spread(None, 1) == "-"


def test_rows_with_fewer_runs_than_planned_are_marked() -> None:
    planned = {("tiny", "bulkinfer"): 2, ("tiny", "run-batch"): 3, ("tail", "bulkinfer"): 1}
    rows = summarise(RUNS, "bulkinfer", planned)
    table = render_rows(rows, {}).splitlines()
    assert [line.split("|")[-2].strip() for line in table[2:]] == ["2", "2", "1 of 3"]
    gaps = find_gaps(rows, planned)
    assert gaps == {("tiny", "run-batch"): 2, ("tail", "bulkinfer"): 1}
    assert render_gaps(gaps, {}, 1) == "Runs that are missing: tiny, run-batch: 2; tail, bulkinfer: 1."
    assert render_gaps({}, {}, 1) == ""
    assert "2 occasions" in render_gaps({}, {}, 2)


def test_a_page_does_not_lose_the_queues_that_were_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "performance.md"
    page.write_text("<!-- figures: begin -->\nold\n<!-- figures: end -->\n")
    monkeypatch.setattr(suite, "PAGE", page)
    for run in RUNS:
        Results(tmp_path).add(run, [])
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--report-only", "--only", "tiny", "--results", str(tmp_path)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert suite.main() == 1
    assert "no runs of classification, equal" in capsys.readouterr().out
    assert "\nold\n" in page.read_text()


def test_goals_are_told_for_what_was_run() -> None:
    table = render_goals(summarise([*RUNS, *(replace(run, queue="reference") for run in RUNS)], "bulkinfer"))
    assert table.splitlines()[2:] == [
        "| reference: wall time of run-batch, times bulkinfer's | 4.5 | 3.00 |",
        "| reference: wall time of the tuned script, times bulkinfer's | above 1 | 1.38 (1.25-1.50) |",
        "| tiny: bulkinfer's output tokens/s while generating, times the tuned script's | 1.00 | 1.38 (1.25-1.50) |",
    ]
    assert render_goals(summarise(RUNS[:1], "bulkinfer")) == ""


def test_figures_stand_between_their_markers_and_nowhere_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nb\n")
    write_between(page, "figures", "new\n")
    write_between(page, "figures", "newer")
    assert page.read_text() == "a\n<!-- figures: begin -->\nnewer\n<!-- figures: end -->\nb\n"
    with pytest.raises(ValueError, match="steps: begin"):
        write_between(page, "steps", "x")


@pytest.mark.parametrize("name", ["figures", "peers", "steps", "simulated"])
def test_the_page_has_a_place_for_every_table(name: str, tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"), encoding="utf-8")
    write_between(page, name, "here")
    assert "\nhere\n" in page.read_text()


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    from benchmarks.plot import draw_walls

    others = [replace(run, queue=queue) for run in RUNS for queue in ("reference", "tail")]
    draw_walls(summarise([*RUNS, *others], "bulkinfer"), {}, "bulkinfer", tmp_path / "walls.png")
    assert (tmp_path / "walls.png").read_bytes().startswith(b"\x89PNG")


def test_the_machine_is_named() -> None:
    assert "cores" in describe_machine()
    assert "duckdb" in describe_machine()
    assert platform.release() not in describe_machine()


STEP_S = 0.02


def drive_lengths(lengths: Sequence[int], num_slots: int) -> Driven:
    """Through the simulated engine, which answers with 1 + (the first four bytes of the hash) % max_tokens tokens."""
    spec = simulated_spec(
        max_concurrency=num_slots,
        max_tokens=1024,
        max_context_tokens=4096,
        clock="virtual",
        seconds_per_prompt_token=0,
        seconds_per_output_token=STEP_S,
    )
    requests = []
    for number, output_tokens in enumerate(lengths):
        request = make_request(str(number), (Message("user", "x"),))
        requests.append(
            replace(request, document_hash=(output_tokens - 1).to_bytes(4, "big") + request.document_hash[4:])
        )
    return drive(spec, requests, 2 * num_slots)


@pytest.fixture(scope="module")
def driven() -> Driven:
    """A small queue through the simulated engine."""
    return drive_lengths([one.output_tokens for one in make_lengths(60, 0.0, 1)], 8)


def test_the_simulation_takes_as_long_as_the_simulated_engine() -> None:
    queue = make_lengths(400, 0.5, 1)
    found = drive_lengths([one.output_tokens for one in queue], 16)
    assert found.num_documents == 400
    assert found.output_tokens == sum(one.output_tokens for one in queue)
    assert found.makespan_s == pytest.approx(find_makespan(queue, StepCost("", STEP_S, 0.0), 16), rel=1e-6)


def test_only_lengths_that_nobody_knows_beat_the_longest_prompt_first() -> None:
    few = WINDOWS[0]
    independent, correlated = measure(CONSTANT, 0.0, few).ratios, measure(CONSTANT, 0.9, few).ratios
    assert independent["predicted from the prompt"] == correlated["predicted from the prompt"] == 1.0
    assert independent["answers known"] < independent["answers guessed"] < 0.9
    assert correlated["shuffled"] > 1.2


def test_where_a_step_costs_by_its_sequences_no_order_matters() -> None:
    line = measure(PROPORTIONAL, 0.5, WINDOWS[0])
    assert line.ratios == pytest.approx(dict.fromkeys(ORDERS, 1.0))
    assert render_lines([line]).splitlines()[2].startswith("| by sequences | 0.5 | 8 | 1.000 |")


def test_the_page_shows_what_the_simulation_gives() -> None:
    row = render_lines([measure(CONSTANT, 0.9, WINDOWS[0])]).splitlines()[2]
    assert row in (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_variant_changes_the_order_and_loses_nothing(variant: Variant) -> None:
    requests = make_requests(create_queue("groups"), is_distinct=True)
    ordered = variant.order(requests)
    assert sorted(request.document_hash for request in ordered) == sorted(r.document_hash for r in requests)
    systems = [request.messages[0].content for request in ordered]
    num_changes = sum(one != other for one, other in pairwise(systems))
    is_grouped = variant.name not in {"file order", "longest first, not grouped"}
    assert (num_changes == 23) == is_grouped


def test_equal_documents_are_asked_once_or_each_time() -> None:
    queue = create_queue("equal")
    assert len(make_requests(queue, is_distinct=True)) == queue.num_distinct
    hashes = {request.document_hash for request in make_requests(queue, is_distinct=False)}
    assert len(hashes) == len(queue.entries)


def test_steps_are_compared_with_all_of_them(driven: Driven) -> None:
    slower = replace(driven, makespan_s=2 * driven.makespan_s)
    names = [variant.name for variant in VARIANTS]
    table = render_steps([Reading("tail", names[0], 0, driven), Reading("tail", "file order", 0, slower)])
    assert "| 1.00 |" in table.splitlines()[2]
    assert "| 2.00 |" in table.splitlines()[3]


def test_readings_of_one_queue_are_renewed_and_others_kept(tmp_path: Path, driven: Driven) -> None:
    path = tmp_path / "folder" / "steps.json"
    tail, small, new = (Reading(name, "all steps", 0, driven) for name in ("tail", "groups, small KV cache", "tail"))
    keep_readings(path, "tail", [tail, tail])
    keep_readings(path, "groups, small KV cache", [small])
    keep_readings(path, "tail", [new])
    assert load_readings(path) == [small, new]
