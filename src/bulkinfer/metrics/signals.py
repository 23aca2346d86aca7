"""Which signals of OpenTelemetry the environment asks for, by OpenTelemetry's own variables."""

from collections.abc import Mapping
from enum import StrEnum
from importlib.util import find_spec


class Signal(StrEnum):
    """What can be sent to a collector."""

    TRACES = "traces"
    METRICS = "metrics"


def find_signals(environment: Mapping[str, str]) -> frozenset[Signal]:
    """Those that have an endpoint, for all of them or of their own, and are not switched off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return frozenset()
    return frozenset(signal for signal in Signal if _is_wanted(signal, environment))


def is_installed() -> bool:
    """Whether the extra `otel` is there; the environment may ask for signals without it."""
    try:
        return find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:
        return False


def _is_wanted(signal: Signal, environment: Mapping[str, str]) -> bool:
    name = signal.value.upper()
    has_endpoint = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT") or environment.get(
        f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT"
    )
    return bool(has_endpoint) and environment.get(f"OTEL_{name}_EXPORTER", "otlp") != "none"
