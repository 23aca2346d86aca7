"""The two ports of an engine: `StepEngine`, the engine itself, and `Engine`, what the runner holds.

    runner  ->  Engine  ->  [process border, or not]  ->  StepEngine  ->  vLLM or the simulation

Neither knows documents' outcomes, the store or the display.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bulkinfer.engines.images import load_images
from bulkinfer.engines.reserve import Reserve
from bulkinfer.engines.scoring import Scoring
from bulkinfer.records import (
    FORM,
    UNKNOWN_WORKLOAD,
    Completion,
    EngineEvent,
    EngineReady,
    EngineStats,
    FailureCode,
    JsonValue,
    Message,
    Overlong,
    Rejection,
    Request,
    Span,
    Workload,
)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """All that an engine needs to know, plain enough to cross a process border as JSON."""

    kind: str
    model: str
    """A folder's absolute path, or a hub id."""
    revision: str | None
    sampling: Mapping[str, JsonValue]
    """Sampling parameters by vLLM's names; only those that the job gives, `max_tokens` always. Empty where the task
    draws no tokens."""
    max_concurrency: int | None
    """None: the engine chooses; likewise the next."""
    max_context_tokens: int | None
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    """`engine.vllm` or `engine.simulated` of the job file."""
    chat_template: str | None = None
    trust_remote_code: bool = False
    step_timeout_s: float = 300
    """How long one step may take in a process of its own, before that process ends itself."""
    replica: int = 0
    """Which of the engines on this machine it is, from 0."""
    num_replicas: int = 1
    """Engines that share this machine's cores, or GPUs, and its memory."""
    free_memory_bytes: int | None = None
    """This engine's share of what was free before the first of them started; None: not measured."""

    reserve: float = 0.0
    """The share of sequences and KV cache, 0 to less than 1, that is kept free: the engine is made that much smaller.
    `max_concurrency` is before that."""
    priority: int = 0
    """Of a request that has none of its own; added to what it has."""
    nice: int = 0
    """How much nicer than this process the engine's is to all others, 0 to 19."""
    has_priorities: bool = False
    """Requests with a lower `priority` are run first; otherwise the first comes first. A scheduling policy in
    `arguments` goes before it."""

    context_reason: str = ""
    """Where `max_context_tokens` comes from, if not from the job."""
    scoring: Scoring | None = None
    """Of a classify job that wants probabilities: its choices are scored, and none is decoded."""
    is_plain: bool = False
    """Prompts are texts that the model completes: no chat template."""
    reasoning: str | None = None
    """The parser that splits off what the model thinks aloud, by vLLM's name."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The folder of each LoRA adapter that requests may name."""
    has_images: bool = False
    """Prompts may have images: their characters do not tell how long they are."""
    row_sampling: tuple[str, ...] = ()
    """Sampling parameters that requests may bring themselves."""
    task: str = "generate"
    """What is done with a request: `task.kind` of the job."""
    is_normalized: bool = True
    """Whether vectors are scaled to the length 1."""
    overlong: str = Overlong.FAIL
    """What is done with a prompt that is too long, where it has spans."""
    overlap_tokens: int = 0
    """Of the parts of one that is split."""

    @property
    def is_pooling(self) -> bool:
        """Whether the model gives a vector or a number for each prompt, and writes nothing."""
        return self.task in {"embed", "score"}

    @property
    def expected_concurrency(self) -> int:
        """Sequences that the engine will most likely run at once: it tells when it is ready."""
        return Reserve(self.reserve).max_sequences(self.max_concurrency or (64 if self.kind == "simulated" else 256))

    @property
    def is_by_priority(self) -> bool:
        """Whether priorities count: they were asked for, or the job itself sets vLLM's policy."""
        given = self.arguments.get("scheduling_policy") if self.kind == "vllm" else None
        return given == "priority" if given else self.has_priorities

    @property
    def holds_text(self) -> bool:
        """Whether answers, or some of them, are drawn token by token and held to JSON or a pattern."""
        return (self.form is not None and "choice" not in self.form) or FORM in self.row_sampling

    @property
    def form(self) -> Mapping[str, JsonValue] | None:
        """What answers are held to while they are written: one of `choice`, `json`, `regex`, as vLLM names them."""
        return self.form_of({})

    def form_of(self, sampling: Mapping[str, JsonValue]) -> Mapping[str, JsonValue] | None:
        """The same for the answer to a request with these parameters of its own."""
        form = sampling.get(FORM, self.sampling.get(FORM))
        return form if isinstance(form, Mapping) else None

    @property
    def max_tokens(self) -> int:
        """The most tokens that one answer may have, where the request does not say; 0 where nothing is written."""
        return self.max_tokens_of({})

    def max_tokens_of(self, sampling: Mapping[str, JsonValue]) -> int:
        """The most tokens that one answer may have to a request with these parameters of its own."""
        if self.is_pooling:
            return 0
        max_tokens = sampling.get("max_tokens", self.sampling["max_tokens"])
        assert isinstance(max_tokens, int)
        return max_tokens

    def num_answers_of(self, sampling: Mapping[str, JsonValue]) -> int:
        """How many answers there will be to a request with these parameters of its own."""
        num_answers = sampling.get("n", self.sampling.get("n", 1))
        assert isinstance(num_answers, int)
        return num_answers

    def may_have(self, parameter: str) -> bool:
        """Whether any request has this sampling parameter, from the job or from its row."""
        return self.sampling.get(parameter) is not None or parameter in self.row_sampling


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What of a `Request` the engine sees."""

    document_hash: bytes
    messages: tuple[Message, ...]
    sampling: Mapping[str, JsonValue] = field(default_factory=dict)
    """What goes before `EngineSpec.sampling`."""
    priority: int = 0
    adapter: str | None = None
    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, request: Request, priority: int) -> "EngineRequest":
        """That part of the request; `priority` is the engine's, and its own is added to it. Raises ImageFault."""
        own = request.sampling, priority + request.priority, request.adapter, request.spans
        return cls(request.document_hash, load_images(request), *own)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is rendered and measured, in its engine's own form."""

    document_hash: bytes
    prompt: object
    """Only the engine that made it knows what it is."""
    sampling: Mapping[str, JsonValue] = field(default_factory=dict)
    """As in the request; likewise the next two."""
    priority: int = 0
    adapter: str | None = None


