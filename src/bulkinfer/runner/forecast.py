"""`bulkinfer plan`: what a run would find and do. Loads no model, changes nothing, and works while a run lives.

    input -> Survey (every row, counted) -> samples -> rendered -> tokenized -> Spread -> Estimate -> one JSON object

Rows, different documents, answers and unreadable rows are counts. Tokens and template faults come from a sample where
there are more documents than it holds; whether a number is a count or an estimate stands beside it.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bulkinfer.engines import choose_counter
from bulkinfer.engines.token_counter import TokenCounter, count_tokens
from bulkinfer.events import Counting, EventSink, Warned
from bulkinfer.outcome import is_over_limit
from bulkinfer.prompt import DocumentFault, Prompt
from bulkinfer.prompt.cutting import cap_spans, find_longest, put_text
from bulkinfer.prompt.fitting import expect_parts
from bulkinfer.records import Document, FailureCode, JsonValue, Overlong, SourceFile
from bulkinfer.runner.context import Context, find_context
from bulkinfer.runner.estimate import Estimate, Work, estimate_work
from bulkinfer.runner.memory import peak_memory_bytes
from bulkinfer.runner.plan import RunPlan
from bulkinfer.runner.spread import Spread, shared_share
from bulkinfer.runner.survey import Survey, survey_input
from bulkinfer.store import KindCount, Reader, RemoteReader, RowKind, find_listed, open_reader_if_any, open_tally

_BLOCK_PROMPTS = 256
_NO_LIMIT = 2**62


def forecast_run(plan: RunPlan, emit: EventSink) -> Mapping[str, JsonValue]:
    """What `plan --json` prints.

    Raises InputError as sources do and for an empty input; StoreError when the database is damaged, StoreLocked when
    somebody holds it who cannot be asked; JobError for wrong arguments of a simulated engine.
    """
    start_s = time.monotonic()
    counter = choose_counter(plan.engine_spec)
    for warning in filter(None, (counter.note, *plan.iter_warnings())):
        emit(Warned(warning))
    context = find_context(plan.engine_spec)
    room = None if context.tokens is None else context.tokens - plan.job.spec.max_tokens
    with _open_if_there(plan) as reader, open_tally() as tally:
        listed: frozenset[SourceFile] = frozenset()
        if reader is not None:
            tally.add_outcomes(reader, plan.task_fingerprint)
            by_scan = find_listed(reader, plan.job.spec.name, plan.files, plan.layout)
            listed = frozenset(by_scan[scan] for scan in tally.add_listed(reader, list(by_scan)))
        safe_bytes = _NO_LIMIT if room is None else counter.find_safe_bytes(room)
        survey = survey_input(plan, tally, safe_bytes, emit, listed)
        prompts = _Prompts(plan, counter, context.tokens, emit, Overlong(plan.job.spec.limits.overlong))
        prompts.measure(survey)
        num_rows = tally.count_rows(prompts.failing)
        num_failing_rows = sum(weight * num_rows[found] for found, weight in prompts.failing.items())
        estimate = estimate_work(plan, Work(prompts.tokens.weight, prompts.tokens.total), reader)
    found = _describe(plan, survey, prompts, num_failing_rows, estimate, context)
    seconds = {"total": round(time.monotonic() - start_s, 3), "reading": round(survey.seconds, 3)}
    return {**found, "seconds": seconds, "peak_memory_bytes": peak_memory_bytes()}


@contextmanager
def _open_if_there(plan: RunPlan) -> Iterator[Reader | RemoteReader | None]:
    reader = open_reader_if_any(plan.job.database_path)
    if reader is None:
        yield None
        return
    with reader:
        yield reader


@dataclass(slots=True)
class _Prompts:
    """Both samples, rendered and tokenized; each document stands for as many as there are to one of its sample."""

    plan: RunPlan
    counter: TokenCounter
    context_tokens: int | None
    """The most tokens that a prompt and its answer may have."""
    emit: EventSink
    policy: Overlong
    tokens: Spread = field(default_factory=Spread)
    """Of the prompts that fit."""
    too_long: Spread = field(default_factory=Spread)
    """As they are before anything is cut."""
    num_unfit: float = 0.0
    """Those of them that cutting does not help, or that the job lets fail."""
    faults: defaultdict[FailureCode, float] = field(default_factory=lambda: defaultdict(float))
    """Not whole numbers: of documents that a sample stands for."""
    failing: dict[bytes, float] = field(default_factory=dict)
    """Documents of a sample that will fail, by hash, each with the number that it stands for."""
    texts: list[str] = field(default_factory=list)
    output_at_most: float = 0.0
    """Tokens of all answers to the prompts that fit."""
    num_sampled: int = 0
    num_counted: int = 0
    is_complete: bool = True
    """Whether every document to do is in a sample."""
    is_long_complete: bool = True
    """Whether every document to do that may be too long is."""

    num_parts: float = 0.0
    """Of documents that are split."""

    @property
    def num_asked(self) -> float:
        """Documents that the engine is asked; those that are split are asked their parts, and to join them."""
        return self.tokens.weight - self.num_parts

    @property
    def num_cut(self) -> float:
        """Those of them that are cut so that they fit."""
        return self.too_long.weight - self.num_unfit

    def measure(self, survey: Survey) -> None:
        self.num_sampled = sum(len(sample) for sample in survey.samples.values())
        for kind, sample in survey.samples.items():
            num_to_do = survey.counts[kind].num_to_do
            is_whole = len(sample) == num_to_do
            self.is_complete &= is_whole
            self.is_long_complete &= is_whole or kind is not RowKind.LONG
            documents = list(sample.items())
            for start in range(0, len(documents), _BLOCK_PROMPTS):
                self._measure(documents[start : start + _BLOCK_PROMPTS], num_to_do / len(documents))
        self.texts.sort()

    def _measure(self, documents: Sequence[tuple[bytes, Document]], weight: float) -> None:
        spec = self.plan.engine_spec
        prompts: dict[bytes, Prompt] = {}
        for document_hash, document in documents:
            match self.plan.template.prepare(document, notes_spans=self.policy is not Overlong.FAIL):
                case DocumentFault(code):
                    self._note_fault(document_hash, code, weight)
                case Prompt() as prompt:
                    prompts[document_hash] = prompt
        counts = count_tokens(self.counter, [prompt.messages for prompt in prompts.values()])
        for (document_hash, prompt), (num_tokens, longest) in zip(prompts.items(), counts, strict=True):
            max_tokens = spec.max_tokens_of(prompt.sampling)
            room = None if self.context_tokens is None else self.context_tokens - max_tokens
            if num_tokens is None or longest is None:
                self._note_fault(document_hash, FailureCode.ENGINE_REJECTED, weight)
            elif room is not None and longest > room:
                self.too_long.add(num_tokens, weight)
                if not self._note_cut(prompt, num_tokens, room, weight):
                    self.num_unfit += weight
                    self.failing[document_hash] = weight
            else:
                self.tokens.add(num_tokens, weight)
                self._expect_answer(prompt, weight)
                self.texts.append("\0".join(message.content for message in prompt.messages))
        self.num_counted += len(documents)
        self.emit(Counting(self.num_sampled, self.num_counted))

    def _expect_answer(self, prompt: Prompt, weight: float) -> None:
        spec = self.plan.engine_spec
        num_tokens = spec.max_tokens_of(prompt.sampling) * spec.num_answers_of(prompt.sampling)
        self.output_at_most += weight * num_tokens

    def _note_cut(self, prompt: Prompt, num_tokens: int, room: int, weight: float) -> bool:
        """Count what is asked of a document that is cut; False where that is not enough."""
        if self.policy is Overlong.FAIL or not prompt.spans:
            return False
        if self.policy is Overlong.SPLIT:
            return self._note_split(prompt, num_tokens, room, weight)
        (least,) = self.counter.count([cap_spans(prompt.messages, prompt.spans, 0, self.policy)])
        if least is None or least > room:
            return False
        self.tokens.add(room, weight)
        self._expect_answer(prompt, weight)
        return True

    def _note_split(self, prompt: Prompt, num_tokens: int, room: int, weight: float) -> bool:
        _, places = find_longest(prompt.messages, prompt.spans)
        (around,) = self.counter.count([put_text(prompt.messages, places, "")])
        overlap_tokens = self.plan.job.spec.limits.overlap_tokens
        asked = None if around is None else expect_parts(num_tokens, around, room, overlap_tokens)
        if asked is None:
            return False
        num_parts, part_tokens = asked
        self.num_parts += weight * num_parts
        self.tokens.add(part_tokens, weight * num_parts)
        # The answers are not longer than this, and are joined at once where that fits.
        self.tokens.add(min(room, num_parts * self.plan.engine_spec.max_tokens_of(prompt.sampling)), weight)
        self._expect_answer(prompt, weight * (num_parts + 1))
        return True

    def _note_fault(self, document_hash: bytes, code: FailureCode, weight: float) -> None:
        self.faults[code] += weight
        self.failing[document_hash] = weight


def _describe(
    plan: RunPlan, survey: Survey, prompts: _Prompts, num_failing_rows: float, estimate: Estimate, context: Context
) -> Mapping[str, JsonValue]:
    counts = _add_up(survey.counts.values())
    unreadable = survey.counts[RowKind.UNREADABLE]
    failures = _expect_failures(prompts, context, unreadable.num_to_do)
    num_unreadable_rows = unreadable.num_rows - unreadable.num_failed_rows
    num_failed_rows = counts.num_failed_rows + num_unreadable_rows + round(num_failing_rows)
    max_failures = plan.job.spec.limits.max_failures
    return {
        "job": plan.job.spec.name,
        "task_fingerprint": str(plan.task_fingerprint),
        "database": str(plan.job.database_path),
        "documents": {
            "read": counts.num_rows,
            "distinct": counts.num_distinct,
            "duplicates": counts.num_rows - counts.num_distinct,
            "already_done": counts.num_answered + counts.num_failed,
            "answered": counts.num_answered,
            "failed_before": counts.num_failed,
            "to_do": counts.num_to_do,
            "to_ask": round(prompts.num_asked),
        },
        "unreadable": {
            "rows": unreadable.num_rows,
            "documents": unreadable.num_distinct,
            "by_reason": survey.unreadable,
            "first": list(survey.first_unreadable),
            "hint": _hint(counts, unreadable, survey),
        },
        "expected_failures": {
            code.value: {"documents": round(count), "is_exact": is_exact}
            for code, (count, is_exact) in sorted(failures.items())
        },
        "failed_rows": {
            "rows": num_failed_rows,
            "is_exact": all(is_exact for _, is_exact in failures.values()),
        },
        # Rows, as the run counts at its end: a thousand equal rows without a body are a thousand that get no answer.
        "exceeds_max_failures": is_over_limit(max_failures, num_failed_rows, counts.num_rows, is_final=True),
        "overlong": {
            "policy": prompts.policy.value,
            "documents": round(prompts.too_long.weight),
            "cut": round(prompts.num_cut),
            "parts": round(prompts.num_parts),
            "is_exact": prompts.counter.is_exact and context.is_certain and prompts.is_long_complete,
        },
        "tokens": _describe_tokens(prompts, estimate, context),
        "sample": {"documents": prompts.num_sampled, "is_complete": prompts.is_complete},
        "time": _describe_time(estimate),
    }


def _hint(counts: KindCount, unreadable: KindCount, survey: Survey) -> str | None:
    """What is wrong with the whole input, rather than with some rows of it."""
    reason = next(iter(survey.unreadable), None)
    if reason is None or unreadable.num_rows < counts.num_rows or survey.unreadable[reason] < counts.num_rows / 2:
        return None
    return f"no row of the input can be asked, most of them for one reason: {reason}"


def _add_up(counts: Iterable[KindCount]) -> KindCount:
    found = list(counts)
    return KindCount(
        sum(count.num_rows for count in found),
        sum(count.num_distinct for count in found),
        sum(count.num_answered for count in found),
        sum(count.num_failed for count in found),
        sum(count.num_failed_rows for count in found),
    )


def _expect_failures(prompts: _Prompts, context: Context, num_unreadable: int) -> dict[FailureCode, tuple[float, bool]]:
    """Documents that will fail before the engine runs them, and whether that is a count; only codes that come up."""
    is_exact = prompts.counter.is_exact and context.is_certain
    found: dict[FailureCode, tuple[float, bool]] = {
        code: (count, prompts.is_complete) for code, count in prompts.faults.items()
    }
    found[FailureCode.UNREADABLE_ROW] = num_unreadable, True
    found[FailureCode.PROMPT_TOO_LONG] = prompts.num_unfit, is_exact and prompts.is_long_complete
    return {code: (count, is_known) for code, (count, is_known) in found.items() if count}


def _describe_tokens(prompts: _Prompts, estimate: Estimate, context: Context) -> Mapping[str, JsonValue]:
    tokens = prompts.tokens
    p50, p95, p99 = tokens.percentiles((0.5, 0.95, 0.99))
    return {
        "counted_by": prompts.counter.name,
        "note": prompts.counter.note,
        "is_exact": prompts.is_complete
        and prompts.counter.is_exact
        and context.is_certain
        and prompts.num_cut == 0,  # a cut leaves a token or two of the room
        "prompt": round(tokens.total),
        "output_at_most": round(prompts.output_at_most),
        "output_expected": None if estimate.output_tokens is None else round(estimate.output_tokens),
        "max_context_tokens": context.tokens,
        "max_context_tokens_from": context.origin.value,
        "per_prompt": {
            "mean": round(tokens.total / tokens.weight, 1) if tokens.weight else 0.0,
            "p50": p50,
            "p95": p95,
            "p99": p99,
            "max": tokens.largest,
        },
        "longest": max(tokens.largest, prompts.too_long.largest),
        "histogram": [
            {"from": bucket.start, "below": bucket.end, "documents": round(bucket.weight)}
            for bucket in tokens.histogram()
        ],
        "shared_prefix_share": round(shared_share(prompts.texts), 4),
    }


def _describe_time(estimate: Estimate) -> Mapping[str, JsonValue]:
    low_s, high_s = estimate.low_s, estimate.high_s
    return {
        "seconds": None if low_s is None or high_s is None else round((low_s + high_s) / 2, 1),
        "low": None if low_s is None else round(low_s, 1),
        "high": None if high_s is None else round(high_s, 1),
        "engine_start": estimate.engine_start_s,
        "basis": estimate.basis.value,
        "reason": estimate.reason,
        "advice": estimate.advice,
        "runs": list(estimate.runs),
    }
