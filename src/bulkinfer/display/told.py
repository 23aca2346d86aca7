"""What a live run tells through its socket or its status file, as the `Progress` that its own display shows."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from bulkinfer.events import ActiveDocument, EnginePhase, EngineProgress, Progress, RunPhase, Trend
from bulkinfer.records import FailureCode

_MOST = 1e18
"""Of anything that is told; more is damage, and may not be drawn."""


def read_progress(found: Mapping[str, Any]) -> Progress | None:
    """None where it tells less: a run that has just begun or ends, is of another version, or wrote damage."""
    try:
        progress = _read(found)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return progress if _is_sound(progress) else None


def _is_sound(told: Any) -> bool:  # noqa: ANN401 - one of the records of `Progress`, itself among them
    """Whether each value has the type that it is drawn as."""
    if isinstance(told, Trend) and len({len(told.num_documents), *map(len, _tokens_of(told))}) > 1:
        return False
    hints = get_type_hints(type(told))
    return all(_is_of(getattr(told, field.name), hints[field.name]) for field in fields(told))


def _tokens_of(trend: Trend) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return trend.num_prompt_tokens, trend.num_output_tokens


def _is_of(value: Any, hint: Any) -> bool:  # noqa: ANN401 - whatever was told, and whatever it should be
    kind, parts = get_origin(hint), get_args(hint)
    if kind is UnionType:
        return any(_is_of(value, part) for part in parts)
    if kind is tuple:
        return all(_is_of(one, parts[0]) for one in value)
    if kind is Mapping:
        return all(_is_of(one, parts[1]) for one in value.values())
    if hint in {int, float}:
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool) and _fits(value)
    return _is_sound(value) if is_dataclass(value) else isinstance(value, hint)


def _fits(value: float) -> bool:
    return abs(value) < _MOST


def _read(found: Mapping[str, Any]) -> Progress:
    documents, tokens, engine = found["documents"], found["tokens"], found["engine"]
    rates, memory, window = found["throughput"], found["memory_bytes"], found["window"]
    engines = tuple(_read_engine(number, one) for number, one in enumerate(engine.get("replicas", ())))
    return Progress(
        elapsed_s=found["elapsed_s"],
        num_read=documents["read"],
        num_skipped=documents["skipped"],
        num_to_do=documents["to_do"],
        num_succeeded=documents["succeeded"],
        num_failed=documents["failed"],
        failed_by_code={FailureCode(code): count for code, count in documents["failed_by_code"].items()},
        is_read_to_end=documents["is_read_to_end"],
        share_read=found["share_read"],
        prompt_tokens=tokens["prompt"],
        cached_tokens=tokens["cached"],
        output_tokens=tokens["output"],
        prompt_tokens_per_s=rates["prompt_tokens_per_s"],
        output_tokens_per_s=rates["output_tokens_per_s"],
        tokens_left=found["tokens_left"],
        time_left_s=found["time_left_s"],
        num_queued=documents["queued"],
        num_in_flight=documents["in_flight"],
        num_active=engine["active"],
        kv_cache_usage=engine["kv_cache_usage"],
        engine_memory_bytes=memory["engine"],
        runner_memory_bytes=memory["runner"],
        num_replicas=sum(one.phase is not EnginePhase.GIVEN_UP for one in engines) or 1,
        num_replicas_ready=sum(one.phase is EnginePhase.READY for one in engines),
        num_preemptions=engine["preemptions"],
        num_restarts=engine["restarts"],
        gpu_memory_bytes=memory["gpu"],
        phase=RunPhase(found["phase"]),
        documents_per_s=rates["documents_per_s"],
        queue_capacity=found["queue"]["capacity"],
        window_capacity=window["capacity"],
        since_result_s=found["since_result_s"],
        slowest=tuple(ActiveDocument(**one) for one in found["slowest"]),
        trend=_read_trend(found["trend"]),
        engines=engines,
    )


def _read_engine(replica: int, engine: Mapping[str, Any]) -> EngineProgress:
    return EngineProgress(
        replica=replica,
        phase=EnginePhase(engine["phase"]),
        num_documents=engine["documents"],
        num_in_flight=engine["in_flight"],
        window_capacity=engine["window_capacity"],
        num_active=engine["active"],
        kv_cache_usage=engine["kv_cache_usage"],
        num_restarts=engine["restarts"],
        since_result_s=engine["since_result_s"],
    )


def _read_trend(trend: Mapping[str, Any]) -> Trend:
    return Trend(
        stretch_s=trend["stretch_s"],
        num_documents=tuple(trend["documents"]),
        num_prompt_tokens=tuple(trend["prompt_tokens"]),
        num_output_tokens=tuple(trend["output_tokens"]),
    )
