"""`LLM.chat` as a careful user would write it: both cores, in process, eager, 256 sequences, block size 32.

    python -m benchmarks.peers.llm_chat ORDERS.json ANSWERS.jsonl [--part-size N]

The whole list in one call, or in parts of N. All answers are written at the end, as the call returns them.
"""

import argparse
import json
import time
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("orders", type=Path)
parser.add_argument("answers", type=Path)
parser.add_argument("--part-size", type=int, default=0, help="0: the whole list in one call")
args = parser.parse_args()
orders = json.loads(args.orders.read_text(encoding="utf-8"))

start_s = time.monotonic()
from vllm import LLM, SamplingParams  # noqa: E402 - its import is part of the start

llm = LLM(
    model=orders["model"],
    max_model_len=orders["max_context_tokens"],
    max_num_seqs=orders["max_num_seqs"],
    block_size=32,
    enforce_eager=True,
    kv_cache_memory_bytes=orders["kv_cache_memory_bytes"],
    seed=0,
)
params = SamplingParams(temperature=0, max_tokens=orders["max_tokens"])
conversations = orders["conversations"]
part_size = args.part_size or len(conversations)

ready_s = time.monotonic()
outputs = []
for start in range(0, len(conversations), part_size):
    outputs += llm.chat(conversations[start : start + part_size], params, use_tqdm=False)
end_s = time.monotonic()

with args.answers.open("w", encoding="utf-8") as file:
    for document_id, output in zip(orders["ids"], outputs, strict=True):
        answer = {
            "id": document_id,
            "text": output.outputs[0].text,
            "prompt_tokens": len(output.prompt_token_ids),
            "cached_tokens": output.num_cached_tokens or 0,
            "output_tokens": len(output.outputs[0].token_ids),
        }
        file.write(json.dumps(answer) + "\n")
args.answers.with_suffix(".times.json").write_text(
    json.dumps({"engine_start_s": ready_s - start_s, "generate_s": end_s - ready_s}), encoding="utf-8"
)
