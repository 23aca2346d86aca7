"""What all tests share: a clean environment, and small jobs on the simulated engine."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import Phase, settings

from bulkinfer.events import Event
from bulkinfer.job import load_job
from bulkinfer.runner import RunOptions, RunReport, plan_run, run_job

ROOT = Path(__file__).parents[1]

# `make test` runs the same examples each time; `make fuzz` so many new ones, without making a failing one smaller: that
# takes hours where an example is a whole run.
settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=100)
settings.register_profile(
    "fuzz",
    deadline=None,
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "2000")),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
settings.load_profile("fuzz" if "FUZZ_EXAMPLES" in os.environ else "suite")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on what the machine's owner exported."""
    for name in os.environ:
        if name.startswith(("BULKINFER_", "VLLM_", "OTEL_")):
            monkeypatch.delenv(name)


class JobFolder:
    """A folder with a job file, its input and its database; the engine is the simulated one, and costs nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job_path = path / "job.yaml"
        self.database = path / "out.duckdb"
        self.input = path / "in.jsonl"
        self.spec: dict[str, Any] = {
            "name": "test",
            "input": {"path": "in.jsonl", "id": "id"},
            "model": {"path": "model"},
            "prompt": {"user": "{{ body }}"},
            "sampling": {"max_tokens": 16},
            "limits": {"max_concurrency": 4, "max_queue_size": 16, "max_failures": "50%"},
            "engine": {
                "kind": "simulated",
                "simulated": {"clock": "virtual", "seconds_per_prompt_token": 0, "seconds_per_output_token": 0},
            },
            "output": {"database": "out.duckdb"},
        }
        write_model_folder(path / "model")
        self.events: list[Event] = []

    def write_job(self, **sections: dict[str, Any]) -> Path:
        """Write the job file; each section's keys are laid over the default's."""
        spec = {
            key: ({**value, **sections.get(key, {})} if isinstance(value, dict) else value)
            for key, value in self.spec.items()
        }
        self.job_path.write_text(yaml.safe_dump(spec), encoding="utf-8")
        return self.job_path

    def write_documents(self, documents: Sequence[dict[str, Any]], name: str = "in.jsonl") -> Path:
        """Write documents as JSONL."""
        path = self.path / name
        path.write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in documents))
        return path

    def run(self, options: RunOptions | None = None, **sections: dict[str, Any]) -> RunReport:
        """Run the job in this process."""
        self.write_job(**sections)
        return self.run_as_written(options)

    def run_as_written(self, options: RunOptions | None = None) -> RunReport:
        """Run the job file as it stands, in this process."""
        self.events = []
        return run_job(plan_run(load_job(self.job_path)), options or RunOptions(), self.events.append)


def write_model_folder(path: Path) -> None:
    """What passes for a model folder as long as nobody loads it."""
    path.mkdir()
    (path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (path / "model.safetensors").write_bytes(b"0")


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """A job folder of the test's own."""
    return JobFolder(tmp_path)


def make_documents(count: int) -> list[dict[str, Any]]:
    """Different documents of different lengths."""
    return [{"id": f"d{number}", "body": f"document {number} " + "word " * (number % 37)} for number in range(count)]
