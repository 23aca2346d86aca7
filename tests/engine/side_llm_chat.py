"""Run by the tests in a process of its own: what `LLM.chat` gives the model, and what the model answers.

Both sides answer the first conversations one at a time, before anything else: the prefix cache is in the same state.
"""

import json
import sys
from pathlib import Path

from vllm import LLM, SamplingParams

orders = json.loads(Path(sys.argv[1]).read_text())
llm = LLM(
    model=orders["model"],
    max_model_len=orders["max_context_tokens"],
    max_num_seqs=1,
    block_size=32,
    enforce_eager=True,
    kv_cache_memory_bytes=256 << 20,
    seed=0,
)
params = SamplingParams(temperature=0, max_tokens=orders["max_tokens"])
answers = []
for conversation in orders["conversations"][: orders["num_answers"]]:
    (output,) = llm.chat(conversation, params, use_tqdm=False)
    answers.append(
        {
            "text": output.outputs[0].text,
            "token_ids": list(output.outputs[0].token_ids),
            "prompt": list(output.prompt_token_ids or ()),
        }
    )

prompts: list[list[int]] = []


def record_request(request_id: str, prompt: dict[str, list[int]], *_: object, **__: object) -> str:
    """Stand at the engine's door, so that `LLM.chat` renders all conversations and nothing has to compute them."""
    prompts.append(list(prompt["prompt_token_ids"]))
    return request_id


llm.llm_engine.add_request = record_request
llm.chat(orders["conversations"], params, use_tqdm=False)
Path(sys.argv[2]).write_text(json.dumps({"answers": answers, "prompts": prompts}))
