"""From points to limits: the knee, where refusals begin, the recommendation, and YAML that a job file takes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bulkinfer.job import load_job
from bulkinfer.records import Percentiles
from bulkinfer.sweep.capacity import find_knee, find_rejections, group_series, is_sound, recommend
from bulkinfer.sweep.options import Kind
from bulkinfer.sweep.point import Point, PointSettings, Tally, find_percentiles
from tests.conftest import JobFolder


def make_point(
    concurrency: int,
    requests_per_s: float,
    p95_s: float | None,
    rate_per_s: float | None = None,
    batched_tokens: int | None = None,
    **changes: Any,  # noqa: ANN401 - of any field
) -> Point:
    settings = PointSettings(concurrency, rate_per_s, None, 32, batched_tokens)
    point = Tally(0.0).finish(settings, 10.0, is_complete=True, waiting=(0, 0), num_running=0)
    found = {"requests_per_s": requests_per_s, "p95_s": p95_s, "num_completed": 100, **changes}
    return replace(point, **found)


def test_the_knee_is_where_throughput_for_a_second_of_latency_is_best() -> None:
    points = [make_point(1, 1.0, 1.0), make_point(4, 3.0, 1.5), make_point(8, 4.0, 2.5), make_point(16, 4.1, 5.0)]
    assert find_knee(points) == 1


def test_one_point_is_its_own_knee_and_nothing_has_none() -> None:
    assert find_knee([make_point(1, 1.0, 1.0)]) == 0
    assert find_knee([]) is None
    assert find_knee([make_point(1, 0.0, None)]) is None


def test_refusals_begin_at_the_first_point_with_one_for_want_of_room() -> None:
    points = [
        make_point(1, 1.0, 1.0, refused={"prompt_too_long": 9}),
        make_point(4, 1.0, 1.0, refused={"queue_full": 1}),
        make_point(8, 1.0, 1.0, refused={"queue_full": 5}),
    ]
    assert find_rejections(points) == 1
    assert find_rejections(points[:1]) is None


def test_points_are_grouped_by_what_is_not_their_load() -> None:
    open_points = [make_point(4, 1.0, 1.0, rate) for rate in (2.0, 1.0)] + [make_point(8, 1.0, 1.0, 1.0)]
    assert [[one.settings.rate_per_s for one in group] for group in group_series(open_points)] == [[1.0, 2.0], [1.0]]
    closed = [make_point(8, 1.0, 1.0), make_point(1, 1.0, 1.0)]
    assert [[one.settings.concurrency for one in group] for group in group_series(closed)] == [[1, 8]]


@pytest.mark.parametrize(
    "changes",
    [
        {"is_complete": False},
        {"is_overloaded": True},
        {"refused": {"queue_full": 1}},
        {"errors": {"engine_error": 1}},
        {"num_preemptions": 1},
        {"num_completed": 19},
        {"kv_cache_usage_peak": 0.81},
    ],
)
def test_limits_do_not_rest_on_a_point_with_a_fault(changes: dict[str, Any]) -> None:
    assert is_sound(make_point(4, 1.0, 1.0, kv_cache_usage_peak=0.8), 0.2) or "kv_cache_usage_peak" in changes
    assert not is_sound(make_point(4, 1.0, 1.0, **changes), 0.2)


POINTS = [
    make_point(1, 1.0, 1.0, batched_tokens=4096),
    make_point(4, 3.0, 1.5, batched_tokens=4096),
    make_point(8, 4.0, 2.5, batched_tokens=4096),
]


def test_the_knee_is_recommended_with_room_left() -> None:
    found, _ = recommend(POINTS, headroom=0.2, target_p95_s=None, is_rejecting=False)
    assert found is not None
    assert found.max_concurrency == 4
    assert found.requests_per_s == pytest.approx(2.4)
    assert found.max_queue_size == 4  # 2.4/s in 1.5 s are 3, but no less than the sequences
    assert found.max_num_batched_tokens == 4096


def test_a_target_takes_the_most_throughput_within_it() -> None:
    found, _ = recommend(POINTS, headroom=0.5, target_p95_s=10.0, is_rejecting=False)
    assert found is not None
    assert found.max_concurrency == 8
    assert found.max_queue_size == 15  # 2 requests/s in the 7.5 s that the target leaves


@pytest.mark.parametrize(
    ("target_p95_s", "rejects", "queue_size"), [(None, True, 3), (2.0, False, 1), (2.0, True, 1), (1.6, False, 1)]
)
def test_a_queue_is_no_longer_than_what_is_served_in_time(
    target_p95_s: float | None,
    rejects: bool,
    queue_size: int,
) -> None:
    found, _ = recommend(POINTS, headroom=0.2, target_p95_s=target_p95_s, is_rejecting=rejects)
    assert found is not None
    assert (found.max_concurrency, found.max_queue_size) == (4, queue_size)
    has_none = any("none, and a queue has at least one place" in reason for reason in found.reasons)
    assert has_none == (target_p95_s == 1.6)


@pytest.mark.parametrize("reserve", [None, 0.0, 0.25, 0.125])
def test_the_block_has_the_reserve_that_was_measured(folder: JobFolder, reserve: float | None) -> None:
    point = make_point(4, 3.0, 1.5)
    point = replace(point, settings=replace(point.settings, reserve=reserve))
    found, _ = recommend([point], headroom=0.2, target_p95_s=None, is_rejecting=False)
    assert found is not None
    spec = {key: value for key, value in folder.spec.items() if key != "limits"}
    folder.job_path.write_text(yaml.safe_dump(spec) + found.to_yaml(), encoding="utf-8")
    assert load_job(folder.job_path).spec.limits.reserve == (reserve or 0.0)


def test_nothing_is_recommended_without_a_sound_point() -> None:
    assert recommend(POINTS, headroom=0.2, target_p95_s=0.5, is_rejecting=False)[0] is None
    found, reason = recommend([], headroom=0.2, target_p95_s=None, is_rejecting=False)
    assert found is None
    assert "measure a lighter load" in reason


@pytest.mark.parametrize("batched_tokens", [None, 4096])
@pytest.mark.parametrize("rejects", [True, False])
def test_the_block_to_paste_is_taken_by_a_job_file(
    folder: JobFolder, batched_tokens: int | None, rejects: bool
) -> None:
    points = [make_point(4, 3.0, 1.5, batched_tokens=batched_tokens)]
    found, _ = recommend(points, headroom=0.2, target_p95_s=None, is_rejecting=rejects)
    assert found is not None
    spec = {key: value for key, value in folder.spec.items() if key not in {"limits", "engine"}}
    path: Path = folder.job_path
    path.write_text(yaml.safe_dump(spec) + found.to_yaml(), encoding="utf-8")
    loaded = load_job(path).spec
    assert (loaded.limits.max_concurrency, loaded.limits.max_queue_size) == (4, found.max_queue_size)
    assert loaded.limits.reject_when_queue_full is rejects
    assert loaded.engine.vllm == ({} if batched_tokens is None else {"max_num_batched_tokens": 4096})


def test_percentiles_lie_between_the_nearest_values() -> None:
    assert find_percentiles([]) == Percentiles(None, None, None)
    assert find_percentiles([2.0]) == Percentiles(2.0, 2.0, 2.0)
    assert find_percentiles([float(number) for number in range(101)]) == Percentiles(50.0, 95.0, 99.0)


def test_every_kind_has_a_place_in_a_tally() -> None:
    assert set(Tally(0.0).durations) == set(Kind)
