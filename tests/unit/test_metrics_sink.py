"""Who is told the counts: a port, a file. What is wrong beforehand is an error, what goes wrong later one warning."""

import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.exposition import ThreadingWSGIServer

from bulkinfer.errors import EngineError, Interrupted, JobError, StoreLocked
from bulkinfer.events import Event, EventSink, MetricsServed, RunEnded, Warned
from bulkinfer.metrics import MetricsOptions, open_metrics
from bulkinfer.metrics import port as port_module
from bulkinfer.metrics import sink as sink_module
from bulkinfer.metrics.exposition import MetricsFile, create_registry
from bulkinfer.metrics.port import MetricsPort
from bulkinfer.metrics.signals import Signal, find_signals
from bulkinfer.metrics.tally import Tally
from bulkinfer.metrics.ticker import Ticker
from bulkinfer.records import RunStatus
from tests.metrics_support import LABELS_OF_TEST, PROGRESS, STARTED, read_samples

ENDED = RunEnded(RunStatus.COMPLETED, {"exit_code": 0})


def ask(url: str) -> str:
    """What Prometheus would get."""
    with urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def url_of(events: list[Event]) -> str:
    """Where the metrics are served."""
    [url] = [event.url for event in events if isinstance(event, MetricsServed)]
    return url


def warnings_of(events: list[Event]) -> list[str]:
    """What was warned of."""
    return [event.message for event in events if isinstance(event, Warned)]


def test_without_anything_that_wants_metrics_nothing_stands_in_between() -> None:
    events: list[Event] = []
    tell = events.append
    with open_metrics(MetricsOptions(), LABELS_OF_TEST, tell) as sink:
        assert sink is tell
    assert not MetricsOptions().are_wanted


def test_the_port_answers_while_the_run_lives_and_no_longer() -> None:
    events: list[Event] = []
    with open_metrics(MetricsOptions(port=0), LABELS_OF_TEST, events.append) as sink:
        url = url_of(events)
        assert url.startswith("http://127.0.0.1:")
        assert read_samples(ask(url))["bulkinfer_documents_read_total"] == 0
        sink(STARTED)
        sink(PROGRESS)
        assert read_samples(ask(url))["bulkinfer_documents_read_total"] == PROGRESS.num_read
    with pytest.raises(URLError):
        ask(url)
    assert events[1:] == [STARTED, PROGRESS], "the display is told all"


def test_a_port_in_use_is_an_error_before_the_run_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        wrong = pytest.raises(
            JobError, match=rf"--metrics-port {port}: .*127.0.0.1: Address already in use; .* another"
        )
        with wrong, open_metrics(MetricsOptions(port=port), LABELS_OF_TEST, print):
            raise AssertionError("the run has begun")


@pytest.mark.parametrize("address", ["192.0.2.1", "no such host", "::ffff:zz", "a..b"])
def test_an_address_that_is_not_ours_is_an_error(address: str) -> None:
    options = MetricsOptions(port=0, address=address)
    with pytest.raises(JobError, match="cannot listen on"), open_metrics(options, LABELS_OF_TEST, print):
        raise AssertionError("the run has begun")


def test_a_client_that_says_nothing_keeps_no_other_and_no_end_waiting() -> None:
    events: list[Event] = []
    with open_metrics(MetricsOptions(port=0), LABELS_OF_TEST, events.append) as sink:
        sink(STARTED)
        port = int(url_of(events).rpartition(":")[2].partition("/")[0])
        silent = socket.create_connection(("127.0.0.1", port))
        assert "bulkinfer_run_info" in ask(url_of(events))
    silent.close()


def test_any_number_of_clients_takes_few_of_the_descriptors_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "CLIENT_LIMIT_S", 0.2)
    events: list[Event] = []
    with open_metrics(MetricsOptions(port=0), LABELS_OF_TEST, events.append) as sink:
        sink(STARTED)
        address = ("127.0.0.1", int(url_of(events).rpartition(":")[2].partition("/")[0]))
        num_before = len(list(Path("/proc/self/fd").iterdir()))
        silent = [socket.create_connection(address) for _ in range(port_module.MAX_CLIENTS + 20)]
        try:
            assert "bulkinfer_run_info" in ask(url_of(events)), "those that say nothing make room"
            num_of_port = len(list(Path("/proc/self/fd").iterdir())) - num_before - len(silent)
            assert num_of_port <= port_module.MAX_CLIENTS + 1
        finally:
            begin_s = time.monotonic()
    assert time.monotonic() - begin_s < 8, "nor do they keep its end waiting"
    assert warnings_of(events) == []
    for client in silent:
        client.close()


