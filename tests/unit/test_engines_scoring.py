"""Probabilities of choices: the tree of their tokens, joint probabilities, calibration."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from bulkinfer.engines.scoring import (
    Node,
    Scoring,
    calibrate,
    decide_label,
    join_logprobs,
    list_nodes,
    normalise,
)
from bulkinfer.engines.vllm_choices import ChoiceScorer
from bulkinfer.errors import JobError
from bulkinfer.records import Completion, FailureCode, Message, Rejection

TOKENS = {"aa": (1, 2), "ab": (1, 3), "c": (4,)}
LOGPROBS = {(1,): math.log(0.5), (4,): math.log(0.1), (1, 2): math.log(0.2), (1, 3): math.log(0.6)}


def test_the_tree_of_all_tokens_asks_for_each_place_once() -> None:
    assert list_nodes(list(TOKENS.values()), 128) == [Node((), (1, 4)), Node((1,), (2, 3))]
    assert list_nodes(list(TOKENS.values()), 1) == [
        Node((), (1,)),
        Node((), (4,)),
        Node((1,), (2,)),
        Node((1,), (3,)),
    ]


def test_probabilities_are_those_of_all_tokens_and_add_up_to_1() -> None:
    found = normalise({choice: join_logprobs(tokens, LOGPROBS) for choice, tokens in TOKENS.items()})
    # 0.5 * 0.2, 0.5 * 0.6 and 0.1, over their sum.
    assert found == pytest.approx({"aa": 0.2, "ab": 0.6, "c": 0.2})


def test_probabilities_too_small_for_a_number_are_still_compared() -> None:
    assert normalise({"a": -2000.0, "b": -2000.0 + math.log(3)}) == pytest.approx({"a": 0.25, "b": 0.75})
    assert normalise({"a": -math.inf, "b": -1.0}) == {"a": 0.0, "b": 1.0}
    assert normalise({"a": -math.inf, "b": -math.inf}) == {"a": 0.5, "b": 0.5}


def test_calibrated_a_choice_wins_by_what_the_document_adds() -> None:
    scoring = Scoring(("a", "b"), is_told=True, prior=(Message("user", ""),))
    probabilities, prior = {"a": 0.8, "b": 0.2}, {"a": 0.9, "b": 0.1}
    # 0.8 / 0.9 against 0.2 / 0.1
    assert calibrate(probabilities, prior) == pytest.approx({"a": 8 / 26, "b": 18 / 26})
    assert decide_label(scoring, probabilities, None).label == "a"
    verdict = decide_label(scoring, probabilities, prior)
    assert verdict.label == "b"
    assert verdict.details == {
        "probabilities": {"a": 0.307692, "b": 0.692308},
        "uncalibrated": {"a": 0.8, "b": 0.2},
    }
    assert decide_label(Scoring(("a", "b"), is_told=False), probabilities, prior).details is None


class FakeEngine:
    """Answers requests for one token with the log probabilities of `LOGPROBS`, the last request first."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any, Any]] = []
        self.aborted: list[str] = []
        self.adapters: list[str] = []

    def add_request(
        self,
        request_id: str,
        prompt: dict[str, Any],
        params: dict[str, Any],
        *,
        priority: int = 0,
        lora_request: str = "",
    ) -> None:
        self.adapters.append(lora_request)
        if len(self.requests) == 1 and priority == 13:
            raise ValueError("refused")
        self.requests.append((request_id, prompt, params))

    def abort_request(self, request_ids: list[str]) -> None:
        self.aborted += request_ids

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[Any]:
        request_id, prompt, params = self.requests.pop()
        prefix = tuple(prompt["prompt_token_ids"][3:])
        wanted = params.get("logprob_token_ids") or params["allowed_token_ids"]
        told = {token: SimpleNamespace(logprob=LOGPROBS[(*prefix, token)]) for token in wanted}
        output = SimpleNamespace(logprobs=[told])
        return [SimpleNamespace(request_id=request_id, outputs=[output], metrics=None, num_cached_tokens=2)]


def make_scorer(engine: FakeEngine, *, has_chosen_logprobs: bool = True) -> ChoiceScorer:
    scoring = Scoring(tuple(TOKENS), is_told=True)
    return ChoiceScorer(scoring, engine, TOKENS.__getitem__, dict, has_chosen_logprobs=has_chosen_logprobs)


