"""What earlier runs in a database tell of a model: how fast it was, and how long its answers are."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import duckdb

from bulkinfer.records import FailureCode, JsonValue
from bulkinfer.store.reports import Reports

MAX_RUNS = 5
"""The newest runs of a model that are believed."""
LONG_RUN_S = 20.0
"""A shorter run does not tell how fast the engine is when it is full."""

# A run that asked nothing tells nothing, nor does a summary of another version: its numbers are null here.
_NEWEST_RUNS = """
    select * from (
        select r.run_id, r.started_at, r.seq,
            try_cast(e.summary ->> '$.tokens.prompt' as bigint) as prompt_tokens,
            try_cast(e.summary ->> '$.tokens.output' as bigint) as output_tokens,
            try_cast(e.summary ->> '$.throughput.documents_per_s' as double) as documents_per_s,
            try_cast(e.summary ->> '$.seconds.generate' as double) as generate_s,
            try_cast(e.summary ->> '$.seconds.engine_start' as double) as engine_start_s
        from runs r
        join run_ends e on e.run_id = r.run_id
        join tasks t on t.task_fingerprint = r.task_fingerprint and t.name = r.name
        where r.host = $host and (t.spec ->> '$.engine.kind') = $kind and (t.spec ->> '$.model.path') = $model
            and (t.spec ->> '$.model.revision') is not distinct from $revision
            and case when (t.spec ->> '$.task.kind') in ('embed', 'score') then t.spec ->> '$.task.kind'
                else 'generate' end = $task
    )
    where prompt_tokens > 0 and (output_tokens > 0 or $task in ('embed', 'score'))
        and generate_s > 0 and generate_s >= $least_s and documents_per_s is not null and engine_start_s is not null
    order by seq desc limit $num_runs
"""
_ANSWERS = """
    select count(*), coalesce(sum(output_tokens), 0)::bigint from results where task_fingerprint = $task::uuid
"""
_CUT_ANSWERS = """
    select count(distinct document_hash) from failures where task_fingerprint = $task::uuid and code = $code
"""


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run that asked the engine, and ended well enough to say so."""

    run_id: UUID
    started_at: str
    prompt_tokens: int
    output_tokens: int
    """0 where the task writes no answers."""
    num_answered: float
    """Completions, those cut at max_tokens included."""
    generate_s: float
    engine_start_s: float

    @property
    def tokens_per_s(self) -> float:
        """Of prompts and answers together."""
        return (self.prompt_tokens + self.output_tokens) / self.generate_s


def read_past_runs(
    reader: Reports, kind: str, model: str, revision: str | None, task: str = "generate"
) -> list[PastRun]:
    """Runs on this host with the same engine, model (as the job files write it) and task, the newest first, a few at
    most. `task`: embed, score, or generate for all that write answers.

    Raises StoreError.
    """
    parameters = _name_runs(kind, model, revision, task, least_s=0.0, num_runs=MAX_RUNS)
    return [_make_run(line) for line in list(reader.select(_NEWEST_RUNS, parameters))]


def find_speed(connection: duckdb.DuckDBPyConnection, model: str, revision: str | None) -> float | None:
    """Tokens per second of the last run that was long and wrote answers, with vLLM; None if none was."""
    parameters = _name_runs("vllm", model, revision, "generate", least_s=LONG_RUN_S, num_runs=1)
    runs = [_make_run(line) for line in connection.execute(_NEWEST_RUNS, parameters).fetchall()]
    return runs[0].tokens_per_s if runs else None


def read_answer_lengths(reader: Reports, task: UUID, max_tokens: int) -> tuple[int, float]:
    """How many documents of a task were answered or cut at `max_tokens`, and the mean of their output tokens."""
    ((num_answers, num_tokens),) = list(reader.select(_ANSWERS, {"task": str(task)}))
    parameters = {"task": str(task), "code": str(FailureCode.TRUNCATED)}
    ((num_cut,),) = list(reader.select(_CUT_ANSWERS, parameters))
    num_all = num_answers + num_cut
    return num_all, (num_tokens + num_cut * max_tokens) / num_all if num_all else 0.0


def _name_runs(
    kind: str, model: str, revision: str | None, task: str, *, least_s: float, num_runs: int
) -> dict[str, JsonValue]:
    return {
        "host": socket.gethostname(),
        "kind": kind,
        "model": model,
        "revision": revision,
        "task": task,
        "least_s": least_s,
        "num_runs": num_runs,
    }


def _make_run(line: Sequence[Any]) -> PastRun:
    run_id, started_at, _, prompt_tokens, output_tokens, documents_per_s, generate_s, engine_start_s = line
    num_answered = documents_per_s * generate_s
    return PastRun(run_id, str(started_at), prompt_tokens, output_tokens, num_answered, generate_s, engine_start_s)