class StepEngine(Protocol):
    """A loaded engine, driven one step at a time by a single thread.

    `prepare` alone may be called by a second thread, meanwhile: rendering and tokenizing must not hold up the steps.
    """

    def add(self, request: EngineRequest) -> Rejection | None:
        """`prepare` and `admit` in one. Never raises for a fault of the request."""

    def prepare(self, request: EngineRequest) -> Prepared | Rejection:
        """Render and measure one request, or say why not. Never raises for a fault of the request."""

    def admit(self, prepared: Prepared) -> Rejection | None:
        """Take a prepared request into the engine, or say why not. Never raises for a fault of the request."""

    def step(self) -> list[Completion | Rejection]:
        """Run one scheduler step; return what finished in it, in no particular order.

        Raises whatever the engine raises when it is broken; the caller must not step it again.
        """

    def abort(self, document_hashes: Sequence[bytes]) -> tuple[bytes, ...]:
        """Drop requests; nothing is returned for them any more. Unknown hashes are ignored.

        Returns those that were there. Their sequences and their blocks of the KV cache are free from now on.
        """

    def num_unfinished(self) -> int:
        """Requests added and not yet returned."""

    def num_steps(self) -> int:
        """Steps since its start."""

    def stats(self) -> EngineStats:
        """A reading of the engine now. The peaks in it begin anew."""

    def gpu_memory_bytes(self) -> int:
        """In use on the GPUs that the engine has, by whomever; 0 without one. Costs more than `stats`."""

    def ready(self) -> EngineReady:
        """What was loaded, and with which settings. `start_s` is filled in by the caller."""


class MeasuringEngine(StepEngine, Protocol):
    """A `StepEngine` that tells how long prompts are. `prepare`'s thread asks."""

    def count_tokens(self, request: EngineRequest) -> int | None:
        """Tokens of the prompt, chat template included, as `prepare` counts them; None for one that is refused."""

    def find_room(self, request: EngineRequest) -> int:
        """The most tokens that the prompt of this request may have: what its answer leaves of the context."""


class Engine(Protocol):
    """An engine as the runner holds it. All calls come from one thread.

    Life: `start`, `poll` until an `EngineReady` comes, then `submit` and `poll`, then `close`. After an `EngineDied`
    only `close` and `start` are allowed; requests that were in flight are gone and must be submitted again.
    """

    def start(self, workload: Workload = UNKNOWN_WORKLOAD) -> None:
        """Begin to load the model, with settings that fit the workload. Returns at once."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Give requests to the engine. Returns at once. Raises EngineDied."""

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """What happened since the last call; waits up to `timeout_s` seconds for something to happen.

        Raises EngineError when the engine cannot start (its message holds what the engine said last) and EngineDied
        when it was killed, or ended or fell silent after it was ready.
        """

    def abort(self, document_hashes: Sequence[bytes]) -> None:
        """Drop requests that are in flight. Returns at once.

        An `Aborted` comes that names those that were dropped, between a reading from just before it and one from just
        after. What had finished by then comes before that, as a completion: each request that was submitted comes back
        once. Without requests to drop only the reading from after it comes. Raises EngineDied.
        """

    def now(self) -> float:
        """Seconds on the engine's clock: the monotonic clock, or the simulation's virtual one."""

    def close(self) -> None:
        """End the engine and every process it started. Safe to call twice, and in any state."""


def describe_limit(spec: EngineSpec) -> str:
    """The context, and who chose it."""
    if not spec.context_reason:
        return f"limits.max_context_tokens {spec.max_context_tokens}"
    return f"the context of {spec.max_context_tokens}, which is {spec.context_reason} (limits.max_context_tokens: auto)"


def reject_too_long(spec: EngineSpec, request: EngineRequest, prompt_tokens: int) -> Rejection | None:
    """Refuse a prompt that leaves less than max_tokens of the context for its answer; None if it fits.

    `prompt_tokens`: of the longest text, where a request holds several that the model reads one by one.
    """
    room_tokens = find_room(spec, request)
    if prompt_tokens <= room_tokens:
        return None
    max_tokens = spec.max_tokens_of(request.sampling)
    num_tokens = prompt_tokens + max_tokens
    if spec.is_pooling:
        message = f"prompt of {prompt_tokens} tokens exceeds {describe_limit(spec)}"
    else:
        message = (
            f"prompt of {prompt_tokens} tokens + max_tokens {max_tokens} = {num_tokens} exceeds {describe_limit(spec)}"
        )
    return Rejection(request.document_hash, FailureCode.PROMPT_TOO_LONG, message, prompt_tokens, room_tokens)


def find_room(spec: EngineSpec, request: EngineRequest) -> int:
    """What the answer leaves of the context; less than 1 where it leaves nothing."""
    limit = spec.max_context_tokens
    assert limit is not None, "the engine has chosen by now"
    return limit - spec.max_tokens_of(request.sampling)
