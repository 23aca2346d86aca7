"""Ray Data LLM: `vLLMEngineProcessorConfig` over the same conversations; one vLLM, set as the tuned script sets it.

    python ray_data.py ORDERS.json ANSWERS.jsonl

Runs in an environment of its own (`make bench-peers`). Ray gives the engine a GPU unless a placement group asks for
CPUs.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.data import DataContext
from ray.data.llm import build_processor, vLLMEngineProcessorConfig


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answers_path = Path(sys.argv[2])
    ray.init(
        num_cpus=8,  # slots, not cores: the stages around the engine take one each and are mostly idle
        include_dashboard=False,
        _temp_dir=str(answers_path.parent / "r"),
        configure_logging=True,
        log_to_driver=False,
        object_store_memory=256 << 20,
    )
    DataContext.get_current().execution_options.preserve_order = True
    config = vLLMEngineProcessorConfig(
        model_source=orders["model"],
        engine_kwargs={
            "max_model_len": orders["max_context_tokens"],
            "max_num_seqs": orders["max_num_seqs"],
            "block_size": 32,
            "enforce_eager": True,
            "kv_cache_memory_bytes": orders["kv_cache_memory_bytes"],
        },
        placement_group_config={"bundles": [{"CPU": 1}]},
        batch_size=64,
        concurrency=1,
        log_engine_metrics=False,
    )
    max_tokens = orders["max_tokens"]

    def prepare(row: dict[str, Any]) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_tokens": max_tokens}
        return {"id": row["id"], "messages": json.loads(row["messages"]), "sampling_params": sampling}

    def pick(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": row["id"],
            "text": row["generated_text"],
            "prompt_tokens": row["num_input_tokens"],
            "output_tokens": row["num_generated_tokens"],
        }

    processor = build_processor(config, preprocess=prepare, postprocess=pick)
    # As text: conversations of different lengths have no common Arrow type with a system message or without.
    rows = [
        {"id": document_id, "messages": json.dumps(conversation)}
        for document_id, conversation in zip(orders["ids"], orders["conversations"], strict=True)
    ]
    start_s = time.monotonic()
    answers = processor(ray.data.from_items(rows)).take_all()
    seconds = time.monotonic() - start_s
    answers_path.write_text("".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8")
    print(json.dumps({"pipeline_s": seconds}))
    ray.shutdown()


if __name__ == "__main__":
    main()
