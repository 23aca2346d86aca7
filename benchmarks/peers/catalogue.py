"""The peers that run in this environment, each with the same model, documents, messages and sampling."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from benchmarks.peers.base import MAX_NUM_SEQS, Answer, Command, Peer, Report, RunFailed
from benchmarks.peers.orders import read_answers, write_orders
from benchmarks.queues import Queue, write_queue

ROOT = Path(__file__).parents[2]
MODEL_PATH = ROOT / ".models" / "smollm2-135m-instruct"
QUERY_TIMEOUT_S = 60
RUN_BATCH_KV_CACHE_GIB = "4"

IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
ALL_CORES = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_NO_USAGE_STATS": "1"}
"""vLLM in a process of its own keeps one core free unless it is told not to."""

_ALL_OUTPUTS = "select document_id, output from answers union all select document_id, raw_output from open_failures"
"""bulkinfer calls an answer that was cut at max_tokens a failure and keeps it; the others call it an answer."""


@dataclass(frozen=True, slots=True)
class Bulkinfer:
    """bulkinfer as its command, from nothing."""

    name: str = "bulkinfer"
    title: str = "bulkinfer run"
    max_concurrency: int | None = MAX_NUM_SEQS
    """None: the job file says nothing, as a beginner's would."""

    def prepare(self, queue: Queue, folder: Path) -> Command:
        """Write the documents and the job file."""
        write_queue(queue, folder / "documents.jsonl")
        limits: dict[str, object] = {"max_context_tokens": queue.max_context_tokens, "max_failures": "100%"}
        if self.max_concurrency is not None:
            limits["max_concurrency"] = self.max_concurrency
        prompt = {"user": "{{ text }}"} | ({} if queue.system is None else {"system": queue.system})
        job = {
            "name": f"bench-{queue.name}",
            "input": {"path": "documents.jsonl", "id": "id"},
            "model": {"path": str(MODEL_PATH)},
            "prompt": prompt,
            "sampling": {"temperature": 0, "max_tokens": queue.max_tokens},
            "limits": limits,
            "output": {"database": "answers.duckdb"},
        }
        (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
        command = (sys.executable, "-m", "bulkinfer", "run", str(folder / "job.yaml"), "--json", "--quiet")
        # 5: every answer was cut at max_tokens, as it is meant here where max_tokens is 3.
        return Command(command, good_exit_codes=frozenset({0, 5}))

    def read(self, queue: Queue, folder: Path, stdout: str) -> Report:  # noqa: ARG002 - the port's signature
        """Take counts from the summary and answers from the database."""
        summary = json.loads(stdout)
        command = [sys.executable, "-m", "bulkinfer", "query", str(folder / "answers.duckdb"), _ALL_OUTPUTS]
        found = subprocess.run(
            [*command, "--format", "json"], check=True, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S
        )
        rows = json.loads(found.stdout)
        return Report(
            answers=tuple(Answer(row["document_id"], row["output"] or "") for row in rows),
            prompt_tokens=summary["tokens"]["prompt"],
            cached_tokens=summary["tokens"]["cached"],
            output_tokens=summary["tokens"]["output"],
            engine_start_s=summary["seconds"]["engine_start"],
            generate_s=summary["seconds"]["generate"],
            full_step_share=summary["engine"]["full_step_share"],
        )


@dataclass(frozen=True, slots=True)
class LlmChat:
    """`LLM.chat`, tuned by hand; see llm_chat.py."""

    name: str = "llm-chat"
    title: str = "LLM.chat, whole list, tuned"
    part_size: int = 0

    def prepare(self, queue: Queue, folder: Path) -> Command:
        """Write the conversations."""
        script = str(Path(__file__).parent / "llm_chat.py")
        paths = write_orders(queue, folder, MODEL_PATH)
        return Command((sys.executable, script, *paths, "--part-size", str(self.part_size)), IN_PROCESS)

    def read(self, queue: Queue, folder: Path, stdout: str) -> Report:  # noqa: ARG002 - the port's signature
        """Take all from the answers and the times beside them."""
        times = json.loads((folder / "answers.times.json").read_text(encoding="utf-8"))
        return replace(read_answers(folder), **times)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A peer with an environment of its own, below .bench/ (`make bench-peers`)."""

    name: str
    title: str
    environment: str
    script: str

    def prepare(self, queue: Queue, folder: Path) -> Command:
        """Write the conversations. Raises RunFailed when the environment is not there."""
        binaries = ROOT / ".bench" / self.environment / "bin"
        if not binaries.exists():
            raise RunFailed(f"{binaries.parent}: not there; `make bench-peers` makes it")
        paths = write_orders(queue, folder, MODEL_PATH)
        script = str(Path(__file__).parent / self.script)
        search = f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"
        return Command((str(binaries / "python"), script, *paths), {"PATH": search, **ALL_CORES})

    def read(self, queue: Queue, folder: Path, stdout: str) -> Report:  # noqa: ARG002 - the port's signature
        """Take all from the answers."""
        return read_answers(folder)


@dataclass(frozen=True, slots=True)
class VllmRunBatch:
    """vLLM's own `run-batch` with its defaults.

    Its console script does not start with the CPU distribution; the module behind it does. The one thing that is set is
    the size of the KV cache: the default is 92 % of the machine's memory, which is not free on most.
    """

    name: str = "run-batch"
    title: str = "vLLM run-batch, defaults"

    def prepare(self, queue: Queue, folder: Path) -> Command:
        """Write the requests in OpenAI's batch format."""
        requests = (
            {
                "custom_id": entry.document_id,
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": str(MODEL_PATH),
                    "messages": messages,
                    "temperature": 0,
                    "max_tokens": queue.max_tokens,
                },
            }
            for entry, messages in zip(queue.entries, queue.conversations(), strict=True)
        )
        path = folder / "requests.jsonl"
        path.write_text("".join(json.dumps(request) + "\n" for request in requests), encoding="utf-8")
        module = ("-m", "vllm.entrypoints.openai.run_batch")
        files = ("-i", str(path), "-o", str(folder / "answers.jsonl"), "--model", str(MODEL_PATH))
        return Command((sys.executable, *module, *files), {"VLLM_CPU_KVCACHE_SPACE": RUN_BATCH_KV_CACHE_GIB})

    def read(self, queue: Queue, folder: Path, stdout: str) -> Report:  # noqa: ARG002 - the port's signature
        """Take answers and usage from each response."""
        lines = (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        bodies = [row["response"]["body"] for row in rows]
        texts = [body["choices"][0]["message"]["content"] or "" for body in bodies]
        return Report(
            answers=tuple(Answer(row["custom_id"], text) for row, text in zip(rows, texts, strict=True)),
            prompt_tokens=sum(body["usage"]["prompt_tokens"] for body in bodies),
            output_tokens=sum(body["usage"]["completion_tokens"] for body in bodies),
        )


PEERS: tuple[Peer, ...] = (
    Bulkinfer(),
    Bulkinfer("bulkinfer-plain", "bulkinfer run, nothing set", max_concurrency=None),
    LlmChat(),
    LlmChat("llm-chat-64", "LLM.chat, parts of 64, tuned", part_size=64),
    VllmRunBatch(),
    Elsewhere("ray-data", "Ray Data LLM, tuned", "ray", "ray_data.py"),
    Elsewhere("datatrove", "datatrove, tuned", "datatrove", "datatrove_runner.py"),
)


def find_peer(name: str) -> Peer:
    """A peer by its name. Raises StopIteration for a name that is none."""
    return next(peer for peer in PEERS if peer.name == name)
