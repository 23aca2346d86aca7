"""What each engine setting is worth on this CPU: `python -m benchmarks.settings [--rounds 2] [--only enforce_eager]`.

Each variant of a setting is a process of its own, all else being equal, and the variants take turns (A B A B). The
queue is `--documents` prompts of random words behind one shared beginning; prefixes are forgotten before each pass.
Prints a Markdown table: the fastest pass of each variant, its ratio to the first variant, and how long loading took.
Wall time means something on a quiet machine only; with `--one-thread` the table shows processor time, which others
disturb less.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bulkinfer.engines.environment import KEEP_FREED_MEMORY, choose_compile_cache

MODEL = Path(__file__).parents[1] / ".models" / "smollm2-135m-instruct"
NUM_SHARED_TOKENS = 150
MAX_TOKENS = 32
NUM_PASSES = 2
BASE: dict[str, Any] = {
    "block_size": 32,
    "enforce_eager": True,
    "max_model_len": 8192,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 4096,
    "kv_cache_memory_bytes": 4 << 30,
}
VARIANTS: dict[str, list[Any]] = {
    "max_num_seqs": [64, 128, 256, 512],
    "max_num_batched_tokens": [1024, 2048, 4096, 8192],
    "block_size": [32, 64, 128],
    "max_model_len": [512, 2048, 8192],
    "enforce_eager": [True, False],
}
WORDS = [
    "printer",
    "invoice",
    "order",
    "late",
    "refund",
    "cable",
    "tent",
    "noise",
    "account",
    "please",
    "help",
    "broken",
    "box",
    "email",
    "phone",
    "size",
    "again",
]


def main() -> None:
    """Measure all settings, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="how often the variants take turns")
    parser.add_argument("--only", choices=sorted(VARIANTS), help="one setting")
    parser.add_argument("--one-thread", action="store_true", help="one thread, and processor time instead of wall time")
    parser.add_argument("--documents", type=int, default=256, help="more than the sequences, where these are measured")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(json.loads(options.measure), options.documents)
        return
    column = "cpu_s" if options.one_thread else "wall_s"
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1" if options.one_thread else str(len(os.sched_getaffinity(0))),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **KEEP_FREED_MEMORY,
            **choose_compile_cache(Path(cache), {}),  # empty: the first compiled start is a cold one
        }
        print("| setting | value | fastest pass | ratio | loading, each time | cached prompt tokens |")
        print("|---|---|---|---|---|---|")
        for name in [options.only] if options.only else VARIANTS:
            found: dict[str, list[dict[str, Any]]] = {}
            for _ in range(options.rounds):
                for value in VARIANTS[name]:
                    found.setdefault(str(value), []).append(run(BASE | {name: value}, options.documents, environment))
            print_rows(name, found, column)


def run(settings: dict[str, Any], num_documents: int, environment: dict[str, str]) -> dict[str, Any]:
    """One variant in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.settings", "--documents", str(num_documents)]
    command += ["--measure", json.dumps(settings)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def print_rows(name: str, found: dict[str, list[dict[str, Any]]], column: str) -> None:
    """The rows of one setting."""
    fastest = {value: min(one for run in runs for one in run[column]) for value, runs in found.items()}
    first = next(iter(fastest.values()))
    for value, runs in found.items():
        loading = ", ".join(f"{run['load_' + column]:.1f} s" for run in runs)
        ratio = fastest[value] / first
        print(
            f"| {name} | {value} | {fastest[value]:.2f} s | {ratio:.2f} | {loading} | {runs[0]['num_cached']:,} |",
            flush=True,
        )


def measure(settings: dict[str, Any], num_documents: int) -> None:
    """Load, run the queue, print what it took as JSON."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    before = time.perf_counter(), time.process_time()
    arguments = EngineArgs(model=str(MODEL), seed=0, use_tqdm_on_load=False, **settings)
    engine = LLMEngine.from_engine_args(arguments, usage_context=UsageContext.LLM_CLASS)
    loaded = time.perf_counter(), time.process_time()
    prompts = make_prompts(engine.renderer.tokenizer, num_documents)
    params = SamplingParams(
        temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
    )
    wall_s, cpu_s, num_cached = [], [], 0
    for prompts_of_pass in [prompts[:8], *[prompts] * NUM_PASSES]:  # the first warms up
        engine.reset_prefix_cache()
        start = time.perf_counter(), time.process_time()
        waiting, num_cached = list(enumerate(prompts_of_pass)), 0
        while waiting or engine.has_unfinished_requests():
            room = 2 * settings["max_num_seqs"] - engine.get_num_unfinished_requests()
            for number, prompt in waiting[:room]:
                engine.add_request(str(number), tokens_input(prompt), params)
            waiting = waiting[max(0, room) :]
            num_cached += sum(output.num_cached_tokens or 0 for output in engine.step() if output.finished)
        wall_s.append(time.perf_counter() - start[0])
        cpu_s.append(time.process_time() - start[1])
    told = {"wall_s": wall_s[1:], "cpu_s": cpu_s[1:], "num_cached": num_cached}
    print(json.dumps(told | {"load_wall_s": loaded[0] - before[0], "load_cpu_s": loaded[1] - before[1]}))


def make_prompts(tokenizer: Any, num_documents: int) -> list[list[int]]:  # noqa: ANN401 - the tokenizer's library has no types
    """Token ids: one shared beginning, then 20 to 60 words of each prompt's own."""
    chosen = random.Random(7)
    shared = tokenizer.encode(" ".join(chosen.choices(WORDS, k=2 * NUM_SHARED_TOKENS)))[:NUM_SHARED_TOKENS]
    return [
        shared + tokenizer.encode(" ".join(chosen.choices(WORDS, k=chosen.randint(20, 60))))
        for _ in range(num_documents)
    ]


if __name__ == "__main__":
    main()
