"""Every metric of a run: its names, its unit, what it means. docs/metrics.md lists them; a test compares.

Prometheus' names follow its conventions: base units, `_total` for what only grows. OpenTelemetry's are the same words,
or those of its conventions for generative AI where these have one.
"""

from dataclasses import dataclass
from enum import StrEnum

LABELS = ("model", "job_name", "task_kind")
"""What each metric is told apart by. Not `job`: Prometheus calls so what it scrapes, and would rename ours."""


class Kind(StrEnum):
    """How the numbers of a metric behave."""

    COUNTER = "counter"
    """It only grows, and begins at 0 with each run."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `unit` is OpenTelemetry's (UCUM): s, By, 1 for a share, {document} for a count."""

    base: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    """Besides LABELS."""
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without the last, which has none."""
    gen_ai_name: str = ""
    """Its name in OpenTelemetry's conventions for generative AI, if they have one."""
    token_type: str = ""
    """The value of the attribute gen_ai.token.type there."""

    @property
    def name(self) -> str:
        """Prometheus' name."""
        unit = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}.get(self.unit, "")
        return f"bulkinfer_{self.base}{unit}{'_total' if self.kind is Kind.COUNTER else ''}"

    @property
    def otel_name(self) -> str:
        """OpenTelemetry's name."""
        return self.gen_ai_name or f"bulkinfer.{self.base}"


