"""An engine that cuts what is too long: what it asks instead, what it tells, and what it leaves alone."""

from dataclasses import replace

import pytest

from bulkinfer.engines.base import EngineRequest, EngineSpec, Prepared, StepEngine
from bulkinfer.engines.clock import VirtualClock
from bulkinfer.engines.overlong import FittingEngine, fitting
from bulkinfer.engines.simulated import SimulatedEngine
from bulkinfer.records import Completion, FailureCode, Message, Overlong, Rejection, Span
from tests.engine_support import simulated_spec

BEFORE = "Summarise: "
SECRET = "confidential "


def create(policy: Overlong = Overlong.TRUNCATE_TAIL, max_context_tokens: int = 100) -> StepEngine:
    spec = replace(simulated_spec(max_context_tokens=max_context_tokens), overlong=policy)
    return fitting(SimulatedEngine(spec, VirtualClock()), spec)


def ask(name: str, body: str, max_tokens: int | None = None) -> EngineRequest:
    span = Span(0, len(BEFORE), len(BEFORE) + len(body))
    own = {} if max_tokens is None else {"max_tokens": max_tokens}
    return EngineRequest(name.encode() * 16, (Message("user", BEFORE + body),), own, spans=(span,))


def finish(engine: StepEngine) -> dict[bytes, Completion]:
    outcomes = []
    while engine.num_unfinished():
        outcomes += engine.step()
    completions = [outcome for outcome in outcomes if isinstance(outcome, Completion)]
    assert len(completions) == len(outcomes)
    return {completion.document_hash: completion for completion in completions}


def test_what_fits_is_asked_as_it_is_and_nothing_is_told() -> None:
    engine = create()
    assert engine.add(ask("a", "short")) is None
    assert finish(engine)[b"a" * 16].details is None


@pytest.mark.parametrize("policy", [Overlong.TRUNCATE_HEAD, Overlong.TRUNCATE_MIDDLE, Overlong.TRUNCATE_TAIL])
def test_what_is_too_long_is_cut_and_the_answer_says_so(policy: Overlong) -> None:
    engine = create(policy)
    assert engine.add(ask("a", "word " * 1_000)) is None
    completion = finish(engine)[b"a" * 16]
    assert completion.prompt_tokens in {91, 92}  # 100 without the 8 of the answer
    assert completion.details == {
        "overlong": {"policy": policy, "tokens_before": 1_257, "tokens_after": completion.prompt_tokens, "parts": 1}
    }


def test_a_request_with_its_own_max_tokens_gets_its_own_room() -> None:
    engine = create()
    assert engine.add(ask("a", "word " * 1_000, max_tokens=50)) is None
    assert finish(engine)[b"a" * 16].prompt_tokens in {48, 49, 50}


def test_what_cannot_be_cut_is_refused_with_the_reason_and_without_text() -> None:
    engine = create(max_context_tokens=14)
    rejection = engine.add(ask("a", SECRET * 1_000))
    assert isinstance(rejection, Rejection)
    assert rejection.code is FailureCode.PROMPT_TOO_LONG
    assert "exceeds limits.max_context_tokens 14" in rejection.message
    assert rejection.message.endswith("the job's own text alone has 7 tokens, and 6 are free")
    assert SECRET not in rejection.message
    assert (rejection.prompt_tokens, rejection.room_tokens) == (3_257, 6)


def test_what_leaves_too_little_for_a_part_is_refused_with_the_reason() -> None:
    # Of 100 tokens the answer leaves 92, a part needs 23 of them, and the request's own text takes 72.
    request = ask("a", "word " * 1_000)
    messages = (Message("system", "s" * 256), *request.messages)
    spans = (replace(request.spans[0], message=1),)
    rejection = create(Overlong.SPLIT).add(replace(request, messages=messages, spans=spans))
    assert isinstance(rejection, Rejection)
    assert rejection.cuts == ()
    assert "too few for parts of it" in rejection.message


def test_a_prompt_without_spans_is_refused_as_ever() -> None:
    request = replace(ask("a", "word " * 1_000), spans=())
    assert create().add(request) == create(Overlong.FAIL).add(request)
    assert isinstance(create().add(request), Rejection)


def test_fail_cuts_nothing_and_adds_nothing() -> None:
    engine = create(Overlong.FAIL)
    assert isinstance(engine, SimulatedEngine)
    assert isinstance(engine.add(ask("a", "word " * 1_000)), Rejection)


def test_what_is_told_of_a_request_is_forgotten_with_it() -> None:
    engine = create()
    assert isinstance(engine, FittingEngine)
    prepared = engine.prepare(ask("a", "word " * 1_000))
    assert isinstance(prepared, Prepared)
    engine.admit(prepared)
    assert engine.abort([b"a" * 16]) == (b"a" * 16,)
    assert engine.add(replace(ask("a", "short"))) is None
    assert finish(engine)[b"a" * 16].details is None
    assert not engine._done


@pytest.mark.parametrize("factor", [1, 0.2])
@pytest.mark.parametrize("policy", [one for one in Overlong if one is not Overlong.FAIL])
def test_a_prompt_beyond_all_counting_is_cut_and_its_tokens_are_not_told(
    monkeypatch: pytest.MonkeyPatch, policy: Overlong, factor: float
) -> None:
    monkeypatch.setattr("bulkinfer.engines.overlong.MAX_COUNTED_CHARS", 4_000)
    spec = replace(simulated_spec(max_context_tokens=100, prompt_tokens_factor=factor), overlong=policy)
    inner = RefusesBySize(spec, VirtualClock())
    num_counts: list[None] = []
    engine = fitting(inner, spec, lambda: num_counts.append(None))
    refused = engine.add(ask("a", "word " * 20_000))
    if isinstance(refused, Rejection):
        assert policy is Overlong.SPLIT
        assert refused.prompt_tokens is None
        assert refused.cuts[-1][1] == 100_000
        assert refused.longest_tokens in range(80, 93)
    else:
        (told,) = (finish(engine)[b"a" * 16].details or {}).values()
        assert isinstance(told, dict)
        assert told["tokens_before"] is None
        assert told["tokens_after"] in {91, 92}
    assert len(num_counts) == len(inner.counted_chars) > 1
    assert max(inner.counted_chars) <= 4_000


class RefusesBySize(SimulatedEngine):
    """As vLLM's: what is too long by its bytes alone is refused uncounted."""

    def __init__(self, spec: EngineSpec, clock: VirtualClock) -> None:
        super().__init__(spec, clock)
        self.counted_chars: list[int] = []
        self._is_preparing = False

    def count_tokens(self, request: EngineRequest) -> int:
        if not self._is_preparing:
            self.counted_chars.append(sum(len(message.content) for message in request.messages))
        return super().count_tokens(request)

    def prepare(self, request: EngineRequest) -> Prepared | Rejection:
        self._is_preparing = True
        prepared = super().prepare(request)
        self._is_preparing = False
        return replace(prepared, prompt_tokens=None) if isinstance(prepared, Rejection) else prepared
