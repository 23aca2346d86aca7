"""What an estimate rests on, that its bounds hold, and that there is none from nothing."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.engines import create_engine
from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.simulated import estimate_prompt_tokens
from bulkinfer.engines.simulated_forecast import cost_of
from bulkinfer.records import Completion, EngineReady, JsonValue, Message, Origin, Request
from bulkinfer.runner.estimate import Basis, Work, estimate_from_runs
from bulkinfer.store import PastRun
from tests.engine_support import collect_outcomes, start_and_wait

RUN = PastRun(
    run_id=UUID("aaaaaaaa-1111-1111-1111-111111111111"),
    started_at="2026-01-02 03:04:05",
    prompt_tokens=100_000,
    output_tokens=20_000,
    num_answered=1_000.0,
    generate_s=100.0,
    engine_start_s=12.0,
)
NOTHING = (0, 0.0)


def test_without_a_run_there_is_no_number_but_a_command() -> None:
    found = estimate_from_runs(Work(1_000, 50_000), [], NOTHING, 32, "job.yaml")
    assert found.basis is Basis.NONE
    assert (found.output_tokens, found.low_s, found.high_s, found.engine_start_s) == (None, None, None, None)
    assert found.advice == "bulkinfer run job.yaml --limit 200"


def test_answers_without_an_ended_run_give_tokens_but_no_time() -> None:
    found = estimate_from_runs(Work(1_000, 50_000), [], (50, 12.5), 32, "job.yaml")
    assert (found.basis, found.output_tokens, found.low_s) == (Basis.NONE, 12_500, None)


def test_the_same_mix_of_tokens_takes_the_time_in_proportion() -> None:
    found = estimate_from_runs(Work(2_000, 200_000), [RUN], NOTHING, 32, "job.yaml")
    assert (found.basis, found.output_tokens) == (Basis.EARLIER_RUNS, 40_000)
    assert (found.low_s, found.high_s, found.engine_start_s) == (200.0, 200.0, 12.0)
    assert found.runs == (str(RUN.run_id),)
    assert found.reason == "1,000 answers of the run aaaaaaaa of 2026-01-02 03:04"
    assert found.advice == ""


def test_where_nothing_is_written_prompts_and_documents_bound_the_time() -> None:
    run = replace(RUN, output_tokens=0)
    found = estimate_from_runs(Work(2_000, 100_000), [run], (1_000, 0.0), 0, "job.yaml")
    assert (found.basis, found.output_tokens, found.low_s, found.high_s) == (Basis.EARLIER_RUNS, 0, 100.0, 200.0)


def test_the_tasks_own_answers_outweigh_those_of_other_tasks_up_to_max_tokens() -> None:
    assert estimate_from_runs(Work(10, 1_000), [RUN], (5, 7.0), 32, "j").output_tokens == 70
    assert estimate_from_runs(Work(10, 1_000), [RUN], NOTHING, 8, "j").output_tokens == 80


@given(
    prompt_cost=st.floats(0, 0.01), output_cost=st.floats(0.0001, 0.1), prompts=st.integers(1, 10**7),
    documents=st.integers(1, 10**5), mean=st.floats(1, 500),
)  # fmt: skip
def test_whatever_a_token_costs_the_true_time_is_between_the_bounds(
    prompt_cost: float, output_cost: float, prompts: int, documents: int, mean: float
) -> None:
    run = replace(RUN, generate_s=prompt_cost * RUN.prompt_tokens + output_cost * RUN.output_tokens)
    found = estimate_from_runs(Work(documents, prompts), [run], (1, mean), 512, "j")
    true_s = prompt_cost * prompts + output_cost * documents * mean
    assert found.low_s is not None
    assert found.high_s is not None
    assert found.low_s * (1 - 1e-9) <= true_s <= found.high_s * (1 + 1e-9)


def test_a_slower_run_widens_the_range_and_few_answers_are_said_to_be_few() -> None:
    slower = replace(RUN, generate_s=300.0, run_id=UUID("bbbbbbbb-1111-1111-1111-111111111111"))
    found = estimate_from_runs(Work(1_000, 100_000), [RUN, slower], NOTHING, 32, "j")
    assert (found.low_s, found.high_s) == (100.0, 300.0)
    assert "2,000 answers of the runs aaaaaaaa of" in found.reason
    few = estimate_from_runs(Work(1_000, 100_000), [replace(RUN, num_answered=20.0)], NOTHING, 32, "job.yaml")
    assert few.advice == "bulkinfer run job.yaml --limit 200"


@pytest.mark.parametrize("output_tokens", [None, 7])
@pytest.mark.parametrize("num_documents", [1, 5, 400])
def test_the_cost_model_holds_what_the_simulated_engine_then_takes(
    num_documents: int, output_tokens: int | None
) -> None:
    arguments: dict[str, JsonValue] = {
        "clock": "virtual",
        "seconds_per_prompt_token": 0.001,
        "seconds_per_output_token": 0.01,
        "engine_start_s": 3,
        "output_tokens": output_tokens,
    }
    spec = EngineSpec("simulated", "m", None, {"max_tokens": 16}, 4, 512, arguments)
    messages = (Message("user", "word " * 20),)
    prompt_tokens = estimate_prompt_tokens(messages) * num_documents
    cost = cost_of(spec, num_documents, prompt_tokens)
    engine = create_engine(spec)
    engine.start()
    while not any(isinstance(event, EngineReady) for event in engine.poll(1.0)):
        pass
    assert engine.now() == pytest.approx(cost.start_s) == 3
    hashes = [(number * 2**20).to_bytes(4, "big") + number.to_bytes(12, "big") for number in range(num_documents)]
    engine.submit([Request(one, Origin("a", 1, "a"), messages, 100) for one in hashes])
    answers: list[Completion] = []
    while len(answers) < num_documents:
        answers += [event for event in engine.poll(1.0) if isinstance(event, Completion)]
    spent = sum(answer.output_tokens for answer in answers)
    # The bounds are for the expected answers; these are a few more or less.
    slack_s = abs(spent - cost.output_tokens) / spec.expected_concurrency * 0.01
    assert cost.low_s - slack_s - 1e-9 <= engine.now() - 3 <= cost.high_s + slack_s + 1e-9


def test_what_sequences_and_their_context_cost_is_a_sum_over_the_documents() -> None:
    costs: dict[str, JsonValue] = {"seconds_per_sequence": 0.5, "seconds_per_context_token": 0.25}
    none: dict[str, JsonValue] = {"seconds_per_prompt_token": 0, "seconds_per_output_token": 0}
    spec = EngineSpec("simulated", "m", None, {"max_tokens": 16}, 3, 512, {"clock": "virtual", **none, **costs})
    spec = replace(spec, arguments={**spec.arguments, "output_tokens": 7})
    messages = (Message("user", "word " * 20),)
    engine = create_engine(spec)
    start_and_wait(engine)
    engine.submit([Request(bytes([number]) * 16, Origin("a", 1, "a"), messages, 100) for number in range(10)])
    collect_outcomes(engine, 10)
    cost = cost_of(spec, 10, 10 * estimate_prompt_tokens(messages))
    assert engine.now() == pytest.approx(cost.low_s) == cost.high_s
    assert cost.low_s == pytest.approx(10 * (7 * 0.5 + (6 * 29 + 21) * 0.25))
