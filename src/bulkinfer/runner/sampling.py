"""How a run stands at this moment, as the line that the store writes of it every few seconds."""

import time
from collections.abc import Mapping

import psutil

from bulkinfer.records import JsonValue
from bulkinfer.runner.ledger import Ledger
from bulkinfer.store import Sample


def take_sample(ledger: Ledger, num_queued: int, num_in_flight: int) -> tuple[Sample, Mapping[str, JsonValue]]:
    """The sample, and the settings of the engine; {} before one was ready. Called from the store's writer thread.

    The loop's thread goes on counting meanwhile: a sample's counts may be a moment apart, and ahead of the commit.
    """
    stats = ledger.stats if num_in_flight else None  # a reading is half a second old: nothing runs any more
    silence = ledger.listening.take_longest()
    sample = Sample(
        elapsed_s=round(time.monotonic() - ledger.started_s, 3),
        read=ledger.num_read,
        succeeded=ledger.num_succeeded,
        failed=ledger.num_failed,
        queued=num_queued,
        in_flight=num_in_flight,
        active=stats.num_active if stats else 0,
        kv_cache_usage=stats.kv_cache_usage if stats else 0.0,
        preemptions=ledger.num_preemptions,
        restarts=ledger.num_restarts,
        engine_steps=ledger.steps.num_steps,
        prompt_tokens=ledger.prompt_tokens,
        cached_tokens=ledger.cached_tokens,
        output_tokens=ledger.output_tokens,
        runner_memory_bytes=psutil.Process().memory_info().rss,
        engine_memory_bytes=ledger.peak_engine_memory_bytes,
        gpu_memory_bytes=stats.gpu_memory_bytes if stats else 0,
        silence_s=silence.length_s,
        silence_ended_s=silence.ended_s,
    )
    return sample, ledger.settings
