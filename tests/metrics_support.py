"""Events of a run, and what prometheus_client makes of them."""

from uuid import UUID

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bulkinfer.events import Progress, RunStarted
from bulkinfer.metrics.catalogue import LABELS
from bulkinfer.metrics.exposition import create_registry
from bulkinfer.metrics.tally import RunLabels, Tally
from bulkinfer.records import FailureCode

LABELS_OF_TEST = RunLabels("tiny", "nightly", engine_kind="simulated")
STARTED = RunStarted("nightly", UUID(int=7), UUID(int=8), "/out.duckdb", 1, 1_000)
PROGRESS = Progress(
    elapsed_s=3.0,
    num_read=10,
    num_skipped=2,
    num_to_do=8,
    num_succeeded=4,
    num_failed=1,
    failed_by_code={FailureCode.TRUNCATED: 1},
    is_read_to_end=True,
    share_read=1.0,
    prompt_tokens=100,
    cached_tokens=10,
    output_tokens=50,
    prompt_tokens_per_s=33.0,
    output_tokens_per_s=16.0,
    tokens_left=60,
    time_left_s=2.0,
    num_queued=3,
    num_in_flight=2,
    num_active=1,
    kv_cache_usage=0.25,
    engine_memory_bytes=1_000,
    runner_memory_bytes=2_000,
    num_preemptions=6,
    num_restarts=1,
    gpu_memory_bytes=3_000,
)


def read_samples(source: Tally | str) -> dict[str | tuple[str, str], float]:
    """Every sample by its name; where it has labels of its own, by its name and the first of them."""
    text = source if isinstance(source, str) else generate_latest(create_registry(source)).decode()
    samples: dict[str | tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = [value for name, value in sample.labels.items() if name not in LABELS]
            samples[(sample.name, sample.labels.get("run_id", own[0])) if own else sample.name] = sample.value
    return samples
