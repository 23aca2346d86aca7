"""Makes an engine cut what is too long for it: one way for all engines, in the thread that renders.

Only the engine knows its context for sure and counts tokens as the model gets them, so the cut is found here and not in
the runner. A prompt that fits costs nothing more than it did.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bulkinfer.engines.base import EngineRequest, EngineSpec, MeasuringEngine, Prepared, StepEngine
from bulkinfer.prompt.fitting import MAX_PARTS, Unfit, fit_prompt, split_prompt
from bulkinfer.records import Completion, EngineReady, EngineStats, FailureCode, JsonValue, Message, Overlong, Rejection

MAX_COUNTED_CHARS = 4 * 1024 * 1024
"""Of a longer prompt nobody counts the tokens: it would take seconds, and others wait."""
_MOST_CHARS_PER_TOKEN = 8
"""What fills a very large context is counted all the same."""


def _count_nothing() -> None:
    pass


def fitting(engine: MeasuringEngine, spec: EngineSpec, on_count: Callable[[], None] = _count_nothing) -> StepEngine:
    """The engine, which cuts what is too long if the job says so.

    `on_count` is called, in the thread of `prepare`, when tokens of a prompt have been counted: cutting one may take
    minutes.
    """
    policy = Overlong(spec.overlong)
    return engine if policy is Overlong.FAIL else FittingEngine(engine, policy, spec.overlap_tokens, on_count)


class FittingEngine:
    """A `StepEngine` that truncates a prompt that is too long, or says where it is to be split.

    What was done stands in the completion's details, as `overlong`.
    """

    def __init__(
        self,
        engine: MeasuringEngine,
        policy: Overlong,
        overlap_tokens: int,
        on_count: Callable[[], None] = _count_nothing,
    ) -> None:
        self._engine = engine
        self._on_count = on_count
        self._policy = policy
        self._overlap_tokens = overlap_tokens
        self._done: dict[bytes, Mapping[str, JsonValue]] = {}
        """By document: what was done with requests that the engine has, or will get."""

    def add(self, request: EngineRequest) -> Rejection | None:
        """`prepare` and `admit` in one."""
        prepared = self.prepare(request)
        return prepared if isinstance(prepared, Rejection) else self.admit(prepared)

    def prepare(self, request: EngineRequest) -> Prepared | Rejection:
        """As the engine does; what it finds too long, and what holds text of a document, is cut."""
        prepared = self._engine.prepare(request)
        if not isinstance(prepared, Rejection) or prepared.code is not FailureCode.PROMPT_TOO_LONG:
            return prepared
        if not request.spans:
            return prepared
        if self._policy is Overlong.SPLIT:
            return self._split(request, prepared)
        return self._truncate(request, prepared)

    def admit(self, prepared: Prepared) -> Rejection | None:
        """As the engine does."""
        rejection = self._engine.admit(prepared)
        if rejection is not None:
            self._done.pop(prepared.document_hash, None)
        return rejection

    def step(self) -> list[Completion | Rejection]:
        """As the engine does; completions say what was cut."""
        return [self._tell(outcome) for outcome in self._engine.step()]

    def abort(self, document_hashes: Sequence[bytes]) -> tuple[bytes, ...]:
        """As the engine does."""
        for document_hash in document_hashes:
            self._done.pop(document_hash, None)
        return self._engine.abort(document_hashes)

    def num_unfinished(self) -> int:
        """Requests added and not yet returned."""
        return self._engine.num_unfinished()

    def num_steps(self) -> int:
        """Steps since its start."""
        return self._engine.num_steps()

    def stats(self) -> EngineStats:
        """A reading of the engine now."""
        return self._engine.stats()

    def gpu_memory_bytes(self) -> int:
        """In use on its GPUs."""
        return self._engine.gpu_memory_bytes()

    def ready(self) -> EngineReady:
        """What was loaded."""
        return self._engine.ready()

    def _truncate(self, request: EngineRequest, rejection: Rejection) -> Prepared | Rejection:
        num_tokens = rejection.prompt_tokens or self._count(request, request.messages)
        room = self._engine.find_room(request)
        fitted = fit_prompt(
            request.messages,
            request.spans,
            self._policy,
            room,
            lambda messages: self._count(request, messages),
            num_tokens,
        )
        if isinstance(fitted, Unfit):
            return self._refuse(rejection, fitted, room)
        prepared = self._engine.prepare(replace(request, messages=fitted.messages, spans=()))
        if not isinstance(prepared, Rejection):
            self._done[request.document_hash] = describe_overlong(self._policy, num_tokens, fitted.num_tokens, 1)
        return prepared

    def _split(self, request: EngineRequest, rejection: Rejection) -> Rejection:
        num_tokens = rejection.prompt_tokens or self._count(request, request.messages)
        room = self._engine.find_room(request)
        split = split_prompt(
            request.messages,
            request.spans,
            room,
            self._overlap_tokens,
            lambda messages: self._count(request, messages),
            num_tokens,
        )
        if isinstance(split, Unfit):
            return self._refuse(rejection, split, room)
        return replace(
            rejection, prompt_tokens=num_tokens, room_tokens=room, cuts=split.cuts, longest_tokens=split.num_tokens
        )

    def _count(self, request: EngineRequest, messages: tuple[Message, ...]) -> int | None:
        """None also for one so long that nobody counts it: it does not fit, either."""
        most_chars = max(MAX_COUNTED_CHARS, _MOST_CHARS_PER_TOKEN * self._engine.find_room(request))
        if sum(len(message.content) for message in messages) > most_chars:
            return None
        num_tokens = self._engine.count_tokens(replace(request, messages=messages, spans=()))
        self._on_count()
        return num_tokens

    def _refuse(self, rejection: Rejection, unfit: Unfit, room: int) -> Rejection:
        if unfit.is_too_many:
            why = f"it would have more than {MAX_PARTS:,} parts"
        elif unfit.num_tokens is None:
            why = "the engine refuses the prompt without the document's fields"
        elif self._policy is Overlong.SPLIT:
            why = f"all else than the longest field has {unfit.num_tokens} tokens, and {max(room, 0)} are free"
            if unfit.num_tokens <= room:
                why += ", too few for parts of it"
        else:
            why = f"the job's own text alone has {unfit.num_tokens} tokens, and {max(room, 0)} are free"
            if unfit.num_tokens <= room:
                why += ", too few for any text of the document"
        return replace(rejection, message=f"{rejection.message}; limits.overlong: {self._policy} does not help: {why}")

    def _tell(self, outcome: Completion | Rejection) -> Completion | Rejection:
        done = self._done.pop(outcome.document_hash, None)
        if done is None or isinstance(outcome, Rejection):
            return outcome
        return replace(outcome, details={**(outcome.details or {}), "overlong": done})


def describe_overlong(
    policy: Overlong, tokens_before: int | None, tokens_after: int, num_parts: int
) -> dict[str, JsonValue]:
    """`details.overlong` of a row: tokens of the whole prompt (null where it was too long to be counted) and of the
    longest that was asked."""
    return {"policy": policy, "tokens_before": tokens_before, "tokens_after": tokens_after, "parts": num_parts}
