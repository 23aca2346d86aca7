"""One contract for all engines: what the runner may rely on, whatever is behind the port."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from bulkinfer.engines import create_engine
from bulkinfer.engines.base import Engine
from bulkinfer.engines.child import ChildEngine
from bulkinfer.errors import EngineDied, EngineError, JobError
from bulkinfer.records import (
    Aborted,
    Completion,
    EngineEvent,
    EngineStats,
    FailureCode,
    ImageFile,
    JsonValue,
    Message,
    Rejection,
    Request,
    write_image_key,
)
from tests.engine_support import (
    FREE,
    collect_outcomes,
    is_alive,
    make_request,
    poll_until_error,
    select_outcomes,
    simulated_spec,
    start_and_wait,
    vllm_spec,
    wait_until,
)


@pytest.fixture(scope="module")
def loaded_vllm() -> Iterator[Engine]:
    """One vLLM for the whole module: loading takes longer than all the tests."""
    engine = create_engine(vllm_spec())
    start_and_wait(engine)
    yield engine
    engine.close()


@pytest.fixture(params=["local", "child", pytest.param("vllm", marks=pytest.mark.engine)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each kind of engine, ready for requests. 4 slots, 512 tokens of context, 8 tokens for an answer."""
    if request.param == "vllm":
        yield request.getfixturevalue("loaded_vllm")
        return
    engine = create_engine(simulated_spec(in_child=request.param == "child"))
    start_and_wait(engine)
    yield engine
    engine.close()


def create_child(
    *, silence_timeout_s: float = 30, start_timeout_s: float = 30, log_path: Path | None = None, **arguments: JsonValue
) -> ChildEngine:
    spec = replace(simulated_spec(), arguments=FREE | {"in_child": True} | arguments)
    return ChildEngine(spec, start_timeout_s=start_timeout_s, silence_timeout_s=silence_timeout_s, log_path=log_path)


@pytest.fixture
def child() -> Iterator[ChildEngine]:
    """A simulated engine in a child process, ready."""
    engine = create_child()
    start_and_wait(engine)
    yield engine
    engine.close()


def get_pid(engine: ChildEngine) -> int:
    assert engine.pid is not None
    return engine.pid


def test_each_request_comes_back_exactly_once(engine: Engine) -> None:
    requests = [make_request(f"What is {number} plus {number}?") for number in range(30)]
    engine.submit(requests[:20])
    engine.submit(requests[20:])
    outcomes = collect_outcomes(engine, 30)
    assert select_outcomes(engine.poll(0.2)) == []
    assert sorted(outcome.document_hash for outcome in outcomes) == sorted(one.document_hash for one in requests)
    for outcome in outcomes:
        assert isinstance(outcome, Completion)
        assert 1 <= outcome.output_tokens <= 8
        assert outcome.prompt_tokens > 4
        assert 0 <= outcome.queue_s <= outcome.first_token_s <= outcome.total_s < 60


def test_a_prompt_that_is_too_long_is_rejected_and_disturbs_no_other(engine: Engine) -> None:
    engine.submit([make_request("a"), make_request("long", "word " * 3000), make_request("b")])
    by_hash = {outcome.document_hash: outcome for outcome in collect_outcomes(engine, 3)}
    rejection = by_hash[make_request("long").document_hash]
    assert isinstance(rejection, Rejection)
    assert rejection.code is FailureCode.PROMPT_TOO_LONG
    assert rejection.prompt_tokens is not None
    assert rejection.prompt_tokens >= 3000
    assert f"prompt of {rejection.prompt_tokens} tokens + max_tokens 8" in rejection.message
    assert rejection.message.endswith("exceeds limits.max_context_tokens 512")
    assert isinstance(by_hash[make_request("a").document_hash], Completion)
    assert isinstance(by_hash[make_request("b").document_hash], Completion)


def test_no_message_quotes_the_prompt(engine: Engine) -> None:
    engine.submit([make_request("long", "confidential " * 3000)])
    (rejection,) = collect_outcomes(engine, 1)
    assert isinstance(rejection, Rejection)
    assert "confidential" not in rejection.message


