"""The scheduler of the simulated engine: which sequences run in a step, what they hold, and what the step costs.

As vLLM's, with chunked prefill: those that run come first, then those that wait, by priority or in the order in which
they came, as long as there is a sequence, a token of the step and room for the whole prompt in the KV cache. When the
cache is full, the least urgent that came last is put back among those that wait, and is computed again from its start.
It knows no clock and no answers.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from bulkinfer.engines.answers import Answer
from bulkinfer.engines.simulated_arguments import FaultKind
from bulkinfer.engines.simulated_cost import StepCost


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer in the making: a request may have several."""

    document_hash: bytes
    prompt_tokens: int
    output_tokens: int
    is_cut: bool = False
    """By its max_tokens. Only the engine looks at this, the fault, the draft and the times."""
    fault: FaultKind | None = None
    draft: Answer | None = None
    """The answer, where the job asks for a form."""
    priority: int = 0
    """0 where priorities do not count."""
    answer: int = 0
    """The how-manieth of its request, from 0."""
    added_at_s: float = 0.0
    scheduled_at_s: float = 0.0
    first_token_at_s: float = 0.0
    came_as: int = 0
    """The how-manieth; likewise the next."""
    entered_as: int = 0
    num_generated: int = 0
    """Tokens of its answer, when it last stood still."""
    num_uncomputed: int = 0
    """Of its prompt, and of its answer if it was put back."""


@dataclass(slots=True)
class Stretch:
    """Some steps in a row in which nothing changes but that each sequence gets one token a step."""

    num_steps: int = 0
    seconds: float = 0.0
    first_step_s: float = 0.0
    """Of that, until the end of its first step."""
    entered: list[Sequence] = field(default_factory=list)
    """Run for the first time."""
    prefilled: list[Sequence] = field(default_factory=list)
    """Got their first token in its first step."""
    finished: list[Sequence] = field(default_factory=list)
    """In its last step."""
    is_step_full: bool = False
    """Its first step has no tokens for one that waits."""


