"""An engine without a model, for dry runs, for tests and for planning at sizes that no one machine has.

It schedules as vLLM does (`simulated_schedule`) and spends time by a cost model (`simulated_cost`). One step gives each
running sequence one token and lasts

    prompt tokens computed in it * seconds_per_prompt_token + seconds_per_output_token
    + sequences that get a token * seconds_per_sequence + tokens that they look back at * seconds_per_context_token

where the last two are 0 unless they are given: then a document alone takes prompt_tokens * seconds_per_prompt_token +
output_tokens * seconds_per_output_token. `calibration` fits all four to a real engine. Prompt tokens are an estimate: 4
for each message (what a chat template adds) and 1 for each 4 characters of content. Several answers to one document
are as many sequences, each with the prompt.

The same requests in the same order get the same answers and, on a virtual clock, the same timings. An answer depends on
the document hash alone. It answers nothing sensible: its words carry no meaning, nor do its vectors and scores, for
which a prompt is computed in one step and nothing is drawn. Where the job asks for a form, such as JSON of a schema, it
has that form (`simulated_answers`).
"""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import NoReturn

from bulkinfer.engines.answers import Joined
from bulkinfer.engines.base import EngineRequest, EngineSpec, Prepared, find_room, reject_too_long
from bulkinfer.engines.clock import Clock
from bulkinfer.engines.reserve import Reserve
from bulkinfer.engines.scoring import round_all
from bulkinfer.engines.simulated_answers import draft_answer, score, score_prior
from bulkinfer.engines.simulated_arguments import (
    ENDING_KINDS,
    Fault,
    FaultKind,
    check_room,
    parse_simulated_arguments,
)
from bulkinfer.engines.simulated_cost import FREE
from bulkinfer.engines.simulated_schedule import Schedule, Sequence
from bulkinfer.engines.simulated_text import Asked, vary_hash, write_answers
from bulkinfer.engines.simulated_vectors import write_score, write_vector
from bulkinfer.records import (
    Completion,
    EngineReady,
    EngineStats,
    FailureCode,
    FinishReason,
    JsonValue,
    Message,
    Rejection,
)

TOKENS_PER_IMAGE = 256
AUTO_MAX_CONCURRENCY = 64
AUTO_MAX_CONTEXT_TOKENS = 2048
"""What `auto` means in `limits`: there is no model whose limits could be asked."""

_MAX_STEP_S = 0.05  # of the clock in one call of step(), so that new requests soon get a free slot
_MAX_FREE_COMPLETIONS = 256  # in one call of step() when no time passes


class ScriptedFaultError(RuntimeError):
    """A scripted fault ended the engine."""