# The bounds of OpenTelemetry's conventions for generative AI, continued: a queue of slow documents takes minutes.
_DURATIONS = tuple(round(0.01 * 2**power, 2) for power in range(18))
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(25.0, 50.0, 100.0, 250.0, 500.0, 1000.0),
)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
# Twice as fine as theirs, which are the powers of 4: a model's context is filled to the half, or to the whole.
_TOKENS = tuple(float(2**power) for power in range(21))
_COMMITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def _counter(base: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(base, Kind.COUNTER, unit, text, labels)


def _gauge(base: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(base, Kind.GAUGE, unit, text, labels)


def _histogram(
    base: str, unit: str, text: str, bounds: tuple[float, ...], name: str = "", token_type: str = ""
) -> Metric:
    return Metric(base, Kind.HISTOGRAM, unit, text, bounds=bounds, gen_ai_name=name, token_type=token_type)


RUN_INFO = _gauge(
    "run_info", "{run}", "1; its labels tell which run these metrics are of.", "run_id", "task_fingerprint", "version"
)
RUN_STATUS = _gauge("run_status", "{run}", "1 for the status that the run has, 0 for the others.", "status")
RUN_START = _gauge("run_start_timestamp", "s", "When the run started, in Unix time.")
RUN_END = _gauge("run_end_timestamp", "s", "When the run ended, in Unix time; absent until then.")
RUN_EXIT_CODE = _gauge("run_exit_code", "{code}", "The run's exit code; absent until it has ended.")
LAST_UPDATE = _gauge("last_update_timestamp", "s", "When these numbers were read, in Unix time.")

DOCUMENTS_READ = _counter("documents_read", "{row}", "Input rows read.")
DOCUMENTS_SKIPPED = _counter(
    "documents_skipped", "{row}", "Input rows whose document has an outcome already, or stands earlier in the input."
)
DOCUMENTS_ANSWERED = _counter("documents_answered", "{document}", "Documents answered in this run.")
DOCUMENTS_FAILED = _counter("documents_failed", "{document}", "Documents that failed in this run, by code.", "code")
DOCUMENTS_REJECTED = _counter(
    "documents_rejected", "{document}", "Those of the failed that were refused before they ran, by reason.", "reason"
)
DOCUMENTS_CANCELLED = _counter(
    "documents_cancelled", "{document}", "Documents in flight when the run stopped; the next run asks them again."
)
DOCUMENTS_RETRIED = _counter(
    "documents_retried", "{document}", "Documents asked again in this run, by what came in between.", "reason"
)
DOCUMENTS_COMMITTED = _counter("documents_committed", "{document}", "Outcomes that are on disk.", "outcome")
DOCUMENTS_TO_DO = _gauge("documents_to_do", "{document}", "Documents found so far that had no outcome before this run.")
INPUT_READ = _gauge("input_read", "1", "Share of the input's bytes that has been read, 0 to 1.")
SHARDS = _counter("shards", "{shard}", "Stretches of the input that were taken into the queue.")

QUEUED = _gauge("queued_documents", "{document}", "Documents read ahead that wait in the queue.")
IN_FLIGHT = _gauge("in_flight_documents", "{document}", "Documents that the engines have, waiting ones included.")
ACTIVE = _gauge("active_sequences", "{sequence}", "Sequences that the engines are running.")
QUEUE_TIME = _histogram(
    "queue_time", "s", "Of an answered document: from entering the queue until the engine first ran it.", _DURATIONS
)
FIRST_TOKEN_TIME = _histogram(
    "time_to_first_token",
    "s",
    "Of an answered document: from entering the queue to its first output token.",
    _FIRST_TOKEN,
    "gen_ai.server.time_to_first_token",
)
GENERATION_TIME = _histogram(
    "generation_time", "s", "Of an answered document: from its first output token to its last.", _DURATIONS
)
COMPLETION_TIME = _histogram(
    "completion_time",
    "s",
    "Of an answered document: from entering the queue to its last output token.",
    _DURATIONS,
    "gen_ai.server.request.duration",
)
PER_TOKEN_TIME = _histogram(
    "time_per_output_token",
    "s",
    "Of an answered document: generation time by each token after the first; none for answers of one token.",
    _PER_TOKEN,
    "gen_ai.server.time_per_output_token",
)

PROMPT_TOKENS = _counter("prompt_tokens", "{token}", "Prompt tokens of completed requests, cached ones included.")
CACHED_TOKENS = _counter("cached_prompt_tokens", "{token}", "Those of them that came from the prefix cache.")
OUTPUT_TOKENS = _counter("output_tokens", "{token}", "Output tokens of completed requests.")
CACHE_HITS = _counter("prefix_cache_hits", "{document}", "Completed requests with prompt tokens from the prefix cache.")
PROMPT_TOKEN_RATE = _gauge(
    "prompt_tokens_per_second", "{token}/s", "Prompt tokens computed, over the last half minute."
)
OUTPUT_TOKEN_RATE = _gauge(
    "output_tokens_per_second", "{token}/s", "Output tokens computed, over the last half minute."
)
INPUT_LENGTH = _histogram(
    "input_length_tokens",
    "{token}",
    "Prompt tokens of one completed request.",
    _TOKENS,
    "gen_ai.client.token.usage",
    "input",
)
OUTPUT_LENGTH = _histogram(
    "output_length_tokens",
    "{token}",
    "Output tokens of one completed request.",
    _TOKENS,
    "gen_ai.client.token.usage",
    "output",
)

KV_CACHE_USAGE = _gauge("kv_cache_usage", "1", "Share of the KV cache in use, 0 to 1; of several engines the mean.")
PREEMPTIONS = _counter("engine_preemptions", "{preemption}", "Sequences put back because the KV cache was full.")
ENGINES = _gauge("engines", "{engine}", "Engines that the run has, but for those given up.")
ENGINES_READY = _gauge("engines_ready", "{engine}", "Those of them that have a model loaded.")
ENGINE_DEATHS = _counter("engine_deaths", "{death}", "Engines that died or fell silent.")
ENGINE_RESTARTS = _counter("engine_restarts", "{restart}", "Starts of engines that had died.")
MODEL_LOAD = _gauge("model_load_time", "s", "How long the last load of the model took, by engine.", "engine")

RUNNER_MEMORY = _gauge("runner_memory", "By", "Resident memory of the run's own process.")
ENGINE_MEMORY = _gauge("engine_memory", "By", "Peak resident memory of the engines' processes.")
GPU_MEMORY = _gauge("gpu_memory", "By", "In use on the engines' GPUs, by whomever; 0 without one.")

COMMIT_TIME = _histogram("commit_time", "s", "One transaction, until it is on disk.", _COMMITS)
DATABASE_SIZE = _gauge(
    "database_size", "By", "Size of the database, its write-ahead log included; absent until the first commit."
)

CATALOGUE = (
    *(RUN_INFO, RUN_STATUS, RUN_START, RUN_END, RUN_EXIT_CODE, LAST_UPDATE),
    *(DOCUMENTS_READ, DOCUMENTS_SKIPPED, DOCUMENTS_ANSWERED, DOCUMENTS_FAILED, DOCUMENTS_REJECTED, DOCUMENTS_CANCELLED),
    *(DOCUMENTS_RETRIED, DOCUMENTS_COMMITTED, DOCUMENTS_TO_DO, INPUT_READ, SHARDS),
    *(QUEUED, IN_FLIGHT, ACTIVE, QUEUE_TIME, FIRST_TOKEN_TIME, GENERATION_TIME, COMPLETION_TIME, PER_TOKEN_TIME),
    *(PROMPT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS, CACHE_HITS, PROMPT_TOKEN_RATE, OUTPUT_TOKEN_RATE),
    *(INPUT_LENGTH, OUTPUT_LENGTH),
    *(KV_CACHE_USAGE, PREEMPTIONS, ENGINES, ENGINES_READY, ENGINE_DEATHS, ENGINE_RESTARTS, MODEL_LOAD),
    *(RUNNER_MEMORY, ENGINE_MEMORY, GPU_MEMORY, COMMIT_TIME, DATABASE_SIZE),
)