def test_what_a_client_does_wrong_is_not_told_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    events: list[Event] = []
    with open_metrics(MetricsOptions(port=0), LABELS_OF_TEST, events.append) as sink:
        sink(STARTED)
        address = ("127.0.0.1", int(url_of(events).rpartition(":")[2].partition("/")[0]))
        for said in (
            b"",
            b"GET /met",
            b"\x00\xff\r\n\r\n",
            b"GET / HTTP/1.0\r\nAccept: application/openmetrics-text; version=abc\r\n\r\n",
            b"GET /metrics HTTP/1.0\r\n\r\n",
        ):
            for goes_away in (True, False):
                client = socket.create_connection(address)
                client.sendall(said)
                if goes_away:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by a reset
                elif said:
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(1 << 16):
                        pass
                client.close()
        assert "bulkinfer_run_info" in ask(url_of(events))
    assert capfd.readouterr().err == ""


def test_the_file_is_written_from_the_start_and_at_the_end_and_is_readable_for_all(tmp_path: Path) -> None:
    path = tmp_path / "job.prom"
    with open_metrics(MetricsOptions(file=path), LABELS_OF_TEST, lambda _: None) as sink:
        assert not path.exists(), "before the database is ours, another run's file stays as it is"
        sink(STARTED)
        wait_until(path.exists)
        assert read_samples(path.read_text())["bulkinfer_run_status", "running"] == 1
        sink(PROGRESS)
        sink(ENDED)
    samples = read_samples(path.read_text())
    assert samples["bulkinfer_documents_read_total"] == PROGRESS.num_read
    assert (samples["bulkinfer_run_status", "completed"], samples["bulkinfer_run_exit_code"]) == (1, 0)
    assert [one.name for one in tmp_path.iterdir()] == ["job.prom"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~current_umask()


def test_the_file_is_written_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "FILE_EVERY_S", 0.01)
    path = tmp_path / "job.prom"
    with open_metrics(MetricsOptions(file=path), LABELS_OF_TEST, lambda _: None) as sink:
        sink(STARTED)
        wait_until(path.exists)
        sink(PROGRESS)
        wait_until(lambda: read_samples(path.read_text())["bulkinfer_documents_read_total"] == PROGRESS.num_read)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "job.prom"
    link.symlink_to(tmp_path / "real" / "job.prom")
    with open_metrics(MetricsOptions(file=link), LABELS_OF_TEST, lambda _: None) as sink:
        sink(STARTED)
    assert link.is_symlink()
    assert "bulkinfer_run_info" in (tmp_path / "real" / "job.prom").read_text()


def test_the_name_of_a_link_is_what_node_exporter_sees(tmp_path: Path) -> None:
    (tmp_path / "job.prom").symlink_to(tmp_path / "target")
    with open_metrics(MetricsOptions(file=tmp_path / "job.prom"), LABELS_OF_TEST, lambda _: None) as sink:
        sink(STARTED)
    assert "bulkinfer_run_info" in (tmp_path / "target").read_text()
    (tmp_path / "link").symlink_to(tmp_path / "other.prom")
    options = MetricsOptions(file=tmp_path / "link")
    with pytest.raises(JobError, match=r"must end in \.prom"), open_metrics(options, LABELS_OF_TEST, print):
        raise AssertionError("the run has begun")


def make_other(folder: Path) -> Path:
    """A file of somebody else."""
    path = folder / "other.prom"
    path.write_text("# HELP node_load 1\n")
    return path


