"""What the scripts read and write: one JSON file of conversations, one line of JSON for each answer."""

import json
from pathlib import Path

from benchmarks.peers.base import MAX_NUM_SEQS, Answer, Report
from benchmarks.queues import Queue


def write_orders(queue: Queue, folder: Path, model: Path) -> tuple[str, str]:
    """Write what is to be answered; returns the arguments of a script: where to read and where to write."""
    orders = {
        "model": str(model),
        "ids": [entry.document_id for entry in queue.entries],
        "conversations": queue.conversations(),
        "max_tokens": queue.max_tokens,
        "max_context_tokens": queue.max_context_tokens,
        "max_num_seqs": MAX_NUM_SEQS,
        "kv_cache_memory_bytes": queue.kv_cache_bytes,
    }
    path = folder / "orders.json"
    path.write_text(json.dumps(orders), encoding="utf-8")
    return str(path), str(folder / "answers.jsonl")


def read_answers(folder: Path) -> Report:
    """Read what a script wrote; tokens from the cache where it tells them."""
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    is_cache_told = all("cached_tokens" in row for row in rows)
    return Report(
        answers=tuple(Answer(row["id"], row["text"]) for row in rows),
        prompt_tokens=sum(row["prompt_tokens"] for row in rows),
        cached_tokens=sum(row["cached_tokens"] for row in rows) if is_cache_told else None,
        output_tokens=sum(row["output_tokens"] for row in rows),
    )
