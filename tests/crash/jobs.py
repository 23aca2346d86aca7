"""The jobs of a soak: what is asked, and of which engine."""

import random

import orjson

from tests.conftest import JobFolder
from tests.crash.disturbance import Pace
from tests.crash.trial import BAD_LINES, write_documents, write_simulated_job
from tests.engine_support import MODEL_PATH, ROOT


class SimulatedJob:
    """Fast, and answers depend on the document alone: all rows must be those of an undisturbed run."""

    pace = Pace(start_s=1.0, work_s=0.8, restart_s=2.0)
    has_same_texts = True

    def __init__(self, dice: random.Random) -> None:
        self._num_documents = dice.choice((300, 600, 1200, 2000))
        self._max_tokens = dice.choice((16, 16, 400))

    def write_input(self, folder: JobFolder) -> None:
        write_documents(folder, self._num_documents)

    def write_job(self, folder: JobFolder, num_left: int, work_s: float) -> None:
        """So slow that the documents left are work for that long."""
        num_steps = max(1, num_left) * self._max_tokens / 2 / 8
        write_simulated_job(folder, seconds_per_token=work_s / num_steps, max_tokens=self._max_tokens)


class VllmJob:
    """The demo model. An answer's text may depend on what runs beside it; that each document has one may not."""

    pace = Pace(start_s=12.0, work_s=2.5, restart_s=14.0)
    has_same_texts = False

    def __init__(self, dice: random.Random) -> None:
        tickets = (ROOT / "sample_data" / "tickets.jsonl").read_bytes().splitlines()
        bodies = [str(orjson.loads(line)["body"])[:100] for line in tickets[:150]]
        documents = [{"id": f"{number}", "body": f"{number}. {body}"} for number, body in enumerate(bodies)]
        self._lines = [orjson.dumps(document) for document in documents + dice.sample(documents, 15)]
        for line in BAD_LINES:
            self._lines.insert(dice.randrange(len(self._lines)), line)

    def write_input(self, folder: JobFolder) -> None:
        folder.input.write_bytes(b"\n".join(self._lines) + b"\n")

    def write_job(self, folder: JobFolder, num_left: int, work_s: float) -> None:
        """As fast as it is."""
        folder.write_job(
            model={"path": str(MODEL_PATH)},
            sampling={"temperature": 0, "max_tokens": 8, "stop": [","]},
            limits={"max_concurrency": 8, "max_context_tokens": 2048, "max_failures": "99%"},
            engine={"kind": "vllm", "vllm": {"kv_cache_memory_bytes": 256 << 20}},
        )


Job = SimulatedJob | VllmJob
