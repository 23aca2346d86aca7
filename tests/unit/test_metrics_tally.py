"""A run's events, counted; and the list of what there is, as the documentation has it."""

import re
from collections.abc import Mapping

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bulkinfer.events import (
    Cancelled,
    Committed,
    DocumentsFinished,
    EngineLost,
    EngineRestarting,
    EngineStarted,
    Finished,
    RunEnded,
    ShardTaken,
)
from bulkinfer.metrics.catalogue import CATALOGUE, LABELS, Kind, Metric
from bulkinfer.metrics.exposition import create_registry
from bulkinfer.metrics.tally import RunLabels, Tally
from bulkinfer.records import FailureCode, RunStatus
from tests.conftest import ROOT
from tests.metrics_support import LABELS_OF_TEST, PROGRESS, STARTED, read_samples

PAGE = ROOT / "docs" / "metrics.md"


def test_names_and_units_are_those_of_the_conventions() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names) > 40
    for metric in CATALOGUE:
        assert re.fullmatch(r"bulkinfer_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert bool(metric.bounds) == (metric.kind is Kind.HISTOGRAM)
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert metric.help.endswith(".")
        assert "job" not in (*LABELS, *metric.labels), "Prometheus has a label of that name itself"


def test_a_run_without_an_event_has_every_counter_at_zero_and_no_end() -> None:
    samples = read_samples(Tally(LABELS_OF_TEST))
    assert samples["bulkinfer_documents_answered_total"] == 0
    assert samples["bulkinfer_documents_failed_total", "truncated"] == 0
    assert {key[1] for key in labelled(samples, "bulkinfer_documents_failed_total")} == {*FailureCode}
    assert not [key for key in samples if key in {"bulkinfer_run_exit_code", "bulkinfer_run_end_timestamp_seconds"}]


def test_documents_are_counted_by_what_became_of_them() -> None:
    tally = Tally(LABELS_OF_TEST)
    tally.take(
        DocumentsFinished(
            (
                Finished(None, 1, False, 100, 64, 11, 0.02, 0.5, 1.5),
                Finished(None, 2, False, 10, 0, 1, 0.005, 0.25, 0.25),
                Finished(FailureCode.TRUNCATED, 1, False, 20, 0, 16),
                Finished(FailureCode.ENGINE_ERROR, 1, True),
                Finished(FailureCode.PROMPT_TOO_LONG, 1),
                Finished(FailureCode.UNREADABLE_ROW, 0),
            )
        )
    )
    tally.take(EngineLost())
    tally.take(EngineRestarting("died", 3, 1.0))
    tally.take(EngineLost())  # the last one: nothing is started again, or asked again
    tally.take(Cancelled(7))
    samples = read_samples(tally)
    assert "bulkinfer_database_size_bytes" not in samples, "nobody knows it yet"
    assert samples["bulkinfer_documents_answered_total"] == 2
    failed = {key[1]: samples[key] for key in labelled(samples, "bulkinfer_documents_failed_total") if samples[key]}
    assert failed == {"truncated": 1, "prompt_too_long": 1, "unreadable_row": 1}
    assert samples["bulkinfer_documents_rejected_total", "prompt_too_long"] == 1
    assert samples["bulkinfer_documents_retried_total", "engine_error"] == 1
    assert samples["bulkinfer_documents_retried_total", "engine_death"] == 3
    assert samples["bulkinfer_engine_deaths_total"] == 2
    assert samples["bulkinfer_documents_cancelled_total"] == 7
    tokens = [samples[f"bulkinfer_{name}_tokens_total"] for name in ("prompt", "cached_prompt", "output")]
    assert tokens == [130, 64, 28]
    assert samples["bulkinfer_prefix_cache_hits_total"] == 1
    assert samples["bulkinfer_input_length_tokens_count"] == 3
    assert samples["bulkinfer_queue_time_seconds_count"] == 2
    assert samples["bulkinfer_queue_time_seconds_bucket", "0.01"] == 1
    assert samples["bulkinfer_queue_time_seconds_bucket", "0.02"] == 2, "a bound belongs to the bucket below it"
    assert samples["bulkinfer_completion_time_seconds_sum"] == 1.75
    assert samples["bulkinfer_generation_time_seconds_sum"] == 1.0
    assert samples["bulkinfer_time_per_output_token_seconds_count"] == 1
    assert samples["bulkinfer_time_per_output_token_seconds_bucket", "0.1"] == 1


def test_a_run_is_followed_from_its_start_to_its_end() -> None:
    tally = Tally(LABELS_OF_TEST)
    tally.take(STARTED)
    tally.take(ShardTaken(1, 10, 2, 7, 1))
    tally.take(EngineStarted(2.5, {}))
    tally.take(PROGRESS)
    tally.take(Committed(1, 5, 2, 0.03, 4_096))
    samples = read_samples(tally)
    assert samples["bulkinfer_run_info", str(STARTED.run_id)] == 1
    assert (samples["bulkinfer_run_status", "running"], samples["bulkinfer_run_status", "completed"]) == (1, 0)
    assert samples["bulkinfer_queued_documents"] == PROGRESS.num_queued
    assert samples["bulkinfer_kv_cache_usage_ratio"] == PROGRESS.kv_cache_usage
    assert samples["bulkinfer_engine_preemptions_total"] == PROGRESS.num_preemptions
    assert samples["bulkinfer_gpu_memory_bytes"] == PROGRESS.gpu_memory_bytes
    assert samples["bulkinfer_model_load_time_seconds", "0"] == 2.5
    assert samples["bulkinfer_documents_committed_total", "failure"] == 2
    assert samples["bulkinfer_commit_time_seconds_bucket", "0.05"] == 1
    assert samples["bulkinfer_database_size_bytes"] == 4_096
    tally.take(RunEnded(RunStatus.FAILED, {"exit_code": 5}))
    samples = read_samples(tally)
    assert (samples["bulkinfer_run_status", "running"], samples["bulkinfer_run_status", "failed"]) == (0, 1)
    assert samples["bulkinfer_run_exit_code"] == 5
    assert samples["bulkinfer_run_end_timestamp_seconds"] >= samples["bulkinfer_run_start_timestamp_seconds"]
    assert samples["bulkinfer_queued_documents"] == samples["bulkinfer_active_sequences"] == 0
    assert samples["bulkinfer_documents_read_total"] == PROGRESS.num_read


def test_a_label_that_holds_anything_is_escaped() -> None:
    labels = RunLabels('mo"del\\', "a\nb")
    text = generate_latest(create_registry(Tally(labels))).decode()
    [family] = [one for one in text_string_to_metric_families(text) if one.name == "bulkinfer_shards"]
    assert family.samples[0].labels == {"model": 'mo"del\\', "job_name": "a\nb", "task_kind": "generate"}


def test_the_page_lists_every_metric_as_it_is() -> None:
    lines = [line.strip("| ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `bulk")]
    assert [line.replace("`", "") for line in lines] == [" | ".join(describe(metric)) for metric in CATALOGUE]


def describe(metric: Metric) -> tuple[str, ...]:
    """A line of the page."""
    return (metric.name, metric.kind, ", ".join(metric.labels) or "-", metric.otel_name, metric.help)


def labelled(samples: Mapping[str | tuple[str, str], float], name: str) -> list[tuple[str, str]]:
    """The keys of a metric that has labels of its own."""
    return [key for key in samples if isinstance(key, tuple) and key[0] == name]
