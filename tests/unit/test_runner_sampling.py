"""The line that a run writes of itself every few seconds."""

from dataclasses import replace

from bulkinfer.runner.ledger import Ledger
from bulkinfer.runner.sampling import take_sample
from tests.unit.test_runner_ledger import STATS


def test_a_line_has_the_memory_of_the_gpus_while_something_runs() -> None:
    ledger = Ledger(input_size_bytes=100, max_concurrency=4)
    ledger.note_stats(replace(STATS, gpu_memory_bytes=7_000))
    assert take_sample(ledger, num_queued=0, num_in_flight=1)[0].gpu_memory_bytes == 7_000
    assert take_sample(ledger, num_queued=0, num_in_flight=0)[0].gpu_memory_bytes == 0
