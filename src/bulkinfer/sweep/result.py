"""A sweep as one JSON object: what `--json` prints, `--save` writes, and `--compare` reads."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from bulkinfer.errors import BulkinferError, JobError
from bulkinfer.records import Latency
from bulkinfer.sweep.capacity import Recommendation, find_knee, find_power, find_rejections, group_series
from bulkinfer.sweep.options import SweepOptions
from bulkinfer.sweep.point import Cancellation, Point

FORMAT = 1
"""Of the object. A reader refuses what it does not know."""
MAX_FILE_BYTES = 64 * 1024 * 1024

Found = Mapping[str, Any]
"""The object, or a part of it."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """`found` is the object without how the sweep ended; `error` says what ended it early, if anything did."""

    found: dict[str, Any]
    error: BulkinferError | None
    is_stopped: bool
    """It was asked to stop: what was measured by then is in `found`."""


def describe_options(options: SweepOptions) -> dict[str, Any]:
    """What was asked."""
    return {
        "concurrency": list(options.concurrency),
        "mix": {kind.value: round(share, 6) for kind, share in options.mix.items()},
        "arrivals": str(options.arrivals),
        "queue_size": options.queue_size,
        "reject": options.is_rejecting,
        "cancel": options.cancel_share,
        "duration_s": options.duration_s,
        "warmup_s": options.warmup_s,
        "users": options.num_users,
        "per_user": options.per_user,
        "seed": options.seed,
        "headroom": options.headroom,
        "target_p95_s": options.target_p95_s,
        "low": sorted(options.low),
    }


def describe_point(point: Point) -> dict[str, Any]:
    """One point; seconds, shares and counts."""
    settings = point.settings
    return {
        "concurrency": settings.concurrency,
        "rate_per_s": settings.rate_per_s,
        "users": settings.num_users,
        "queue_size": settings.queue_size,
        "max_num_batched_tokens": settings.batched_tokens,
        "reserve": settings.reserve,
        "measured_s": round(point.measured_s, 3),
        "is_complete": point.is_complete,
        "is_overloaded": point.is_overloaded,
        "requests": {
            "arrived": point.num_arrived,
            "completed": point.num_completed,
            "completed_by_kind": point.completed_by_kind,
            "cut": point.num_cut,
            "refused": point.num_refused,
            "refused_by_reason": point.refused,
            "with_retry_after": point.num_with_retry_after,
            "retries": point.num_retries,
            "retries_taken": point.num_retries_taken,
            "cancelled": point.num_cancelled,
            "cancelled_waiting": point.num_cancelled_waiting,
            "cancelled_running": point.num_cancelled_running,
            "cancelled_too_late": point.num_late_cancels,
            "errors": sum(point.errors.values()),
            "errors_by_code": point.errors,
            "unanswered": point.num_unanswered,
        },
        "throughput": {
            "requests_per_s": round(point.requests_per_s, 4),
            "output_tokens_per_s": round(point.output_tokens_per_s, 2),
            "tokens_per_s": round(point.tokens_per_s, 2),
        },
        "tokens": {"prompt": point.prompt_tokens, "cached": point.cached_tokens, "output": point.output_tokens},
        "p95_s": _round(point.p95_s),
        "latency_s": _describe_latency(point.latency),
        "latency_by_kind_s": {kind: _describe_latency(found) for kind, found in point.latency_by_kind.items()},
        "queue": {"max_waiting": point.max_queued, "max_outside": point.max_outside},
        "engine": {
            "mean_active": round(point.mean_active, 2),
            "kv_cache_usage_peak": round(point.kv_cache_usage_peak, 4),
            "preemptions": point.num_preemptions,
            "memory_bytes": point.engine_memory_bytes,
            "aborted": point.engine_aborted,
            "at_rest": None if point.at_rest is None else asdict(point.at_rest),
        },
        "cancellations": [_describe_cancellation(one) for one in point.cancellations],
        "power": round(find_power(point), 4),
    }


def describe_series(points: Sequence[Point]) -> list[dict[str, Any]]:
    """For points that differ in their load alone: where latency leaves the line, and where refusals begin.

    Both are places in `points`.
    """
    found = []
    for group in group_series(points):
        places = [points.index(point) for point in group]
        # One point alone is no line to leave.
        knee, rejections = find_knee(group) if len(group) > 1 else None, find_rejections(group)
        found.append(
            {
                "points": places,
                "knee": None if knee is None else places[knee],
                "leaves_line_at": None if knee is None or knee + 1 == len(places) else places[knee + 1],
                "rejections_begin_at": None if rejections is None else places[rejections],
            }
        )
    return found


def describe_recommendation(found: Recommendation | None, reason: str) -> dict[str, Any]:
    """Values and what they rest on; without values, why there are none."""
    if found is None:
        return {"limits": None, "reason": reason}
    return {
        "limits": {
            "max_concurrency": found.max_concurrency,
            "max_queue_size": found.max_queue_size,
            "reject_when_queue_full": found.is_rejecting,
            "reserve": found.reserve,
        },
        "max_num_batched_tokens": found.max_num_batched_tokens,
        "requests_per_s": round(found.requests_per_s, 4),
        "measured_requests_per_s": round(found.measured_requests_per_s, 4),
        "p95_s": round(found.p95_s, 4),
        "full_queue_wait_s": round(found.full_queue_wait_s, 4),
        "headroom": found.headroom,
        "reasons": list(found.reasons),
        "yaml": found.to_yaml(),
    }


def describe_end(report: SweepReport, signals: Sequence[int]) -> dict[str, Any]:
    """The whole object: what was found, and how the sweep ended."""
    error = report.error
    if error is not None:
        end = {"status": "failed", "exit_code": int(error.exit_code), "error": str(error)}
    elif report.is_stopped and signals:
        end = {"status": "interrupted", "exit_code": 128 + signals[0]}
    else:
        end = {"status": "completed", "exit_code": 0}
    return {**report.found, **end}


def check_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before anything is measured for it. Raises JobError naming the option."""
    if path.is_dir():
        raise JobError(f"{option}: expected a file, found the folder {path}")
    if path.exists() and not path.is_file():  # a device or a pipe would be gone, and a file in its place
        raise JobError(f"{option}: expected a file, and {path} is none")
    with _told(path, option), _part_of(path) as part:
        part.write_bytes(b"")
    if option == "--save" and path.exists() and path.stat().st_size:
        try:
            load_result(path)
        except JobError:  # a job file, say
            raise JobError(f"{option}: {path} is there and holds no sweep; name another file, or remove it") from None


