"""The counts as Prometheus reads them, and the text file of them for node_exporter."""

import math
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from bulkinfer.errors import JobError
from bulkinfer.metrics.catalogue import LABELS, LAST_UPDATE, RUN_STATUS, Kind
from bulkinfer.metrics.tally import Reading, RunLabels, Tally
from bulkinfer.records import RunStatus

_FIRST_BYTES = b"# HELP bulkinfer_"
"""How a file that an earlier run wrote begins."""


def create_registry(tally: Tally) -> CollectorRegistry:
    """What prometheus_client reads the tally through."""
    registry = CollectorRegistry()
    registry.register(_TallyCollector(tally))
    return registry


class MetricsFile:
    """A text file that is replaced, whole or not at all.

    Raises JobError when it is clear beforehand that it cannot be written, or that something else would be lost.
    """

    def __init__(self, path: Path, registry: CollectorRegistry) -> None:
        self._path = os.path.realpath(path)  # where a link leads, so that the link stays
        self._registry = registry
        if path.suffix != ".prom":  # of the name that node_exporter sees
            raise JobError(f"--metrics-file {path}: must end in .prom: node_exporter reads no others")
        try:
            self._check(Path(self._path))
        except OSError as error:
            raise JobError(f"--metrics-file {path}: cannot be written: {error.strerror}") from error

    def is_of_live_run(self, within_s: float) -> bool:
        """Whether it says that a run goes on, and was written within that time. False when it cannot be read."""
        try:
            text = Path(self._path).read_text(encoding="utf-8")
            samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        except (OSError, ValueError):
            return False
        is_running = any(
            one.value == 1 and one.labels.get("status") == RunStatus.RUNNING
            for one in samples
            if one.name == RUN_STATUS.name
        )
        return is_running and any(time.time() - one.value < within_s for one in samples if one.name == LAST_UPDATE.name)

    def write(self) -> None:
        """Replace it. Raises OSError."""
        write_to_textfile(self._path, self._registry)

    def _check(self, path: Path) -> None:
        if path.exists():
            if not path.is_file():
                raise JobError(f"--metrics-file {path}: is not a file")
            with path.open("rb") as file:
                begin = file.read(len(_FIRST_BYTES))
            if begin not in {b"", _FIRST_BYTES}:
                raise JobError(f"--metrics-file {path}: holds something else than bulkinfer's metrics; name another")
        # As long a name as the library's own for it, with a process and a thread in it.
        name = f"{path.name}.{os.getpid()}.{threading.get_ident()}"
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=name):
            pass


class _TallyCollector(Collector):
    """Read anew for each scrape and each file."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> Iterator[Family]:
        """One family for each metric of the catalogue."""
        for reading in self._tally.read():
            yield _create_family(reading, self._tally.labels)


def _create_family(reading: Reading, labels: RunLabels) -> Family:
    metric = reading.metric
    names = (*LABELS, *metric.labels)
    match metric.kind:
        case Kind.COUNTER:
            counter = CounterMetricFamily(metric.name, metric.help, labels=names)
            for point in reading.points:
                counter.add_metric((*labels.values, *point.labels), point.value)
            return counter
        case Kind.GAUGE:
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=names)
            for point in reading.points:
                gauge.add_metric((*labels.values, *point.labels), point.value)
            return gauge
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=names)
            bounds = tuple(_name_bound(bound) for bound in (*metric.bounds, math.inf))
            for point in reading.points:
                histogram.add_metric(labels.values, list(_accumulate(bounds, point.counts)), point.value)
            return histogram


def _name_bound(bound: float) -> str:
    """As Prometheus writes it."""
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]  # the library's own for this


def _accumulate(bounds: tuple[str, ...], counts: tuple[int, ...]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip(bounds, counts, strict=True):
        total += count
        yield bound, float(total)