class SimulatedEngine:
    """A `StepEngine` with a cost model.

    `life` says how often this engine was started, from 1: scripted deaths may stop after some lives. `owns_process` is
    true in a child process of its own, which a scripted death really kills and a scripted hang really blocks; elsewhere
    both raise ScriptedFaultError, as the script's `raise` does everywhere. Raises JobError for wrong arguments.
    """

    def __init__(self, spec: EngineSpec, clock: Clock, *, life: int = 1, owns_process: bool = False) -> None:
        max_context_tokens = AUTO_MAX_CONTEXT_TOKENS if spec.max_context_tokens is None else spec.max_context_tokens
        own = "the simulated engine's own" if spec.max_context_tokens is None else ""
        self._spec = replace(spec, max_context_tokens=max_context_tokens, context_reason=own)
        self._arguments = parse_simulated_arguments(spec.arguments)
        self._clock = clock
        self._life = life
        self._owns_process = owns_process
        self._times_left = [fault.times for fault in self._arguments.faults]
        self._schedule = self._create_schedule()
        self._asked: dict[bytes, Asked] = {}
        """Requests that want more than one answer's text."""

    def add(self, request: EngineRequest) -> Rejection | None:
        """Take one request, or say why not."""
        prepared = self.prepare(request)
        return prepared if isinstance(prepared, Rejection) else self.admit(prepared)

    def prepare(self, request: EngineRequest) -> Prepared | Rejection:
        """Measure one request, or say why not: too long for the context, or scripted."""
        prompt_tokens = self.count_tokens(request)
        rejection = reject_too_long(self._spec, request, prompt_tokens)
        if rejection is not None:
            return rejection
        fault = self._find_fault(request.messages) if self._arguments.faults else None
        if fault is FaultKind.REJECT:
            return Rejection(request.document_hash, FailureCode.ENGINE_REJECTED, "rejected by a scripted fault")
        max_tokens = 1 if self._spec.is_pooling else self._spec.max_tokens_of(request.sampling)
        if max_tokens < 1:
            return Rejection(request.document_hash, FailureCode.ENGINE_REJECTED, "max_tokens is less than 1")
        num_answers = self._spec.num_answers_of(request.sampling)
        sequences = tuple(
            self._make_sequence(request, answer, prompt_tokens, max_tokens, fault) for answer in range(num_answers)
        )
        return Prepared(request.document_hash, sequences, request.sampling, request.priority, request.adapter)

    def count_tokens(self, request: EngineRequest) -> int:
        """The estimate that counts."""
        factor = self._arguments.prompt_tokens_factor
        return estimate_prompt_tokens(request.messages, factor, is_plain=self._spec.is_plain)

    def find_room(self, request: EngineRequest) -> int:
        """What the answer leaves of the context."""
        return find_room(self._spec, request)

    def _make_sequence(
        self, request: EngineRequest, answer: int, prompt_tokens: int, max_tokens: int, fault: FaultKind | None
    ) -> Sequence:
        document_hash = vary_hash(request.document_hash, answer)
        priority = request.priority if self._spec.is_by_priority else 0
        sequence = Sequence(request.document_hash, prompt_tokens, 1, fault=fault, priority=priority, answer=answer)
        form = self._spec.form_of(request.sampling)
        if form is None or fault is FaultKind.EMPTY:
            sequence.output_tokens = self._decide_output_tokens(document_hash, max_tokens, fault)
            is_longer = (self._arguments.output_tokens or 0) > max_tokens
            sequence.is_cut = not self._spec.is_pooling and (fault is FaultKind.TRUNCATE or is_longer)
        else:
            sequence.draft = draft_answer(document_hash, form, max_tokens, fault, self._spec.scoring)
            sequence.output_tokens = sequence.draft.output_tokens
        return sequence

    def admit(self, prepared: Prepared) -> Rejection | None:
        """Take one request. It is never refused: `prepare` knows it all."""
        sequences = prepared.prompt
        assert isinstance(sequences, tuple)
        logprobs = prepared.sampling.get("logprobs", self._spec.sampling.get("logprobs"))
        if len(sequences) > 1 or isinstance(logprobs, int) or self._spec.reasoning:
            num_logprobs = logprobs if isinstance(logprobs, int) else None
            self._asked[prepared.document_hash] = Asked(
                len(sequences), num_logprobs, has_reasoning=self._spec.reasoning is not None
            )
        for sequence in sequences:
            sequence.added_at_s = self._clock.now()
            self._schedule.add(sequence)
        return None

    def step(self) -> list[Completion | Rejection]:
        """Run scheduler steps until a sequence finishes, at most 50 ms of the clock (but always one step).

        Raises ScriptedFaultError for a scripted fault that ends the engine.
        """
        finished = self._advance()
        while self._is_free() and len(finished) < _MAX_FREE_COMPLETIONS and self.num_unfinished():
            finished += self._advance()
        return finished

    def abort(self, document_hashes: Iterable[bytes]) -> tuple[bytes, ...]:
        """Drop requests, waiting or running; returns those that were there."""
        aborted = self._schedule.abort(set(document_hashes))
        for document_hash in aborted:
            self._asked.pop(document_hash, None)
        return aborted

    def num_unfinished(self) -> int:
        """Requests added and not yet returned."""
        return self._schedule.num_active + self._schedule.num_waiting

    def num_steps(self) -> int:
        """Steps since its start."""
        return self._schedule.num_steps

    def stats(self) -> EngineStats:
        """A reading now; a token is a block. `memory_bytes` is 0: whoever owns the process knows it."""
        schedule = self._schedule
        num_tokens, num_held = schedule.num_kv_tokens, schedule.num_kv_tokens_held
        peak_active, schedule.peak_active = schedule.peak_active, schedule.num_active
        peak_held, schedule.peak_kv_tokens_held = schedule.peak_kv_tokens_held, num_held
        return EngineStats(
            num_active=schedule.num_active,
            num_waiting=schedule.num_waiting,
            kv_cache_usage=num_held / num_tokens,
            num_preemptions=schedule.num_preemptions,
            num_steps=schedule.num_steps,
            num_output_tokens=0 if self._spec.is_pooling else schedule.num_output_tokens,
            memory_bytes=0,
            num_prompt_tokens=schedule.num_prompt_tokens,
            num_full_steps=schedule.num_full_steps,
            num_fed_steps=schedule.num_fed_steps,
            num_aborted=schedule.num_aborted,
            num_kv_blocks=num_tokens,
            num_free_kv_blocks=num_tokens - num_held,
            peak_active=peak_active,
            peak_kv_cache_usage=peak_held / num_tokens,
            busy_s=schedule.busy_s,
            num_computed_prompt_tokens=schedule.num_computed_prompt_tokens,
            num_context_tokens=schedule.num_context_tokens,
        )

    def gpu_memory_bytes(self) -> int:
        """It has none."""
        return 0

    def ready(self) -> EngineReady:
        """The cost model in use. Without `kv_cache_tokens`, the KV cache holds all slots at their longest."""
        arguments, schedule = self._arguments, self._schedule
        settings: dict[str, JsonValue] = {
            "kind": "simulated",
            **asdict(arguments.cost),
            "clock": "virtual" if arguments.has_virtual_clock else "real",
            "max_concurrency": schedule.num_slots,
            "max_context_tokens": self._spec.max_context_tokens,
            "max_num_batched_tokens": schedule.max_step_tokens,
        }
        if self._spec.scoring is not None and self._spec.scoring.prior is not None:
            settings["label_prior"] = round_all(score_prior(self._spec.scoring))
        return EngineReady(
            0.0,
            schedule.num_kv_tokens,
            settings,
            schedule.num_slots,
            vector_size=arguments.vector_size if self._spec.task == "embed" else None,
            max_context_tokens=self._spec.max_context_tokens,
        )

    def _create_schedule(self) -> Schedule:
        reserve, arguments = Reserve(self._spec.reserve), self._arguments
        num_slots = AUTO_MAX_CONCURRENCY if self._spec.max_concurrency is None else self._spec.max_concurrency
        num_slots, context = reserve.max_sequences(num_slots), self._spec.max_context_tokens
        assert context is not None
        num_kv_tokens = num_slots * context
        if arguments.kv_cache_tokens is not None:
            num_kv_tokens = reserve.max_kv_tokens(arguments.kv_cache_tokens)
        check_room(arguments, num_slots=num_slots, num_kv_tokens=num_kv_tokens, max_context_tokens=context)
        return Schedule(
            num_slots, num_kv_tokens, arguments.max_num_batched_tokens, arguments.cost, self._spec.is_by_priority
        )

    def _advance(self) -> list[Completion | Rejection]:
        """Fill the free slots, then go straight to the next finish, or as far as the time of one call allows."""
        now_s = self._clock.now()
        stretch = self._schedule.begin()
        for sequence in stretch.entered:
            if sequence.fault in ENDING_KINDS:
                self._end(sequence.fault)
            sequence.scheduled_at_s = now_s
        if self._schedule.num_active == 0:
            return []
        self._schedule.run(stretch, _MAX_STEP_S)
        for sequence in stretch.prefilled:
            sequence.first_token_at_s = now_s + stretch.first_step_s
        self._spend(stretch.seconds)
        end_s = self._clock.now()
        return [outcome for sequence in stretch.finished if (outcome := self._finish(sequence, end_s)) is not None]

    def _finish(self, sequence: Sequence, now_s: float) -> Completion | Rejection | None:
        """The outcome of the request, once all of its answers are there."""
        asked = self._asked.get(sequence.document_hash)
        if asked is None:
            asked = Asked(1, None)
        asked.finished.append(sequence)
        if len(asked.finished) < asked.num_answers:
            return None
        self._asked.pop(sequence.document_hash, None)
        if sequence.fault is FaultKind.ERROR:
            return Rejection(
                sequence.document_hash, FailureCode.ENGINE_ERROR, "failed by a scripted fault", sequence.prompt_tokens
            )
        first = min(asked.finished, key=lambda one: one.first_token_at_s)
        written = self._pool(sequence) if self._spec.is_pooling else write_answers(asked)
        return Completion(
            document_hash=sequence.document_hash,
            text=written.text,
            finish_reason=written.finish_reason,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=0,
            output_tokens=written.output_tokens,
            queue_s=first.scheduled_at_s - first.added_at_s,
            first_token_s=min(first.first_token_at_s, now_s) - first.added_at_s,
            total_s=now_s - sequence.added_at_s,
            details=self._describe_score(sequence) or written.details,
            vector=self._make_vector(sequence) if self._spec.task == "embed" else None,
        )

    def _pool(self, sequence: Sequence) -> Joined:
        """What stands beside a vector, or the score."""
        if self._spec.task == "embed":
            return Joined("", FinishReason.STOP, 0, None)
        is_number = sequence.fault is not FaultKind.NAN
        text = "" if sequence.fault is FaultKind.EMPTY else write_score(sequence.document_hash, is_number=is_number)
        return Joined(text, FinishReason.STOP, 0, {"scored_by": "simulation"})

    def _make_vector(self, sequence: Sequence) -> bytes:
        return write_vector(
            sequence.document_hash,
            0 if sequence.fault is FaultKind.EMPTY else self._arguments.vector_size,
            is_normalized=self._spec.is_normalized,
            is_finite=sequence.fault is not FaultKind.NAN,
        )

    def _describe_score(self, sequence: Sequence) -> dict[str, JsonValue] | None:
        scoring = self._spec.scoring
        return None if scoring is None else score(sequence.document_hash, scoring).details

    def _decide_output_tokens(self, document_hash: bytes, max_tokens: int, fault: FaultKind | None) -> int:
        if fault is FaultKind.TRUNCATE:
            return max_tokens
        if self._spec.is_pooling or fault is FaultKind.EMPTY:
            return 1  # the end-of-sequence token
        if self._arguments.output_tokens is not None:
            return min(self._arguments.output_tokens, max_tokens)
        return 1 + int.from_bytes(document_hash[:4], "big") % max_tokens

    def _find_fault(self, messages: tuple[Message, ...]) -> FaultKind | None:
        for index, fault in enumerate(self._arguments.faults):
            if any(fault.match in message.content for message in messages) and self._is_due(index, fault):
                return fault.kind
        return None

    def _is_due(self, index: int, fault: Fault) -> bool:
        if fault.times is None:
            return True
        if fault.kind in ENDING_KINDS:
            # What was counted would be gone with the engine; the number of its lives is known outside.
            return self._life <= fault.times
        times_left = self._times_left[index] or 0
        self._times_left[index] = max(0, times_left - 1)
        return times_left > 0

    def _end(self, kind: FaultKind) -> NoReturn:
        if self._owns_process and kind is FaultKind.DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._owns_process and kind is FaultKind.CRASH:
            os.kill(os.getpid(), signal.SIGSEGV)
        while self._owns_process and kind is FaultKind.HANG:
            time.sleep(60)
        raise ScriptedFaultError(f"scripted fault: {kind}")

    def _spend(self, seconds: float) -> None:
        if seconds > 0:
            self._clock.sleep(seconds)

    def _is_free(self) -> bool:
        return self._arguments.cost == FREE


def estimate_prompt_tokens(messages: Iterable[Message], factor: float = 1.0, *, is_plain: bool = False) -> int:
    """Tokens that these messages count for: 4 for each message and 1 for each begun 4 characters of content.

    As often as `factor` says, `engine.simulated.prompt_tokens_factor`. A plain text has no chat template around it, and
    an image has TOKENS_PER_IMAGE.
    """
    around = 0 if is_plain else 4
    num_tokens = sum(
        around + (len(message.content) + 3) // 4 + TOKENS_PER_IMAGE * len(message.images) for message in messages
    )
    return num_tokens if factor == 1 else max(1, round(num_tokens * factor))