def make_pipe(folder: Path) -> Path:
    """Something that is no file."""
    os.mkfifo(folder / "pipe.prom")
    return folder / "pipe.prom"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: folder / "job.txt", "must end in .prom"),
        (lambda _: Path("/dev/null"), "must end in .prom"),
        (lambda folder: folder / "none" / "job.prom", "cannot be written: No such file or directory"),
        (lambda _: Path("/proc/job.prom"), "cannot be written"),
        (make_other, "holds something else"),
        (lambda folder: folder / f"{'n' * 235}.prom", "cannot be written: File name too long"),
        (make_pipe, "is not a file"),
    ],
)
def test_a_file_that_cannot_or_must_not_be_written_is_an_error_before_the_run(
    make: Callable[[Path], Path], reason: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    with pytest.raises(JobError, match=reason), open_metrics(MetricsOptions(file=path), LABELS_OF_TEST, print):
        raise AssertionError("the run has begun")


def test_a_folder_that_vanishes_is_one_warning_and_a_folder_that_comes_back_gets_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "FILE_EVERY_S", 0.01)
    events: list[Event] = []
    folder = tmp_path / "mounted"
    folder.mkdir()
    with open_metrics(MetricsOptions(file=folder / "job.prom"), LABELS_OF_TEST, events.append) as sink:
        folder.rmdir()
        sink(STARTED)
        wait_until(lambda: has_warned(sink, events))
        folder.mkdir()
        wait_until((folder / "job.prom").exists)
        sink(ENDED)
    [warning] = warnings_of(events)
    assert "--metrics-file cannot be written: No such file or directory" in warning
    assert read_samples((folder / "job.prom").read_text())["bulkinfer_run_exit_code"] == 0


def test_a_disk_that_hangs_is_waited_for_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "END_LIMIT_S", 0.05)
    events: list[Event] = []
    released = threading.Event()
    metrics = sink_module.RunMetrics(Tally(LABELS_OF_TEST), events.append, {})

    def hang() -> None:
        released.wait(30)

    metrics.write_with(hang)
    metrics(STARTED)
    metrics.end(None)
    released.set()
    assert warnings_of(events) == ["--metrics-file: the last numbers of this run could not be written"]


@pytest.mark.parametrize(
    ("error", "exit_code", "status"),
    [(JobError("no input"), 2, "failed"), (EngineError("x"), 3, "failed"), (Interrupted(15), 143, "interrupted")],
)
def test_a_run_that_could_not_begin_leaves_its_exit_code_in_the_file(
    error: BaseException, exit_code: int, status: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.prom"
    with pytest.raises(type(error)), open_metrics(MetricsOptions(file=path), LABELS_OF_TEST, print):
        raise error
    samples = read_samples(path.read_text())
    assert (samples["bulkinfer_run_exit_code"], samples["bulkinfer_run_status", status]) == (exit_code, 1)


def test_a_run_that_finds_the_database_locked_leaves_the_file_to_the_other(tmp_path: Path) -> None:
    path = tmp_path / "job.prom"
    with pytest.raises(StoreLocked), open_metrics(MetricsOptions(file=path), LABELS_OF_TEST, print):
        raise StoreLocked("another run")
    assert not path.exists()


def test_a_run_that_could_not_begin_leaves_the_file_of_a_live_run_alone(tmp_path: Path) -> None:
    path = tmp_path / "job.prom"
    options = MetricsOptions(file=path)

    def fail() -> None:
        with open_metrics(options, LABELS_OF_TEST, print):
            raise JobError("no input")

    with open_metrics(options, LABELS_OF_TEST, lambda _: None) as sink:
        sink(STARTED)
        wait_until(path.exists)
        with pytest.raises(JobError, match="no input"):
            fail()
        assert read_samples(path.read_text())["bulkinfer_run_status", "running"] == 1
        sink(ENDED)
    with pytest.raises(JobError, match="no input"):
        fail()
    assert read_samples(path.read_text())["bulkinfer_run_exit_code"] == 2, "that run has ended"


def test_a_killed_run_keeps_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.prom"
    tally = Tally(LABELS_OF_TEST)
    tally.take(STARTED)
    file = MetricsFile(path, create_registry(tally))
    assert not file.is_of_live_run(60), "there is none"
    file.write()
    assert file.is_of_live_run(60)
    monkeypatch.setattr("bulkinfer.metrics.exposition.time.time", lambda: tally.start_s + 3_600)
    assert not file.is_of_live_run(60)


def test_single_documents_are_counted_for_those_alone_that_are_told_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not MetricsOptions().tells_documents
    assert MetricsOptions(port=0).tells_documents
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/v1/traces")
    assert MetricsOptions().are_wanted
    assert not MetricsOptions().tells_documents
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert MetricsOptions().tells_documents
    monkeypatch.delitem(sys.modules, "opentelemetry.sdk", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert not MetricsOptions().tells_documents


def test_a_fault_of_the_metrics_is_one_warning_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: Tally, _event: Event) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Tally, "take", fail)
    events: list[Event] = []
    with open_metrics(MetricsOptions(port=0), LABELS_OF_TEST, events.append) as sink:
        for _ in range(3):
            sink(PROGRESS)
    assert events.count(PROGRESS) == 3
    [warning] = warnings_of(events)
    assert "ZeroDivisionError" in warning
    assert "secret" not in warning