def save_result(found: Found, path: Path) -> None:
    """Write the object, whole or not at all. Raises JobError."""
    write_file(path, orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n", "--save")


def write_file(path: Path, content: bytes, option: str) -> None:
    """Write a file, whole or not at all. Raises JobError that names the option."""
    with _told(path, option), _part_of(path) as part:
        part.write_bytes(content)
        part.replace(os.path.realpath(path))  # where a link leads, so that the link stays


def load_result(path: Path) -> Found:
    """Read what `save_result` wrote. Raises JobError."""
    try:
        with path.open("rb") as file:
            body = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        raise JobError(f"{path}: cannot be read: {reason}") from None
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise JobError(f"{path}: expected the JSON of a sweep, as `bulkinfer sweep --save` writes it") from None
    if not isinstance(found, dict) or found.get("sweep") != FORMAT or not isinstance(found.get("points"), list):
        version = found.get("sweep") if isinstance(found, dict) else None
        what = "no sweep" if not isinstance(version, int) else f"a sweep in format {version}"
        expected = f"a sweep in format {FORMAT}, as `bulkinfer sweep --save` writes it"
        raise JobError(f"{path}: expected {expected}; found {what}")
    return found


@contextmanager
def _told(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        raise JobError(f"{option}: {path} cannot be written: {reason}") from None


@contextmanager
def _part_of(path: Path) -> Iterator[Path]:
    """What is to take its place; gone at the end, whatever happens: a full disk keeps what is in it."""
    real_path = Path(os.path.realpath(path))
    part = real_path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
    finally:
        with suppress(OSError, ValueError):
            part.unlink()


def _describe_latency(latency: Latency) -> dict[str, Any]:
    return {
        name: {
            "p50": _round(percentiles.p50),
            "p95": _round(percentiles.p95),
            "p99": _round(percentiles.p99),
        }
        for name, percentiles in (
            ("queue", latency.queue),
            ("first_token", latency.first_token),
            ("total", latency.total),
        )
    }


def _describe_cancellation(found: Cancellation) -> dict[str, Any]:
    return {
        "at_s": round(found.at_s, 3),
        "requests": found.num_requests,
        "before": asdict(found.before),
        "after": asdict(found.after),
    }


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