def test_an_aborted_request_is_forgotten(engine: Engine) -> None:
    requests = [make_request(f"abort {number}") for number in range(12)]
    engine.submit(requests)
    engine.abort([request.document_hash for request in requests])
    engine.abort([b"unknown"])
    engine.submit([make_request("after")])
    seen: set[bytes] = set()
    while make_request("after").document_hash not in seen:
        seen.update(outcome.document_hash for outcome in collect_outcomes(engine, 1))
    assert select_outcomes(engine.poll(0.2)) == []


@pytest.fixture(params=["local", "child", pytest.param("vllm", marks=pytest.mark.engine)])
def slow_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The same, but an answer takes its time in each of them."""
    if request.param == "vllm":
        yield request.getfixturevalue("loaded_vllm")
        return
    engine = create_engine(
        simulated_spec(in_child=request.param == "child", seconds_per_output_token=0.01, output_tokens=1000)
    )
    start_and_wait(engine)
    yield engine
    engine.close()


def test_an_abort_is_acknowledged_and_frees_what_was_dropped(slow_engine: Engine) -> None:
    requests = [
        replace(make_request(f"Count from {number} to one thousand."), sampling={"max_tokens": 400})
        for number in range(9)
    ]
    hashes = {request.document_hash for request in requests}
    events: list[EngineEvent] = []

    def read(kind: type[EngineEvent]) -> list[EngineEvent]:
        events.extend(slow_engine.poll(0.05))
        return [event for event in events if isinstance(event, kind)]

    slow_engine.submit(requests)
    wait_until(lambda: any(isinstance(one, EngineStats) and one.num_active == 4 for one in read(EngineStats)), 30)
    busy = [event for event in events if isinstance(event, EngineStats)][-1]
    assert 0 <= busy.num_free_kv_blocks < busy.num_kv_blocks
    assert busy.kv_cache_usage > 0
    slow_engine.abort([*hashes, b"unknown"])
    wait_until(lambda: bool(read(Aborted)), 30)
    at = next(index for index, event in enumerate(events) if isinstance(event, Aborted))
    finished = {outcome.document_hash for outcome in select_outcomes(events[:at])}
    before, aborted, after = events[at - 1 : at + 2]
    assert isinstance(before, EngineStats)
    assert isinstance(aborted, Aborted)
    assert isinstance(after, EngineStats)
    assert after.num_steps == before.num_steps
    assert before.num_active + before.num_waiting == len(aborted.document_hashes)
    assert len(aborted.document_hashes) >= 5
    assert set(aborted.document_hashes) == hashes - finished
    assert (after.num_active, after.num_waiting, after.kv_cache_usage) == (0, 0, 0.0)
    assert after.num_free_kv_blocks == after.num_kv_blocks
    assert after.num_aborted - before.num_aborted == len(aborted.document_hashes)
    assert select_outcomes([*events[at:], *slow_engine.poll(0.1)]) == []


def test_each_answer_has_at_most_its_own_max_tokens(slow_engine: Engine) -> None:
    wanted = {f"Tell a long story of {number} children.": number for number in (1, 2, 12)}
    requests = [replace(make_request(name), sampling={"max_tokens": number}) for name, number in wanted.items()]
    slow_engine.submit([*requests, make_request("Tell a long story.")])
    by_hash = {outcome.document_hash: outcome for outcome in collect_outcomes(slow_engine, 4)}
    expected = {make_request(name).document_hash: number for name, number in wanted.items()}
    expected[make_request("Tell a long story.").document_hash] = 8
    for document_hash, number in expected.items():
        outcome = by_hash[document_hash]
        assert isinstance(outcome, Completion)
        assert (outcome.output_tokens, outcome.finish_reason) == (number, "length")


def test_a_max_tokens_that_is_none_is_one_rejection(slow_engine: Engine) -> None:
    slow_engine.submit(
        [
            replace(make_request("none"), sampling={"max_tokens": 0}),
            replace(make_request("one"), sampling={"max_tokens": 1}),
        ]
    )
    by_hash = {outcome.document_hash: outcome for outcome in collect_outcomes(slow_engine, 2)}
    rejection = by_hash[make_request("none").document_hash]
    assert isinstance(rejection, Rejection)
    assert rejection.code is FailureCode.ENGINE_REJECTED
    assert isinstance(by_hash[make_request("one").document_hash], Completion)


def test_a_submit_of_nothing_does_nothing(engine: Engine) -> None:
    engine.submit([])
    assert select_outcomes(engine.poll(0.1)) == []


def test_the_last_reading_shows_an_engine_at_rest(engine: Engine) -> None:
    engine.submit([make_request("rest")])
    readings: list[EngineStats] = []

    def is_at_rest() -> bool:
        readings.extend(event for event in engine.poll(0.1) if isinstance(event, EngineStats))
        return bool(readings) and readings[-1].num_active == 0

    wait_until(is_at_rest, 10)
    assert (readings[-1].num_waiting, readings[-1].kv_cache_usage) == (0, 0.0)
    assert readings[-1].num_steps > 0
    assert readings[-1].num_output_tokens > 0
    engine.poll(0.1)


def test_the_counts_of_steps_come_with_the_last_outcome(engine: Engine) -> None:
    before = read_steps(engine, ["steps before"])
    after = read_steps(engine, [f"steps {number}" for number in range(12)])  # 4 slots
    assert 0 < after.num_full_steps - before.num_full_steps <= after.num_steps - before.num_steps
    assert after.num_full_steps <= after.num_fed_steps <= after.num_steps
    assert after.idle_s >= before.idle_s >= 0
    assert after.num_computed_prompt_tokens > before.num_computed_prompt_tokens > 0
    assert after.num_context_tokens > before.num_context_tokens
    assert after.busy_s >= before.busy_s >= 0


def read_steps(engine: Engine, names: list[str]) -> EngineStats:
    """Run requests; the reading that came with the last outcome."""
    engine.submit([make_request(name) for name in names])
    events: list[EngineEvent] = []
    until_s = time.monotonic() + 60
    while len(select_outcomes(events)) < len(names):
        assert time.monotonic() < until_s
        events += engine.poll(0.5)
    return [event for event in events if isinstance(event, EngineStats)][-1]


def test_the_clock_moves_forward(engine: Engine) -> None:
    before_s = engine.now()
    engine.poll(0.01)
    assert engine.now() >= before_s


@pytest.mark.parametrize("in_child", [False, True])
def test_close_works_in_any_state(in_child: bool) -> None:
    engine = create_engine(simulated_spec(in_child=in_child))
    engine.close()
    engine.start()
    engine.close()
    engine.close()
    start_and_wait(engine)
    engine.submit([make_request("a")])
    engine.close()
    with pytest.raises(EngineError, match="not started"):
        engine.poll(0.0)


@pytest.mark.parametrize("in_child", [False, True])
@pytest.mark.parametrize("kind", ["die", "raise"])
def test_a_death_is_reported_and_a_new_start_works(in_child: bool, kind: str) -> None:
    fault: JsonValue = {"match": "BAD", "kind": kind, "times": 1}
    engine = create_engine(simulated_spec(in_child=in_child, faults=[fault]))
    start_and_wait(engine)
    engine.submit([make_request("a", "BAD")])
    assert isinstance(poll_until_error(engine, 10), EngineDied)
    start_and_wait(engine)
    engine.submit([make_request("a", "BAD")])
    assert isinstance(collect_outcomes(engine, 1)[0], Completion)
    engine.close()


def test_a_killed_child_is_an_exit_code(child: ChildEngine) -> None:
    os.kill(get_pid(child), signal.SIGKILL)
    error = poll_until_error(child, 10)
    assert isinstance(error, EngineDied)
    assert str(error).startswith("the engine ended: killed by SIGKILL")
    wait_until(lambda: not is_alive(get_pid(child)), 5)
    with pytest.raises(EngineDied, match="not running"):
        child.submit([make_request("a")])


def test_what_finished_before_the_death_still_arrives() -> None:
    fault: JsonValue = {"match": "BAD", "kind": "die"}
    spec = simulated_spec(max_concurrency=1, in_child=True, seconds_per_output_token=0.001, faults=[fault])
    engine = create_engine(spec)
    start_and_wait(engine)
    engine.submit([make_request("good"), make_request("BAD")])
    (outcome,) = collect_outcomes(engine, 1)
    assert outcome.document_hash == make_request("good").document_hash
    assert isinstance(poll_until_error(engine, 10), EngineDied)
    engine.close()


def test_a_submit_to_a_child_that_has_just_died_is_reported_by_poll(child: ChildEngine) -> None:
    child.submit([make_request("a")])
    pid = get_pid(child)
    # Its answer is on the way when it dies.
    wait_until(lambda: not child.poll(0.0), 5)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), 5)
    child.submit([make_request("b")])
    assert str(poll_until_error(child, 10)).startswith("the engine ended: killed by SIGKILL")


def test_an_engine_that_raises_says_what_but_never_quotes() -> None:
    engine = create_child(faults=[{"match": "BAD", "kind": "raise"}])
    start_and_wait(engine)
    engine.submit([make_request("a", "BAD secret")])
    said = str(poll_until_error(engine, 10))
    assert re.fullmatch(r"the engine ended: exit code 3: ScriptedFaultError at .*, simulated\.py:\d+ _end", said), (
        "what and where, and nothing of the request"
    )
    engine.close()


def test_a_child_that_hangs_is_killed_when_its_time_is_up() -> None:
    engine = create_child(silence_timeout_s=0.5, faults=[{"match": "BAD", "kind": "hang"}])
    start_and_wait(engine)
    pid = get_pid(engine)
    engine.submit([make_request("a", "BAD")])
    error = poll_until_error(engine, 15)
    assert isinstance(error, EngineDied)
    assert str(error) == "the engine gave no sign of life for 0.5 s"
    assert not is_alive(pid)
    engine.close()


def test_a_step_that_hangs_ends_the_child_and_says_where(tmp_path: Path) -> None:
    spec = replace(simulated_spec(in_child=True, faults=[{"match": "BAD", "kind": "hang"}]), step_timeout_s=0.3)
    log_path = tmp_path / "engine.log"
    engine = ChildEngine(spec, start_timeout_s=30, silence_timeout_s=60, log_path=log_path)
    start_and_wait(engine)
    engine.submit([make_request("a", "BAD secret")])
    error = poll_until_error(engine, 30)
    assert isinstance(error, EngineDied)
    assert "one engine step took more than 0.3 s" in str(error)
    assert str(error).endswith(f"; its log: {log_path}")
    log = log_path.read_text()
    assert "simulated.py" in log
    assert "in step" in log
    assert "secret" not in log
    engine.close()


def test_steps_within_their_limit_may_go_on_for_long() -> None:
    """Eight steps of half a second are more than the limit together, and each far below it."""
    simulated = simulated_spec(in_child=True, seconds_per_output_token=0.5, output_tokens=8)
    spec = replace(simulated, step_timeout_s=3)
    engine = ChildEngine(spec, start_timeout_s=30, silence_timeout_s=60)
    start_and_wait(engine)
    engine.submit([make_request("a"), make_request("b")])
    assert {type(outcome) for outcome in collect_outcomes(engine, 2)} == {Completion}
    engine.close()


def test_a_crash_in_native_code_names_its_signal_and_leaves_its_place_in_the_log(tmp_path: Path) -> None:
    spec = simulated_spec(in_child=True, faults=[{"match": "BAD", "kind": "crash"}])
    engine = ChildEngine(spec, start_timeout_s=30, silence_timeout_s=60, log_path=tmp_path / "engine.log")
    start_and_wait(engine)
    engine.submit([make_request("a", "BAD secret")])
    assert str(poll_until_error(engine, 30)).startswith("the engine ended: killed by SIGSEGV")
    log = (tmp_path / "engine.log").read_text()
    assert "Segmentation fault" in log
    assert "secret" not in log
    engine.close()


def test_a_child_that_is_killed_while_it_loads_may_be_tried_again() -> None:
    engine = create_child(engine_start_s=60)
    engine.start()
    os.kill(get_pid(engine), signal.SIGKILL)
    error = poll_until_error(engine, 15)
    assert isinstance(error, EngineDied)
    assert str(error).startswith("the engine did not start: killed by SIGKILL")
    engine.close()


def test_the_log_is_the_owners_and_begins_with_the_first_start(tmp_path: Path) -> None:
    log_path = tmp_path / "engine.log"
    log_path.write_text("of the run before\n")
    engine = ChildEngine(simulated_spec(in_child=True), start_timeout_s=30, silence_timeout_s=60, log_path=log_path)
    start_and_wait(engine)
    assert log_path.stat().st_mode & 0o777 == 0o600
    assert log_path.read_text() == ""
    log_path.write_text("of the first life\n")
    start_and_wait(engine)
    assert log_path.read_text() == "of the first life\n"
    engine.close()


def test_a_stopped_child_is_killed_when_its_time_is_up() -> None:
    engine = create_child(silence_timeout_s=0.5)
    start_and_wait(engine)
    os.kill(get_pid(engine), signal.SIGSTOP)
    engine.submit([make_request("a")])
    assert isinstance(poll_until_error(engine, 15), EngineDied)
    engine.close()


def test_an_idle_child_may_be_silent() -> None:
    engine = create_child(silence_timeout_s=0.05)
    start_and_wait(engine)
    for _ in range(5):
        engine.poll(0.1)
    engine.submit([make_request("a")])
    assert isinstance(collect_outcomes(engine, 1)[0], Completion)
    engine.close()


def test_a_child_that_does_not_get_ready_is_killed() -> None:
    engine = create_child(start_timeout_s=1, engine_start_s=60)
    engine.start()
    pid = get_pid(engine)
    error = poll_until_error(engine, 15)
    assert not isinstance(error, EngineDied)
    assert str(error).startswith("the engine was not ready within 1 s")
    assert not is_alive(pid)
    engine.close()


def test_a_wrong_engine_argument_is_the_jobs_fault_also_from_the_child() -> None:
    spec = replace(simulated_spec(), kind="other")
    engine = ChildEngine(spec, start_timeout_s=30, silence_timeout_s=30)
    engine.start()
    with pytest.raises(JobError, match="expected vllm or simulated, found 'other'"):
        start_and_wait(engine)
    engine.close()


@pytest.mark.engine
def test_a_model_folder_that_is_none_is_named(tmp_path: Path) -> None:
    engine = ChildEngine(replace(vllm_spec(), model=str(tmp_path)), start_timeout_s=60, silence_timeout_s=60)
    engine.start()
    error = poll_until_error(engine, 60)
    assert not isinstance(error, EngineDied)
    assert str(error).startswith("the engine did not start: exit code 3: ")
    assert str(tmp_path) in str(error)
    engine.close()


def test_half_a_surrogate_pair_is_one_rejection(child: ChildEngine) -> None:
    child.submit([make_request("a", "\ud800"), make_request("b")])
    by_hash = {outcome.document_hash: outcome for outcome in collect_outcomes(child, 2)}
    rejection = by_hash[make_request("a").document_hash]
    assert isinstance(rejection, Rejection)
    assert rejection.code is FailureCode.ENGINE_REJECTED
    assert isinstance(by_hash[make_request("b").document_hash], Completion)


def test_a_long_queue_of_large_requests_does_not_block(child: ChildEngine) -> None:
    large = [replace(make_request(f"{number}"), messages=(Message("user", "x" * 1_000_000),)) for number in range(30)]
    child.submit(large)
    outcomes = collect_outcomes(child, 30)
    assert {type(outcome) for outcome in outcomes} == {Rejection}


def test_the_childs_memory_is_its_own(child: ChildEngine) -> None:
    child.submit([make_request("a")])
    memory_bytes = 0

    def has_reading() -> bool:
        nonlocal memory_bytes
        memory_bytes = next((e.memory_bytes for e in child.poll(0.1) if isinstance(e, EngineStats)), 0)
        return memory_bytes > 0

    wait_until(has_reading, 10)
    assert 5_000_000 < memory_bytes < 200_000_000


def test_the_log_is_private_and_grows(tmp_path: Path) -> None:
    log_path = tmp_path / "engine.log"
    engine = create_child(log_path=log_path, faults=[{"match": "BAD", "kind": "raise"}])
    for _ in range(2):
        start_and_wait(engine)
        engine.submit([make_request("a", "BAD secret")])
        poll_until_error(engine, 10)
    engine.close()
    log = log_path.read_text()
    assert log.count("ScriptedFaultError at ") == 2
    assert "secret" not in log
    other_path = tmp_path / "new.log"
    engine = create_child(log_path=other_path)
    engine.start()
    engine.close()
    assert other_path.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    engine = create_child(log_path=tmp_path / "missing" / "engine.log")
    with pytest.raises(EngineError, match=r"missing/engine\.log"):
        engine.start()
    engine.close()


PARENT = """
import sys
from bulkinfer.engines import create_engine
from tests.engine_support import simulated_spec, start_and_wait
engine = create_engine(simulated_spec(in_child=True))
start_and_wait(engine)
print(engine.pid, flush=True)
sys.stdin.read()
"""


def test_a_child_does_not_outlive_a_killed_parent() -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
        wait_until(lambda: not is_alive(pid), 5)


def test_a_file_in_the_working_directory_does_not_hide_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    engine = create_child()
    start_and_wait(engine)
    engine.close()


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def make_request_with_image(name: str, path: Path, content: bytes = PNG) -> Request:
    file = ImageFile(write_image_key(sha256(content).digest()), str(path), len(content))
    asked = make_request(name)
    (message,) = asked.messages
    return replace(
        asked,
        messages=(replace(message, images=(file.key, file.key)),),
        image_files={file.key: file},
        num_image_chars=2 * file.num_chars,
    )


@pytest.mark.parametrize("in_child", [True, False])
def test_images_are_read_on_the_way_and_one_that_changed_fails_alone(in_child: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    engine = create_engine(replace(simulated_spec(max_context_tokens=2048, in_child=in_child), has_images=True))
    try:
        start_and_wait(engine)
        asked = [make_request_with_image(f"{number}", path) for number in range(20)]
        engine.submit([*asked, make_request_with_image("changed", path, PNG[:-1] + b"x")])
        engine.submit([make_request("without")])
        by_hash = {outcome.document_hash: outcome for outcome in collect_outcomes(engine, 22)}
        for request in asked:
            outcome = by_hash[request.document_hash]
            assert isinstance(outcome, Completion)
            assert outcome.prompt_tokens >= 512, "the engine was given both images"
        changed = by_hash[make_request("changed").document_hash]
        assert isinstance(changed, Rejection)
        assert changed.code is FailureCode.INVALID_FIELD
        assert changed.message.endswith("image 1: the file changed while the run was using it; run again")
        assert isinstance(by_hash[make_request("without").document_hash], Completion)
    finally:
        engine.close()


def test_a_child_that_dies_while_it_is_sent_images_is_a_death(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    spec = replace(simulated_spec(), arguments=FREE | {"in_child": True}, has_images=True)
    engine = ChildEngine(spec, start_timeout_s=30, silence_timeout_s=30)
    try:
        start_and_wait(engine)
        os.kill(get_pid(engine), signal.SIGKILL)
        engine.submit([make_request_with_image("a", path)])
        assert isinstance(poll_until_error(engine, 30), EngineDied)
        with pytest.raises(EngineDied, match="the engine is not running"):
            engine.submit([make_request_with_image("b", path)])
        start_and_wait(engine)
        engine.submit([make_request_with_image("a", path)])
        (outcome,) = collect_outcomes(engine, 1)
        assert isinstance(outcome, Completion | Rejection)
    finally:
        engine.close()
