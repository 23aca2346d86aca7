"""What was measured, as it lies on disk: one line of JSON for each run, and the answers beside them."""

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.peers.base import Answer


class Series(StrEnum):
    """What a run was made for."""

    MAIN = "main"
    NOISE = "noise"
    """One command against itself."""


@dataclass(frozen=True, slots=True)
class Run:
    """One peer, once through one queue."""

    suite: str
    """When the suite was started that made it."""
    series: Series
    queue: str
    peer: str
    round: int
    """From 0; runs of one round of one suite stand next to each other in time, and are compared with each other."""
    num_documents: int
    num_distinct: int
    wall_s: float
    peak_memory_bytes: int
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    engine_start_s: float | None
    generate_s: float | None
    full_step_share: float | None = None

    @property
    def output_tokens_per_s(self) -> float | None:
        """Of those that were computed, while it generated."""
        if self.output_tokens is None or not self.generate_s:
            return None
        return self.output_tokens / self.generate_s


class Results:
    """The runs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "runs.jsonl"
        self._answers = folder / "answers"
        self._answers.mkdir(parents=True, exist_ok=True)

    def load(self) -> list[Run]:
        """All runs, in the order in which they were made."""
        if not self._path.exists():
            return []
        rows = (json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines())
        return [Run(**(row | {"series": Series(row["series"])})) for row in rows]

    def add(self, run: Run, answers: Iterable[Answer]) -> None:
        """Keep one more."""
        texts = {answer.document_id: answer.text for answer in answers}
        self._answers_path(run).write_text(json.dumps(texts), encoding="utf-8")
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(run)) + "\n")

    def drop(self, keys: Collection[tuple[Series, str, str]]) -> None:
        """Forget the runs of these series, queues and peers: they are about to be made again."""
        self._keep([run for run in self.load() if (run.series, run.queue, run.peer) not in keys])

    def drop_runs(self, keys: Collection[tuple[Series, str, str, int]]) -> None:
        """The same of single runs, by series, queue, peer and round."""
        self._keep([run for run in self.load() if (run.series, run.queue, run.peer, run.round) not in keys])

    def _keep(self, runs: Iterable[Run]) -> None:
        self._path.write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs), encoding="utf-8")

    def load_answers(self, run: Run) -> dict[str, str]:
        """The text of each answer, by document id."""
        answers: dict[str, str] = json.loads(self._answers_path(run).read_text(encoding="utf-8"))
        return answers

    def _answers_path(self, run: Run) -> Path:
        return self._answers / f"{run.series}-{run.queue}-{run.peer}-{run.round}.json"
