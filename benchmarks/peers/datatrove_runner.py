"""datatrove's `InferenceRunner` over the same conversations, with the vLLM server that it starts itself.

    python datatrove_runner.py ORDERS.json ANSWERS.jsonl

Runs in an environment of its own (`make bench-peers`).
"""

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
from datatrove.pipeline.inference.types import InferenceResult
from datatrove.pipeline.writers import JsonlWriter


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answers_path = Path(sys.argv[2])
    conversations = dict(zip(orders["ids"], orders["conversations"], strict=True))

    async def ask(
        document: Document, generate: Callable[[dict[str, Any]], Awaitable[InferenceResult]]
    ) -> dict[str, Any]:
        result = await generate(
            {"messages": conversations[document.id], "temperature": 0, "max_tokens": orders["max_tokens"]}
        )
        return {"text": result.text, "usage": result.usage}

    config = InferenceConfig(
        server_type="vllm",
        model_name_or_path=orders["model"],
        model_max_context=orders["max_context_tokens"],
        default_generation_params={"temperature": 0, "max_tokens": orders["max_tokens"]},
        max_concurrent_generations=orders["max_num_seqs"],
        model_kwargs={
            "max-num-seqs": orders["max_num_seqs"],
            "block-size": 32,
            "enforce-eager": True,
            "kv-cache-memory-bytes": orders["kv_cache_memory_bytes"],
        },
        metric_interval=600,
        server_log_folder=str(answers_path.parent / "server"),
        server_ready_delay_sec=1.0,
        server_start_max_retries=0,
    )
    writer = JsonlWriter(str(answers_path.parent / "datatrove"), output_filename="${rank}.jsonl", compression=None)
    documents = [Document(text="-", id=document_id) for document_id in orders["ids"]]
    executor = LocalPipelineExecutor(
        pipeline=[documents, InferenceRunner(rollout_fn=ask, config=config, output_writer=writer)],
        logging_dir=str(answers_path.parent / "logs"),
    )
    executor.run()
    with answers_path.open("w", encoding="utf-8") as file:
        # One file for each stretch of documents, under names of the writer's choice.
        paths = sorted((answers_path.parent / "datatrove").rglob("*.jsonl"))
        for line in (line for path in paths for line in path.read_text(encoding="utf-8").splitlines()):
            row = json.loads(line)
            [found] = row["metadata"]["rollout_results"]
            usage = found["usage"]
            answer = {
                "id": row["id"],
                "text": found["text"],
                "prompt_tokens": usage["prompt_tokens"],
                "output_tokens": usage["completion_tokens"],
            }
            file.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
