"""A run as a collector of OpenTelemetry sees it; and what a collector that is not there does to a run."""

import json
import logging
import socket
import sys

import pytest

from bulkinfer.metrics import MetricsOptions, open_metrics
from bulkinfer.metrics import otlp as otlp_module
from bulkinfer.metrics.catalogue import CATALOGUE
from bulkinfer.metrics.signals import Signal
from bulkinfer.metrics.tally import Tally
from tests.cli_support import Called, call
from tests.conftest import JobFolder, make_documents
from tests.metrics_support import LABELS_OF_TEST, STARTED, read_samples
from tests.otlp_support import Collector, attributes_of, run_collector

TRUNCATED = {"match": "document 3 ", "kind": "truncate"}


def run_with(folder: JobFolder, collector: Collector, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Called:
    """A run over twenty documents that reports to a collector."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    folder.write_documents(make_documents(20))
    folder.write_job(engine={"simulated": {**folder.spec["engine"]["simulated"], "faults": [TRUNCATED]}})
    return call("run", str(folder.job_path), "--json", "--log-format", "json", *arguments)


def test_metrics_arrive_by_the_names_of_the_conventions(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_collector() as collector:
        called = run_with(folder, collector, monkeypatch)
    summary = json.loads(called.stdout)
    assert "warning" not in [json.loads(line)["level"] for line in called.stderr.splitlines()]
    metrics = collector.last_metrics()
    absent = {metric.otel_name for metric in CATALOGUE} - set(metrics)
    assert absent == set(), "a run that has ended has all of them"
    resource = attributes_of(collector.metrics[-1].resource_metrics[0].resource.attributes)
    assert resource["service.name"] == "bulkinfer"
    assert resource["service.instance.id"] == resource["bulkinfer.run_id"] == summary["run_id"]
    assert resource["bulkinfer.task_fingerprint"] == summary["task_fingerprint"]

    [answered] = metrics["bulkinfer.documents_answered"].sum.data_points
    assert answered.as_int == summary["documents"]["succeeded"] == 19
    assert metrics["bulkinfer.documents_answered"].sum.is_monotonic
    assert attributes_of(answered.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "simulated",
        "gen_ai.request.model": "model",
        "bulkinfer.job": "test",
        "bulkinfer.task_kind": "generate",
    }
    failed = {
        attributes_of(point.attributes)["code"]: point.as_int
        for point in metrics["bulkinfer.documents_failed"].sum.data_points
    }
    assert failed["truncated"] == 1

    usage = metrics["gen_ai.client.token.usage"]
    assert usage.unit == "{token}"
    by_type = {attributes_of(point.attributes)["gen_ai.token.type"]: point for point in usage.histogram.data_points}
    assert by_type["input"].sum == summary["tokens"]["prompt"]
    assert by_type["output"].sum == summary["tokens"]["output"]
    [duration] = metrics["gen_ai.server.request.duration"].histogram.data_points
    assert (duration.count, sum(duration.bucket_counts)) == (19, 19)
    assert len(duration.bucket_counts) == len(duration.explicit_bounds) + 1
    assert duration.start_time_unix_nano < duration.time_unix_nano
    assert not duration.HasField("max")
    assert metrics["gen_ai.server.time_to_first_token"].unit == "s"


def test_a_run_is_one_trace_with_its_engine_shards_and_commits(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_collector() as collector:
        summary = json.loads(run_with(folder, collector, monkeypatch).stdout)
    spans = collector.spans()
    [run] = [span for span in spans if span.name == "bulkinfer.run"]
    others = [span for span in spans if span is not run]
    assert {span.name for span in others} == {"bulkinfer.engine_start", "bulkinfer.shard", "bulkinfer.commit"}
    assert {span.trace_id for span in spans} == {run.trace_id}
    assert {span.parent_span_id for span in others} == {run.span_id}
    for span in others:
        assert run.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= run.end_time_unix_nano
    attributes = attributes_of(run.attributes)
    assert attributes["bulkinfer.run_id"] == summary["run_id"]
    assert (attributes["bulkinfer.status"], attributes["bulkinfer.exit_code"]) == ("completed", 0)
    assert run.status.code == 1
    commits = [attributes_of(span.attributes) for span in others if span.name == "bulkinfer.commit"]
    assert sum(int(str(commit["bulkinfer.num_results"])) for commit in commits) == 19
    sent = b"".join(trace.SerializeToString() for trace in collector.traces)
    sent += b"".join(metrics.SerializeToString() for metrics in collector.metrics)
    assert b"word" not in sent
    assert b"document 1" not in sent


def test_an_engine_that_dies_and_a_run_that_fails_are_seen(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [{"match": "document 3 ", "kind": "die", "times": 1}]
    with run_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/v1/traces")
        folder.write_documents([*make_documents(5), {"id": "none"}])
        folder.write_job(engine={"simulated": {**folder.spec["engine"]["simulated"], "faults": faults}})
        assert call("run", str(folder.job_path), "--max-failures", "0").exit_code == 5
    assert collector.metrics == [], "they have no endpoint"
    [run] = [span for span in collector.spans() if span.name == "bulkinfer.run"]
    assert run.status.code == 2
    assert attributes_of(run.attributes)["bulkinfer.exit_code"] == 5
    assert [event.name for event in run.events] == ["bulkinfer.draining"]


def test_a_death_ends_no_trace(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [{"match": "document 3 ", "kind": "die", "times": 1}]
    with run_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        folder.write_documents(make_documents(5))
        folder.write_job(engine={"simulated": {**folder.spec["engine"]["simulated"], "faults": faults}})
        assert call("run", str(folder.job_path)).exit_code == 0
    [run] = [span for span in collector.spans() if span.name == "bulkinfer.run"]
    assert [event.name for event in run.events] == ["bulkinfer.engine_death", "bulkinfer.engine_restart"]
    assert len([span for span in collector.spans() if span.name == "bulkinfer.engine_start"]) == 2
    metrics = collector.last_metrics()
    assert [point.as_int for point in metrics["bulkinfer.engine_deaths"].sum.data_points] == [1]
    assert [point.as_int for point in metrics["bulkinfer.engine_restarts"].sum.data_points] == [1]


def test_a_death_that_ends_the_run_is_seen(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [{"match": "document", "kind": "die"}]
    with run_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/v1/traces")
        folder.write_documents(make_documents(5))
        simulated = {**folder.spec["engine"]["simulated"], "faults": faults}
        folder.write_job(engine={"simulated": simulated, "max_restarts": 0}, limits={"max_concurrency": 1})
        assert call("run", str(folder.job_path)).exit_code == 3
    [run] = [span for span in collector.spans() if span.name == "bulkinfer.run"]
    names = [event.name for event in run.events]
    assert names.count("bulkinfer.engine_death") == names.count("bulkinfer.engine_restart") + 1
    loads = [span for span in collector.spans() if span.name == "bulkinfer.engine_start"]
    assert len(loads) == names.count("bulkinfer.engine_death")


def test_a_collector_that_never_answers_is_waited_for_no_longer_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    warnings: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        tally = Tally(LABELS_OF_TEST)
        telemetry = otlp_module.OtlpTelemetry(tally, STARTED, frozenset(Signal), warnings.append)
        telemetry.close(0.1)
    assert warnings == ["OpenTelemetry: the last of this run could not be sent"]


def test_names_that_the_environment_gives_go_before_ours(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "summaries")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=nightly")
    with run_collector() as collector:
        run_with(folder, collector, monkeypatch)
    resource = attributes_of(collector.metrics[-1].resource_metrics[0].resource.attributes)
    assert (resource["service.name"], resource["deployment.environment"]) == ("summaries", "nightly")


def test_metrics_are_sent_in_between(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    with run_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        folder.write_documents(make_documents(400))
        simulated = {**folder.spec["engine"]["simulated"], "clock": "real", "seconds_per_output_token": 0.001}
        folder.write_job(engine={"simulated": simulated})
        assert call("run", str(folder.job_path)).exit_code == 0
    assert len(collector.metrics) > 1
    assert collector.traces == []


@pytest.mark.parametrize("answer", [400, 503])
def test_a_collector_that_refuses_is_one_warning(
    answer: int, folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with run_collector() as collector:
        collector.answer = answer
        called = run_with(folder, collector, monkeypatch)
    assert called.exit_code == 0
    assert json.loads(called.stdout)["status"] == "completed"
    warnings = [line for line in map(json.loads, called.stderr.splitlines()) if line["level"] == "warning"]
    [warning] = warnings
    assert "Failed to export" in warning["message"], "not that it is tried again"
    assert logging.getLogger("opentelemetry").handlers == []


def test_a_trace_of_a_run_that_a_bug_ended_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/v1/traces")

        def run() -> None:
            with open_metrics(MetricsOptions(), LABELS_OF_TEST, lambda _: None) as sink:
                sink(STARTED)
                raise AssertionError("a bug")

        with pytest.raises(AssertionError, match="a bug"):
            run()
    [span] = collector.spans()
    assert (span.name, span.status.code) == ("bulkinfer.run", 2)


def test_a_collector_that_is_not_there_is_one_warning(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    called = run_with(folder, Collector("http://127.0.0.1:9"), monkeypatch)
    assert called.exit_code == 0
    lines = [json.loads(line) for line in called.stderr.splitlines()]
    assert len([line for line in lines if line["level"] == "warning"]) == 1


def test_a_setting_that_the_library_cannot_read_stops_opentelemetry_alone(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "x")
    path = folder.path / "job.prom"
    with run_collector() as collector:
        called = run_with(folder, collector, monkeypatch, "--metrics-file", str(path))
    assert called.exit_code == 0
    [warning] = [line for line in map(json.loads, called.stderr.splitlines()) if line["level"] == "warning"]
    assert warning["message"] == "OpenTelemetry: ValueError; nothing is sent, and the run goes on"
    samples = read_samples(path.read_text())
    assert (samples["bulkinfer_documents_answered_total"], samples["bulkinfer_run_status", "completed"]) == (19, 1)
    assert logging.getLogger("opentelemetry").handlers == []


def test_without_the_extra_the_run_says_what_to_install(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bulkinfer.metrics.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [name for name in sys.modules if name.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    called = run_with(folder, Collector("http://127.0.0.1:9"), monkeypatch)
    assert called.exit_code == 0
    [warning] = [line for line in map(json.loads, called.stderr.splitlines()) if line["level"] == "warning"]
    assert "pip install 'bulkinfer[otel]'" in warning["message"]


@pytest.mark.parametrize(
    ("text", "interval_s"),
    [("", 60.0), ("soon", 60.0), ("2500", 2.5), ("0", 0.1), ("1e300", 86_400.0), ("inf", 86_400.0), ("nan", 60.0)],
)
def test_the_interval_is_that_of_the_environment(text: str, interval_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", text)
    assert otlp_module.read_interval_s() == interval_s
