"""A point of a sweep on the real engine: what is cancelled frees sequences and blocks, by vLLM's own counters."""

from typing import Any

import pytest

from bulkinfer.job import load_job
from bulkinfer.runner import plan_run
from bulkinfer.sources import open_source
from bulkinfer.sweep.admission import Admission
from bulkinfer.sweep.clients import ClosedClients
from bulkinfer.sweep.driver import PointRun
from bulkinfer.sweep.load import read_load
from bulkinfer.sweep.options import Kind, SweepOptions
from bulkinfer.sweep.point import Point, PointSettings
from bulkinfer.sweep.rig import Rig, describe_rig, running_engine
from tests.conftest import JobFolder
from tests.engine_support import MODEL_PATH, ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

MIN_ANSWERS, MIN_CANCELLED = 8, 3
LIMIT_S = 150.0


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Point, Rig]:
    """Six users and four sequences, half of the requests cancelled, the long ones at low priority.

    It ends when there are answers and cancels enough, however slow the machine is.
    """
    folder = JobFolder(tmp_path_factory.mktemp("sweep"))
    changes: dict[str, dict[str, Any]] = {
        "input": {"path": str(ROOT / "sample_data" / "tickets.jsonl"), "id": "ticket_id"},
        "model": {"path": str(MODEL_PATH)},
        "sampling": {"max_tokens": 12},
        "limits": {"max_context_tokens": 2048},
        "engine": {"kind": "vllm"},
    }
    plan = plan_run(load_job(folder.write_job(**changes)))
    options = SweepOptions(concurrency=(1, 4), low=frozenset({Kind.LONG}))
    sources = [open_source(file, plan.template.fields, None) for file in plan.files]
    load = read_load(plan.job, plan.template, sources, {}, options.low)
    with running_engine(plan.job, describe_rig(plan.engine_spec, options, None), load, lambda: False) as rig:
        requests = load.iter_requests(options.mix, 0.5, 6, seed=0, point=0)
        now_s = rig.engine.now()
        run = PointRun(
            rig.engine,
            PointSettings(4, None, 6, 32, rig.batched_tokens, low=options.low),
            Admission(32, 4, per_user=None, is_rejecting=False, now_s=now_s),
            ClosedClients(requests, 6, now_s),
            warmup_s=0.0,
            duration_s=LIMIT_S,
            is_stopped=lambda: (
                run._tally.num_completed >= MIN_ANSWERS and run._tally.cancelled_running >= MIN_CANCELLED
            ),
        )
        return run.run(), rig


def test_it_has_answers_and_the_engines_figures(found: tuple[Point, Rig]) -> None:
    point, rig = found
    assert point.num_completed >= MIN_ANSWERS
    assert (point.num_refused, dict(point.errors)) == (0, {})
    assert point.latency.first_token.p50 is not None
    assert point.latency.total.p50 is not None
    assert 0 < point.latency.first_token.p50 <= point.latency.total.p50
    assert 0 < point.mean_active <= 4
    assert 0 < point.kv_cache_usage_peak < 1
    assert point.engine_memory_bytes > 100_000_000
    assert rig.ready.settings["max_num_seqs"] == 4, "slots for the largest point"
    assert point.settings.batched_tokens == rig.ready.settings["max_num_batched_tokens"]
    assert {shape.output_tokens <= 12 for shapes in point.shapes.values() for shape in shapes} == {True}


def test_cancelled_requests_free_their_sequences_and_blocks(found: tuple[Point, Rig]) -> None:
    point, _ = found
    assert point.num_cancelled_running >= MIN_CANCELLED
    assert point.cancellations
    for shown in point.cancellations:
        before, after = shown.before, shown.after
        assert after.num_aborted - before.num_aborted == shown.num_requests
        assert after.num_active < before.num_active or after.num_free_kv_blocks >= before.num_free_kv_blocks
    freed = [shown for shown in point.cancellations if shown.after.num_free_kv_blocks > shown.before.num_free_kv_blocks]
    assert freed
    assert point.at_rest is not None
    assert point.at_rest.num_active == 0
    assert point.at_rest.num_free_kv_blocks == point.at_rest.num_kv_blocks > 0