@dataclass(slots=True)
class Schedule:
    """What waits, what runs, and the counters of it."""

    num_slots: int
    num_kv_tokens: int
    max_step_tokens: int | None
    """Prompt and output tokens of one step together; None: any number."""
    cost: StepCost
    is_by_priority: bool = False
    num_steps: int = 0
    num_full_steps: int = 0
    num_fed_steps: int = 0
    num_output_tokens: int = 0
    num_prompt_tokens: int = 0
    num_computed_prompt_tokens: int = 0
    num_context_tokens: int = 0
    num_preemptions: int = 0
    num_aborted: int = 0
    busy_s: float = 0.0
    num_kv_tokens_held: int = 0
    peak_active: int = 0
    peak_kv_tokens_held: int = 0
    _num_come: int = 0
    _num_entered: int = 0
    _waiting: list[tuple[int, int, Sequence]] = field(default_factory=list)
    """A heap: the priority, the order in which they came, the sequence."""
    _prefilling: deque[Sequence] = field(default_factory=deque)
    """Have a slot, and a prompt that is not computed to its end."""
    _decoding: list[tuple[int, int, Sequence]] = field(default_factory=list)
    """A heap: the step in which a sequence finishes, the order of entry, the sequence."""

    @property
    def num_active(self) -> int:
        """Sequences that have a slot."""
        return len(self._decoding) + len(self._prefilling)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Let it wait."""
        self._num_come += 1
        sequence.came_as = self._num_come
        sequence.num_uncomputed = sequence.prompt_tokens
        self._put(sequence)
        self.num_fed_steps = self.num_steps

    def abort(self, document_hashes: Collection[bytes]) -> tuple[bytes, ...]:
        """Drop sequences, wherever they are; returns the requests that were there."""
        wanted = set(document_hashes)
        dropped = [sequence for sequence in self._iter_all() if sequence.document_hash in wanted]
        self.num_kv_tokens_held -= sum(map(self._count_held, dropped))
        self._waiting = [entry for entry in self._waiting if entry[2].document_hash not in wanted]
        self._decoding = [entry for entry in self._decoding if entry[2].document_hash not in wanted]
        self._prefilling = deque(one for one in self._prefilling if one.document_hash not in wanted)
        heapify(self._waiting)
        heapify(self._decoding)
        aborted = tuple(dict.fromkeys(sequence.document_hash for sequence in dropped))
        self.num_aborted += len(aborted)
        return aborted

    def begin(self) -> Stretch:
        """Decide who runs in the next step."""
        stretch = Stretch()
        if not self._make_room():
            self._admit(stretch)
        self.peak_active = max(self.peak_active, self.num_active)
        return stretch

    def run(self, stretch: Stretch, most_s: float) -> None:
        """Go straight to the next step in which something changes, or as far as `most_s` seconds allow; at least one
        step."""
        num_prompt_tokens = self._prefill(stretch)
        num_sequences = len(self._decoding)
        num_context_tokens = self.num_kv_tokens_held - num_prompt_tokens
        stretch.first_step_s = self.cost.seconds(num_prompt_tokens, num_sequences, num_context_tokens)
        stretch.num_steps = self._count_steps(stretch.first_step_s, most_s, is_step_full=stretch.is_step_full)
        more, seconds_more = stretch.num_steps - 1, 0.0
        if more:
            held = more * self.num_kv_tokens_held + num_sequences * more * (more + 1) // 2
            num_context_tokens += held
            seconds_more = self.cost.seconds(0, more * num_sequences, held, more)
        stretch.seconds = stretch.first_step_s + seconds_more
        self._count(stretch, num_prompt_tokens, num_sequences, num_context_tokens)
        self._collect_finished(stretch)

    def _make_room(self) -> bool:
        """Put sequences back until the KV cache has room for the prompts that were let in and for one token more of
        each that decodes. Whether any was."""
        is_short = False
        while self._count_needed() > self.num_kv_tokens - self.num_kv_tokens_held and self.num_active > 1:
            self._put_back(self._choose_victim())
            is_short = True
        return is_short

    def _count_needed(self) -> int:
        return len(self._decoding) + sum(one.num_uncomputed + 1 for one in self._prefilling)

    def _choose_victim(self) -> Sequence:
        running = (*self._prefilling, *(entry[2] for entry in self._decoding))
        if self.is_by_priority:
            return max(running, key=lambda one: (one.priority, one.came_as))
        return max(running, key=lambda one: one.entered_as)

    def _put_back(self, sequence: Sequence) -> None:
        self.num_kv_tokens_held -= self._count_held(sequence)
        if sequence.num_uncomputed:
            self._prefilling.remove(sequence)
        else:
            entry = next(entry for entry in self._decoding if entry[2] is sequence)
            sequence.num_generated = sequence.output_tokens - (entry[0] - self.num_steps)
            self._decoding.remove(entry)
            heapify(self._decoding)
        sequence.num_uncomputed = sequence.prompt_tokens + sequence.num_generated
        self.num_preemptions += 1
        self._put(sequence)

    def _put(self, sequence: Sequence) -> None:
        heappush(self._waiting, (sequence.priority, sequence.came_as, sequence))

    def _admit(self, stretch: Stretch) -> None:
        """Fill the free slots. The first that does not fit holds up the others, as in vLLM."""
        num_free = self.num_kv_tokens - self.num_kv_tokens_held - self._count_needed()
        tokens_left = self._step_tokens_left() - sum(one.num_uncomputed for one in self._prefilling)
        while self._waiting and self.num_active < self.num_slots and tokens_left > 0:
            sequence = self._waiting[0][2]
            if sequence.num_uncomputed >= num_free and self.num_active > 0:
                return
            heappop(self._waiting)
            self._num_entered += 1
            if not sequence.entered_as:
                stretch.entered.append(sequence)
            sequence.entered_as = self._num_entered
            num_free -= sequence.num_uncomputed + 1
            tokens_left -= sequence.num_uncomputed
            self._prefilling.append(sequence)
        stretch.is_step_full = tokens_left <= 0

    def _step_tokens_left(self) -> int:
        """What the step has beside a token of each sequence that decodes."""
        return 1 << 62 if self.max_step_tokens is None else self.max_step_tokens - len(self._decoding)

    def _prefill(self, stretch: Stretch) -> int:
        """Compute prompts, as far as the step has tokens; returns how many it took."""
        tokens_left = most = self._step_tokens_left()
        while self._prefilling and tokens_left > 0:
            sequence = self._prefilling[0]
            num_computed = min(tokens_left, sequence.num_uncomputed)
            tokens_left -= num_computed
            sequence.num_uncomputed -= num_computed
            self.num_kv_tokens_held += num_computed
            if sequence.num_uncomputed:
                break
            self._prefilling.popleft()
            if not sequence.num_generated:
                stretch.prefilled.append(sequence)
                self.num_prompt_tokens += sequence.prompt_tokens
            ends_at = self.num_steps + sequence.output_tokens - sequence.num_generated
            heappush(self._decoding, (ends_at, sequence.entered_as, sequence))
        return most - tokens_left

    def _count_steps(self, first_step_s: float, most_s: float, *, is_step_full: bool) -> int:
        if self._prefilling or not self._decoding or (is_step_full and self._waiting):
            return 1
        num_sequences = len(self._decoding)
        num_steps = self._decoding[0][0] - self.num_steps
        num_steps = min(num_steps, max(1, (self.num_kv_tokens - self.num_kv_tokens_held) // num_sequences))
        step_s = self.cost.seconds(0, num_sequences, self.num_kv_tokens_held)
        if step_s > 0:
            num_steps = min(num_steps, max(1, 1 + int((most_s - first_step_s) / step_s)))
        return num_steps

    def _count(self, stretch: Stretch, num_prompt_tokens: int, num_sequences: int, num_context_tokens: int) -> None:
        self.num_steps += stretch.num_steps
        self.busy_s += stretch.seconds
        self.num_computed_prompt_tokens += num_prompt_tokens
        self.num_context_tokens += num_context_tokens
        self.num_output_tokens += stretch.num_steps * num_sequences
        self.num_kv_tokens_held += stretch.num_steps * num_sequences
        self.peak_kv_tokens_held = max(self.peak_kv_tokens_held, self.num_kv_tokens_held)
        if self.num_active == self.num_slots or self._waiting:
            self.num_full_steps += stretch.num_steps
            self.num_fed_steps = self.num_steps

    def _collect_finished(self, stretch: Stretch) -> None:
        while self._decoding and self._decoding[0][0] <= self.num_steps:
            sequence = heappop(self._decoding)[2]
            self.num_kv_tokens_held -= sequence.prompt_tokens + sequence.output_tokens
            stretch.finished.append(sequence)

    def _count_held(self, sequence: Sequence) -> int:
        """Tokens that it has in the KV cache."""
        for ends_at, _, one in self._decoding:
            if one is sequence:
                return sequence.prompt_tokens + sequence.output_tokens - (ends_at - self.num_steps)
        if sequence in self._prefilling:
            return sequence.prompt_tokens + sequence.num_generated - sequence.num_uncomputed
        return 0

    def _iter_all(self) -> Iterator[Sequence]:
        yield from self._prefilling
        yield from (entry[2] for entry in (*self._decoding, *self._waiting))
