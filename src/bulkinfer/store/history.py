"""What earlier runs in a database tell of a model: how fast it was, and how long its answers are."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import orjson

from bulkinfer.records import FailureCode, JsonValue
from bulkinfer.store.reports import Reports

_NEWEST_RUNS = """
    select r.run_id, r.started_at, e.summary, t.spec from runs r
    join run_ends e on e.run_id = r.run_id
    join tasks t on t.task_fingerprint = r.task_fingerprint and t.name = r.name
    order by r.seq desc limit 100
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
    num_answered: float
    """Completions, those cut at max_tokens included."""
    generate_s: float
    engine_start_s: float


def read_past_runs(reader: Reports, kind: str, model: str, revision: str | None) -> list[PastRun]:
    """Runs with the same engine and model (as the job files write it), the newest first. Raises StoreError."""
    wanted = (kind, model, revision)
    found = []
    for run_id, started_at, summary, spec in list(reader.select(_NEWEST_RUNS, {})):
        parsed = orjson.loads(spec)
        told = (parsed["engine"]["kind"], parsed["model"]["path"], parsed["model"].get("revision"))
        run = _parse_run(run_id, str(started_at), orjson.loads(summary)) if told == wanted and summary else None
        if run is not None:
            found.append(run)
    return found


def read_answer_lengths(reader: Reports, task: UUID, max_tokens: int) -> tuple[int, float]:
    """How many documents of a task were answered or cut at `max_tokens`, and the mean of their output tokens."""
    ((num_answers, num_tokens),) = list(reader.select(_ANSWERS, {"task": str(task)}))
    parameters = {"task": str(task), "code": str(FailureCode.TRUNCATED)}
    ((num_cut,),) = list(reader.select(_CUT_ANSWERS, parameters))
    num_all = num_answers + num_cut
    return num_all, (num_tokens + num_cut * max_tokens) / num_all if num_all else 0.0


def _parse_run(run_id: UUID, started_at: str, summary: Mapping[str, Mapping[str, JsonValue]]) -> PastRun | None:
    """None for a run that asked nothing, and for a summary of another version."""
    try:
        seconds, tokens = summary["seconds"], summary["tokens"]
        generate_s = _number(seconds["generate"])
        run = PastRun(
            run_id=run_id,
            started_at=started_at,
            prompt_tokens=int(_number(tokens["prompt"])),
            output_tokens=int(_number(tokens["output"])),
            num_answered=_number(summary["throughput"]["documents_per_s"]) * generate_s,
            generate_s=generate_s,
            engine_start_s=_number(seconds["engine_start"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
    is_usable = run.generate_s > 0 and run.prompt_tokens > 0 and run.output_tokens > 0
    return run if is_usable else None


def _number(value: JsonValue) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)
