"""A small database of which every number is known: two runs of one task, the second with failures and a stall."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from unittest.mock import patch
from uuid import UUID, uuid4

from bulkinfer.records import FailureCode, JsonValue, Outcome, RunStatus
from bulkinfer.store import CommitLimits, RunRecord, Sample, Store, TaskRecord, samples
from tests.unit.store_support import make_failure, make_file, make_result, make_rows, make_sample

GIB = 1024**3
SPEC = (
    '{"model": {"path": "the-model", "revision": null}, "sampling": {"temperature": 0.5, "max_tokens": 48, '
    '"stop": ["SECRET"]}, "prompt": {"user": "SECRET PROMPT"}}'
)
TASK = TaskRecord(UUID("11111111-1111-1111-1111-111111111111"), SPEC)
STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SETTINGS: dict[str, JsonValue] = {
    "max_num_seqs": 8,
    "vllm_version": "0.32.0",
    "reasons": {"max_num_seqs": "fits into memory"},
}

FIRST = (
    make_sample(4.0, read=4, succeeded=2, prompt_tokens=20, output_tokens=6, cached_tokens=4, runner_memory_bytes=GIB),
    make_sample(8.0, read=4, succeeded=4, prompt_tokens=40, output_tokens=12, cached_tokens=8, runner_memory_bytes=GIB),
)
SECOND = (
    make_sample(
        10.0, read=20, succeeded=5, failed=0, queued=10, in_flight=5, active=4, kv_cache_usage=0.25, engine_steps=10,
        prompt_tokens=500, output_tokens=50, cached_tokens=100, runner_memory_bytes=GIB, engine_memory_bytes=2 * GIB,
    ),
    make_sample(
        20.0, read=20, succeeded=8, failed=2, queued=5, in_flight=5, active=5, kv_cache_usage=0.75, engine_steps=30,
        prompt_tokens=1_000, output_tokens=100, cached_tokens=350, preemptions=3, restarts=1,
        runner_memory_bytes=2 * GIB, engine_memory_bytes=3 * GIB,
    ),
    make_sample(
        80.0, read=20, succeeded=10, failed=3, silence_s=45.0, silence_ended_s=75.0, engine_steps=60, preemptions=4,
        restarts=1, prompt_tokens=1_300, output_tokens=130, cached_tokens=400, runner_memory_bytes=GIB,
        engine_memory_bytes=3 * GIB,
    ),
)  # fmt: skip


def make_answers(lengths: Sequence[int]) -> list[Outcome]:
    """Answers to documents of these lengths; for each token 1 ms in the queue, 2 ms to the first, 10 ms in all."""
    return [
        replace(
            make_result(f"document {number}"),
            prompt_tokens=length,
            cached_tokens=length // 5,
            output_tokens=number + 1,
            queue_s=length / 1_000,
            first_token_s=2 * length / 1_000,
            total_s=10 * length / 1_000,
        )
        for number, length in enumerate(lengths)
    ]


LENGTHS = (100, 100, 100, 100, 100, 200, 200, 200, 400, 800)
FAILURES: list[Outcome] = [
    make_failure("too long 1", FailureCode.PROMPT_TOO_LONG),
    make_failure("cut 1", FailureCode.TRUNCATED),
    make_failure("cut 2", FailureCode.TRUNCATED),
]


@dataclass(frozen=True, slots=True)
class Told:
    """What a run does at a commit."""

    outcomes: Sequence[Outcome]
    sample: Sample


def write_run(
    database: Path,
    commits: Sequence[Told],
    *,
    name: str = "tickets",
    task: TaskRecord = TASK,
    ends: bool = True,
    has_samples: bool = True,
) -> UUID:
    """A run with these commits; returns its id. `ends`: it is not killed, but completes."""
    record = RunRecord(uuid4(), name, f"/jobs/{name}.yaml", STARTED)
    with patch.object(samples, "SHORTEST_INTERVAL_S", 0.0):
        store = Store.open(database, limits=CommitLimits(max_outcomes=1_000, max_wait_s=60))
        [scan] = store.begin_run(record, task, [make_file()], "body")
        store.add_rows(make_rows(scan, ["one"])[scan.num_known_rows :])
        for told in commits:
            if has_samples:
                store.samples.source = partial(tell, told.sample)
            store.add(told.outcomes)
            store.flush()
        if ends:
            store.samples.source = None
            store.end_run(RunStatus.COMPLETED, 0, summarize(commits))
        store.close()
    return record.run_id


def tell(sample: Sample) -> tuple[Sample, dict[str, JsonValue]]:
    """As a run tells how it stands."""
    return sample, SETTINGS


def summarize(commits: Sequence[Told]) -> dict[str, JsonValue]:
    """What of `run --json` a report reads."""
    last = commits[-1].sample
    num_done = last.succeeded + last.failed
    return {
        "documents": {"read": last.read, "duplicates": 2, "already_done": 1},
        "tokens": {"prompt": last.prompt_tokens, "cached": last.cached_tokens, "output": last.output_tokens},
        "seconds": {"total": last.elapsed_s, "engine_start": 1.0, "generate": last.elapsed_s / 2},
        "throughput": {
            "documents_per_s": 2 * num_done / last.elapsed_s,
            "prompt_tokens_per_s": 2 * last.prompt_tokens / last.elapsed_s,
            "output_tokens_per_s": 2 * last.output_tokens / last.elapsed_s,
        },
        "engine": {
            "kv_cache_usage_peak": 0.75, "preemptions": last.preemptions, "restarts": last.restarts,
            "full_step_share": 0.5, "settings": SETTINGS,
        },
        "peak_memory_bytes": {"runner": 2 * GIB, "engine": 3 * GIB},
    }  # fmt: skip


def first_commits() -> list[Told]:
    """Of the run before: four short answers in eight seconds."""
    answers = [
        replace(answer, document_hash=bytes([number]) * 16) for number, answer in enumerate(make_answers([50] * 4))
    ]
    return [Told(answers[:2], FIRST[0]), Told(answers[2:], FIRST[1])]


def second_commits() -> list[Told]:
    """Of the run that is reported: ten answers and three failures in 80 seconds."""
    answers = make_answers(LENGTHS)
    return [
        Told(answers[:5], SECOND[0]),
        Told([*answers[5:8], *FAILURES[:2]], SECOND[1]),
        Told([*answers[8:], *FAILURES[2:]], SECOND[2]),
    ]


def make_known_database(database: Path) -> tuple[UUID, UUID]:
    """Both runs; their ids."""
    return write_run(database, first_commits()), write_run(database, second_commits())
