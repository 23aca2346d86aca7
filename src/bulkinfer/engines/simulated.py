"""An engine without a model, for dry runs, for tests and for planning at sizes that no one machine has.

It schedules as vLLM does (continuous batching over a fixed number of slots, first in, first out) and spends time by a
cost model. One scheduler step gives each running sequence one token and lasts

    prompt tokens of the sequences that enter with it * seconds_per_prompt_token + seconds_per_output_token

so a document alone takes prompt_tokens * seconds_per_prompt_token + output_tokens * seconds_per_output_token. Prompt
tokens are an estimate: 4 for each message (what a chat template adds) and 1 for each 4 characters of content.

The same requests in the same order get the same answers and, on a virtual clock, the same timings. An answer depends on
the document hash alone. It answers nothing sensible: its words carry no meaning.
"""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import NoReturn

from bulkinfer.engines.base import EngineRequest, EngineSpec, Prepared, reject_too_long
from bulkinfer.engines.clock import Clock
from bulkinfer.engines.simulated_arguments import ENDING_KINDS, Fault, FaultKind, parse_simulated_arguments
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

AUTO_MAX_CONCURRENCY = 64
AUTO_MAX_CONTEXT_TOKENS = 2048
"""What `auto` means in `limits`: there is no model whose limits could be asked."""

_MAX_STEP_S = 0.05  # of the clock in one call of step(), so that new requests soon get a free slot
_MAX_FREE_COMPLETIONS = 256  # in one call of step() when no time passes

_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "br")
_RIMES = ("a", "e", "i", "o", "u", "an", "el", "in", "or", "um", "ando", "ento", "ila", "ora", "uma", "esto")
_WORDS = tuple(onset + rime + " " for onset in _ONSETS for rime in _RIMES)


class ScriptedFaultError(RuntimeError):
    """A scripted fault ended the engine."""


@dataclass(slots=True)
class _Sequence:
    """One request in the engine."""

    document_hash: bytes
    prompt_tokens: int
    output_tokens: int
    is_cut: bool
    """By its max_tokens."""
    fault: FaultKind | None
    priority: int = 0
    """0 where priorities do not count."""
    added_at_s: float = 0.0
    scheduled_at_s: float = 0.0
    first_token_at_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        """What it holds of the KV cache at its end."""
        return self.prompt_tokens + self.output_tokens


