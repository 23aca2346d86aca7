"""Run by the tests in a process of its own: the same as `side_llm_chat.py`, by our engine; and what it refuses."""

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from bulkinfer.engines.base import EngineRequest, EngineSpec
from bulkinfer.engines.vllm import VllmEngine
from bulkinfer.errors import JobError
from bulkinfer.records import Completion, Message

orders = json.loads(Path(sys.argv[1]).read_text())
conversations = [tuple(Message(**message) for message in one) for one in orders["conversations"]]
spec = EngineSpec(
    kind="vllm",
    model=orders["model"],
    revision=None,
    sampling={"temperature": 0, "max_tokens": orders["max_tokens"]},
    max_concurrency=1,
    max_context_tokens=orders["max_context_tokens"],
    arguments={"kv_cache_memory_bytes": 256 << 20},
)


def find_job_error(wrong: EngineSpec) -> str:
    """The message for a specification that is wrong before a model is loaded."""
    try:
        VllmEngine(wrong)
    except JobError as error:
        return str(error)
    return ""


job_errors = {
    "unknown argument": find_job_error(replace(spec, arguments={"blok_size": 16})),
    "owned argument": find_job_error(replace(spec, arguments={"max_model_len": 16})),
    "unknown sampling": find_job_error(replace(spec, sampling={"max_tokens": 8, "temprature": 1})),
    "wrong sampling": find_job_error(replace(spec, sampling={"max_tokens": 8, "temperature": -1})),
    "wrong structure": find_job_error(replace(spec, sampling={"max_tokens": 8, "structured_outputs": {"jsn": 1}})),
}
engine = VllmEngine(spec)


def answer(messages: tuple[Message, ...]) -> Completion:
    """Run one request to its end."""
    assert engine.add(EngineRequest(bytes(16), messages)) is None
    outcomes = engine.step()
    while not outcomes:
        outcomes = engine.step()
    (completion,) = outcomes
    assert isinstance(completion, Completion)
    return completion


def reject(content: str) -> dict[str, object]:
    """Add one request that the engine must refuse, and tell how long that took."""
    start_s = time.monotonic()
    rejection = engine.add(EngineRequest(bytes(16), (Message("user", content),)))
    seconds = time.monotonic() - start_s
    assert rejection is not None
    return {"code": rejection.code, "message": rejection.message, "tokens": rejection.prompt_tokens, "s": seconds}


answers = [answer(messages) for messages in conversations[: orders["num_answers"]]]
prompts = [engine.render(messages) for messages in conversations]

room = orders["max_context_tokens"] - orders["max_tokens"]
num_words = room - len(engine.render([Message("user", "")]))
longest = " the" * num_words
num_longest = answer((Message("user", longest),)).prompt_tokens
huge = reject("word " * 4_000_000)
one_more = reject(longest + " the")
# A template that refuses what it is given, as some models' templates refuse a system message.
engine._chat_params = replace(engine._chat_params, chat_template="{{ raise_exception(messages[0].content) }}")
found = {
    "answers": [answer.text for answer in answers],
    "completions": [{**asdict(answer), "document_hash": ""} for answer in answers],
    "prompts": prompts,
    "longest": num_longest,
    "one_more": one_more,
    "huge": huge,
    "by_template": reject("secret"),
    "job_errors": job_errors,
    "ready": dict(engine.ready().settings),
    "num_kv_cache_tokens": engine.ready().num_kv_cache_tokens,
    "num_unfinished": engine.num_unfinished(),
}
Path(sys.argv[2]).write_text(json.dumps(found))