def test_metrics_that_stand_still_still_tell_how_the_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Tally.take

    def fail_at_progress(self: Tally, event: Event) -> None:
        if event == PROGRESS:
            raise ZeroDivisionError
        take(self, event)

    monkeypatch.setattr(Tally, "take", fail_at_progress)
    path = tmp_path / "job.prom"
    with open_metrics(MetricsOptions(file=path), LABELS_OF_TEST, lambda _: None) as sink:
        for event in (STARTED, PROGRESS, ENDED):
            sink(event)
    samples = read_samples(path.read_text())
    assert (samples["bulkinfer_run_status", "completed"], samples["bulkinfer_run_exit_code"]) == (1, 0)


@pytest.mark.parametrize(("owner", "name"), [(Tally, "end"), (Ticker, "stop"), (MetricsPort, "close")])
def test_a_fault_at_the_end_is_one_warning(
    owner: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret")

    really_close = MetricsPort.close
    ports: list[MetricsPort] = []

    def fail_after(port: MetricsPort, _limit_s: float) -> None:
        ports.append(port)
        fail()

    monkeypatch.setattr(owner, name, fail_after if owner is MetricsPort else fail)
    events: list[Event] = []
    options = MetricsOptions(port=0, file=tmp_path / "job.prom")

    def run() -> None:
        with open_metrics(options, LABELS_OF_TEST, events.append) as sink:
            sink(STARTED)
            raise JobError("no input")

    with pytest.raises(JobError, match="no input"):
        run()
    [warning] = warnings_of(events)
    assert "ZeroDivisionError" in warning
    for port in ports:
        really_close(port, 10)


def test_a_port_that_does_not_end_is_waited_for_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "END_LIMIT_S", 0.05)
    released, closed = threading.Event(), threading.Event()
    shutdown = ThreadingWSGIServer.shutdown

    def hang(server: ThreadingWSGIServer) -> None:
        released.wait(30)
        shutdown(server)
        server.server_close()
        closed.set()

    monkeypatch.setattr(ThreadingWSGIServer, "shutdown", hang)
    events: list[Event] = []
    with open_metrics(MetricsOptions(port=0), LABELS_OF_TEST, events.append) as sink:
        sink(STARTED)
    released.set()
    assert closed.wait(20)
    assert warnings_of(events) == ["--metrics-port: TimeoutError; it is left open, and the run goes on"]


def test_a_ticker_acts_a_last_time_and_says_when_that_failed() -> None:
    calls: list[int] = []
    ticker = Ticker(lambda: calls.append(1), 3600, "test", print)
    assert ticker.stop(10)
    assert calls == [1]

    def fail() -> None:
        raise ZeroDivisionError

    assert not Ticker(fail, 3600, "test", lambda _: None).stop(10)


def test_a_ticker_goes_on_after_an_error_and_tells_it() -> None:
    calls: list[int] = []
    errors: list[Exception] = []

    def fail_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError

    ticker = Ticker(fail_once, 0.01, "test", errors.append)
    wait_until(lambda: len(calls) > 1)
    assert ticker.stop(10)
    assert [type(error) for error in errors] == [ZeroDivisionError]


@pytest.mark.parametrize(
    ("environment", "signals"),
    [
        ({}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, (Signal.TRACES, Signal.METRICS)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, (Signal.TRACES,)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, (Signal.METRICS,)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, ()),
    ],
)
def test_the_environment_says_what_is_sent(environment: dict[str, str], signals: tuple[Signal, ...]) -> None:
    assert find_signals(environment) == frozenset(signals)


def has_warned(sink: EventSink, events: list[Event]) -> bool:
    """Let a sink hand on what other threads had to say."""
    assert isinstance(sink, sink_module.RunMetrics)
    sink.tell_warnings()
    return bool(warnings_of(events))


def wait_until(is_so: Callable[[], bool], limit_s: float = 20) -> None:
    """Wait for another thread."""
    waiting = threading.Event()
    for _ in range(int(limit_s / 0.01)):
        if is_so():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not happen in time")


def current_umask() -> int:
    """Of this process."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