class SimulatedEngine:
    """A `StepEngine` with a cost model.

    `life` says how often this engine was started, from 1: scripted deaths may stop after some lives. `owns_process` is
    true in a child process of its own, which a scripted death really kills and a scripted hang really blocks; elsewhere
    both raise ScriptedFaultError, as the script's `raise` does everywhere. Raises JobError for wrong arguments.
    """

    def __init__(self, spec: EngineSpec, clock: Clock, *, life: int = 1, owns_process: bool = False) -> None:
        self._max_concurrency = AUTO_MAX_CONCURRENCY if spec.max_concurrency is None else spec.max_concurrency
        max_context_tokens = AUTO_MAX_CONTEXT_TOKENS if spec.max_context_tokens is None else spec.max_context_tokens
        self._max_context_tokens = max_context_tokens
        own = "the simulated engine's own" if spec.max_context_tokens is None else ""
        self._spec = replace(spec, max_context_tokens=max_context_tokens, context_reason=own)
        self._arguments = parse_simulated_arguments(spec.arguments)
        self._clock = clock
        self._life = life
        self._owns_process = owns_process
        self._times_left = [fault.times for fault in self._arguments.faults]
        self._waiting: list[tuple[int, int, _Sequence]] = []
        """A heap: the priority, the order in which they came, the sequence."""
        self._num_come = 0
        self._num_aborted = 0
        self._peak_active = 0
        self._peak_tokens_held = 0
        self._running: list[tuple[int, int, _Sequence]] = []
        """A heap: the step in which a sequence finishes, the order of entry, the sequence."""
        self._num_entered = 0
        self._num_steps = 0
        self._num_full_steps = 0
        self._num_fed_steps = 0
        self._num_output_tokens = 0
        self._num_prompt_tokens = 0
        self._num_tokens_held = 0

    def add(self, request: EngineRequest) -> Rejection | None:
        """Take one request, or say why not."""
        prepared = self.prepare(request)
        return prepared if isinstance(prepared, Rejection) else self.admit(prepared)

    def prepare(self, request: EngineRequest) -> Prepared | Rejection:
        """Measure one request, or say why not: too long for the context, or scripted."""
        prompt_tokens = estimate_prompt_tokens(request.messages)
        rejection = reject_too_long(self._spec, request, prompt_tokens)
        if rejection is not None:
            return rejection
        fault = self._find_fault(request.messages) if self._arguments.faults else None
        if fault is FaultKind.REJECT:
            return Rejection(request.document_hash, FailureCode.ENGINE_REJECTED, "rejected by a scripted fault")
        max_tokens = self._spec.max_tokens if request.max_tokens is None else request.max_tokens
        if max_tokens < 1:
            return Rejection(request.document_hash, FailureCode.ENGINE_REJECTED, "max_tokens is less than 1")
        return Prepared(
            request.document_hash,
            _Sequence(
                request.document_hash,
                prompt_tokens,
                self._decide_output_tokens(request.document_hash, max_tokens, fault),
                fault is FaultKind.TRUNCATE or (self._arguments.output_tokens or 0) > max_tokens,
                fault,
                request.priority if self._spec.is_by_priority else 0,
            ),
        )

    def admit(self, prepared: Prepared) -> Rejection | None:
        """Take one request. It is never refused: `prepare` knows it all."""
        sequence = prepared.prompt
        assert isinstance(sequence, _Sequence)
        sequence.added_at_s = self._clock.now()
        self._num_come += 1
        heappush(self._waiting, (sequence.priority, self._num_come, sequence))
        self._num_fed_steps = self._num_steps
        return None

    def step(self) -> list[Completion | Rejection]:
        """Run scheduler steps until a sequence finishes, at most 50 ms of the clock (but always one step).

        Raises ScriptedFaultError for a scripted fault that ends the engine.
        """
        finished = self._advance()
        while self._is_free() and len(finished) < _MAX_FREE_COMPLETIONS and (self._running or self._waiting):
            finished += self._advance()
        return finished

    def abort(self, document_hashes: Sequence[bytes]) -> tuple[bytes, ...]:
        """Drop requests, waiting or running; returns those that were there."""
        wanted = set(document_hashes)
        entries = (*self._waiting, *self._running)
        dropped = tuple(entry[2].document_hash for entry in entries if entry[2].document_hash in wanted)
        self._waiting = [entry for entry in self._waiting if entry[2].document_hash not in wanted]
        self._running = [entry for entry in self._running if entry[2].document_hash not in wanted]
        heapify(self._waiting)
        heapify(self._running)
        self._num_tokens_held = sum(sequence.num_tokens for _, _, sequence in self._running)
        self._num_aborted += len(dropped)
        return dropped

    def num_unfinished(self) -> int:
        """Requests added and not yet returned."""
        return len(self._waiting) + len(self._running)

    def num_steps(self) -> int:
        """Steps since its start."""
        return self._num_steps

    def stats(self) -> EngineStats:
        """A reading now; a token is a block. `memory_bytes` is 0: whoever owns the process knows it."""
        num_tokens = self._num_kv_cache_tokens()
        peak_active, self._peak_active = self._peak_active, len(self._running)
        peak_tokens_held, self._peak_tokens_held = self._peak_tokens_held, self._num_tokens_held
        return EngineStats(
            num_active=len(self._running),
            num_waiting=len(self._waiting),
            kv_cache_usage=self._num_tokens_held / num_tokens,
            num_preemptions=0,
            num_steps=self._num_steps,
            num_output_tokens=self._num_output_tokens,
            memory_bytes=0,
            num_prompt_tokens=self._num_prompt_tokens,
            num_full_steps=self._num_full_steps,
            num_fed_steps=self._num_fed_steps,
            num_aborted=self._num_aborted,
            num_kv_blocks=num_tokens,
            num_free_kv_blocks=num_tokens - self._num_tokens_held,
            peak_active=peak_active,
            peak_kv_cache_usage=peak_tokens_held / num_tokens,
        )

    def gpu_memory_bytes(self) -> int:
        """It has none."""
        return 0

    def ready(self) -> EngineReady:
        """The cost model in use. The KV cache holds all slots at their longest."""
        settings: dict[str, JsonValue] = {
            "kind": "simulated",
            "seconds_per_prompt_token": self._arguments.seconds_per_prompt_token,
            "seconds_per_output_token": self._arguments.seconds_per_output_token,
            "clock": "virtual" if self._arguments.has_virtual_clock else "real",
            "max_concurrency": self._max_concurrency,
            "max_context_tokens": self._max_context_tokens,
        }
        return EngineReady(0.0, self._num_kv_cache_tokens(), settings, self._max_concurrency)

    def _advance(self) -> list[Completion | Rejection]:
        """Fill the free slots, then go straight to the next finish, or as far as the time of one call allows."""
        now_s = self._clock.now()
        entered = self._fill_slots(now_s)
        if not self._running:
            return []
        num_prompt_tokens = sum(sequence.prompt_tokens for sequence in entered)
        prefill_s = num_prompt_tokens * self._arguments.seconds_per_prompt_token
        step_s = self._arguments.seconds_per_output_token
        num_steps = self._running[0][0] - self._num_steps
        if step_s > 0:
            num_steps = min(num_steps, max(1, int((_MAX_STEP_S - prefill_s) / step_s)))
        for sequence in entered:
            sequence.first_token_at_s = now_s + prefill_s + step_s
        self._spend(prefill_s + num_steps * step_s)
        self._num_steps += num_steps
        if len(self._running) == self._max_concurrency:
            self._num_full_steps += num_steps
            self._num_fed_steps = self._num_steps
        self._num_output_tokens += num_steps * len(self._running)
        self._num_prompt_tokens += num_prompt_tokens
        return self._collect_finished()

    def _fill_slots(self, now_s: float) -> list[_Sequence]:
        entered = []
        while self._waiting and len(self._running) < self._max_concurrency:
            sequence = heappop(self._waiting)[2]
            if sequence.fault in ENDING_KINDS:
                self._end(sequence.fault)
            sequence.scheduled_at_s = now_s
            self._num_tokens_held += sequence.num_tokens
            self._num_entered += 1
            heappush(self._running, (self._num_steps + sequence.output_tokens, self._num_entered, sequence))
            entered.append(sequence)
        self._peak_active = max(self._peak_active, len(self._running))
        self._peak_tokens_held = max(self._peak_tokens_held, self._num_tokens_held)
        return entered

    def _collect_finished(self) -> list[Completion | Rejection]:
        finished: list[Completion | Rejection] = []
        now_s = self._clock.now()
        while self._running and self._running[0][0] <= self._num_steps:
            sequence = heappop(self._running)[2]
            self._num_tokens_held -= sequence.num_tokens
            finished.append(self._finish(sequence, now_s))
        return finished

    def _finish(self, sequence: _Sequence, now_s: float) -> Completion | Rejection:
        if sequence.fault is FaultKind.ERROR:
            return Rejection(
                sequence.document_hash, FailureCode.ENGINE_ERROR, "failed by a scripted fault", sequence.prompt_tokens
            )
        is_empty = sequence.fault is FaultKind.EMPTY
        return Completion(
            document_hash=sequence.document_hash,
            text="" if is_empty else write_text(sequence.document_hash, sequence.output_tokens),
            finish_reason=FinishReason.LENGTH if sequence.is_cut else FinishReason.STOP,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=0,
            output_tokens=sequence.output_tokens,
            queue_s=sequence.scheduled_at_s - sequence.added_at_s,
            first_token_s=min(sequence.first_token_at_s, now_s) - sequence.added_at_s,
            total_s=now_s - sequence.added_at_s,
        )

    def _decide_output_tokens(self, document_hash: bytes, max_tokens: int, fault: FaultKind | None) -> int:
        if fault is FaultKind.TRUNCATE:
            return max_tokens
        if fault is FaultKind.EMPTY:
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
        return self._arguments.seconds_per_prompt_token == 0 and self._arguments.seconds_per_output_token == 0

    def _num_kv_cache_tokens(self) -> int:
        return self._max_concurrency * self._max_context_tokens


def estimate_prompt_tokens(messages: Sequence[Message]) -> int:
    """Tokens that these messages count for: 4 for each message and 1 for each begun 4 characters of content."""
    return sum(4 + (len(message.content) + 3) // 4 for message in messages)


def write_text(document_hash: bytes, num_words: int) -> str:
    """`num_words` words chosen by the hash, one for each output token; the 16 words of a hash come again and again."""
    num_rounds, num_more = divmod(num_words, len(document_hash))
    words = "".join([_WORDS[byte] for byte in document_hash]) if num_rounds else ""
    return (words * num_rounds + "".join([_WORDS[byte] for byte in document_hash[:num_more]])).rstrip()