def run_to_end(scorer: ChoiceScorer, engine: FakeEngine) -> list[Completion | Rejection]:
    outcomes: list[Completion | Rejection] = []
    while engine.requests:
        taken = map(scorer.take, engine.step())
        outcomes += [scorer.finish(document_id, 1.5) for document_id in taken if document_id is not None]
    return outcomes


@pytest.mark.parametrize(("has_chosen_logprobs", "num_requests"), [(True, 2), (False, 4)])
def test_a_document_is_split_into_requests_and_joined_again(has_chosen_logprobs: bool, num_requests: int) -> None:
    engine = FakeEngine()
    scorer = make_scorer(engine, has_chosen_logprobs=has_chosen_logprobs)
    for number in (1, 2):
        scorer.add(bytes([number]).hex(), {"type": "token", "prompt_token_ids": [7, 8, 9]})
    assert len(engine.requests) == 2 * num_requests
    outcomes = run_to_end(scorer, engine)
    assert {outcome.document_hash for outcome in outcomes} == {b"\1", b"\2"}
    for outcome in outcomes:
        assert isinstance(outcome, Completion)
        assert (outcome.text, outcome.prompt_tokens, outcome.output_tokens) == ("ab", 3, num_requests)
        assert outcome.details == {"probabilities": {"aa": 0.2, "ab": 0.6, "c": 0.2}}


def test_the_prior_is_asked_once_and_kept() -> None:
    engine = FakeEngine()
    scorer = make_scorer(engine)
    scorer.ask_prior({"prompt_token_ids": [7, 8, 9]})
    assert scorer.prior == pytest.approx({"aa": 0.2, "ab": 0.6, "c": 0.2})
    scorer.add("01", {"prompt_token_ids": [7, 8, 9]})
    (outcome,) = run_to_end(scorer, engine)
    assert isinstance(outcome, Completion)
    # The document says nothing that the empty one does not: all are equal, and the first is the label.
    assert outcome.details is not None
    assert outcome.details["probabilities"] == {"aa": 0.333333, "ab": 0.333333, "c": 0.333333}
    assert outcome.details["uncalibrated"] == {"aa": 0.2, "ab": 0.6, "c": 0.2}


def test_every_request_for_a_document_goes_to_its_adapter() -> None:
    engine = FakeEngine()
    make_scorer(engine).add("01", {"prompt_token_ids": [7, 8, 9]}, lora_request="polite")
    assert engine.adapters == ["polite", "polite"]


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ({"Straße": (1, 2), "STRASSE": (1, 2), "c": (4,)}, "'Straße' in tokens that are the same as 'STRASSE'"),
        ({"long one": (4, 5), "c": (4,), "a": (3,)}, "'c' in tokens that are the beginning of those of 'long one'"),
        ({"gone": (), "c": (4,)}, "'gone' in tokens that are the beginning of those of 'c'"),
    ],
)
def test_choices_that_their_tokens_do_not_tell_apart_are_refused(tokens: dict[str, tuple[int, ...]], told: str) -> None:
    scoring = Scoring(tuple(tokens), is_told=True)
    with pytest.raises(JobError, match=f"task.choices: the model's tokenizer writes {told}"):
        ChoiceScorer(scoring, FakeEngine(), tokens.__getitem__, dict, has_chosen_logprobs=True)


def test_a_document_that_is_refused_halfway_leaves_no_request_behind() -> None:
    engine = FakeEngine()
    scorer = make_scorer(engine)
    with pytest.raises(ValueError, match="refused"):
        scorer.add("01", {"prompt_token_ids": [7, 8, 9]}, priority=13)
    assert engine.aborted == ["01/0", "01/1"]
    assert [scorer.take(output) for output in engine.step()] == [None]


def test_a_request_that_ends_without_a_log_probability_fails_its_document() -> None:
    engine = FakeEngine()
    scorer = make_scorer(engine)
    scorer.add("01", {"prompt_token_ids": [7, 8, 9]})
    (last,), (first,) = engine.step(), engine.step()
    last.outputs[0].logprobs = None
    assert scorer.take(last) is None
    assert scorer.take(first) == "01"
    outcome = scorer.finish("01", 1.0)
    assert isinstance(outcome, Rejection)
    assert outcome.code is FailureCode.ENGINE_ERROR
