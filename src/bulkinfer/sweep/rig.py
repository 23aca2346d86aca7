"""The engine that a sweep measures: started, checked against what is asked of it, and ended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import orjson

from bulkinfer.engines import create_engine, find_config
from bulkinfer.engines.base import Engine, EngineSpec
from bulkinfer.engines.clock import DrivenClock
from bulkinfer.engines.environment import find_vllm
from bulkinfer.engines.machine import read_free_memory_bytes
from bulkinfer.engines.simulated_arguments import parse_simulated_arguments
from bulkinfer.errors import EngineError, JobError
from bulkinfer.job import Job
from bulkinfer.records import EngineReady
from bulkinfer.sweep.load import Load
from bulkinfer.sweep.options import SweepOptions

BATCHED_TOKENS = "max_num_batched_tokens"
_POLL_S = 0.5
_CHARS_PER_TOKEN = 5
"""Of English; on the high side, so that nothing is refused that might fit."""


class Stopped(Exception):
    """The sweep was asked to stop while the engine was loading."""


@dataclass(frozen=True, slots=True)
class Rig:
    """An engine that is ready, and what it said of itself."""

    engine: Engine
    ready: EngineReady
    is_vllm: bool = False

    @property
    def batched_tokens(self) -> int | None:
        """vLLM's max_num_batched_tokens; None: the engine has none that a job could set."""
        if not self.is_vllm:
            return None
        found = self.ready.settings.get(BATCHED_TOKENS)
        return found if isinstance(found, int) else None


def describe_rig(spec: EngineSpec, options: SweepOptions, batched_tokens: int | None) -> EngineSpec:
    """The job's engine with as many slots as the largest point wants, so that it is started once for all of them.

    Raises JobError for what does not go together.
    """
    most = max(options.concurrency)
    arguments = dict(spec.arguments)
    if batched_tokens is not None:
        if spec.kind != "vllm":
            raise JobError("--batched-tokens: only vLLM has max_num_batched_tokens, and engine.kind is simulated")
        if batched_tokens < most:
            raise JobError(f"--batched-tokens: expected at least {most}, one for each sequence, found {batched_tokens}")
        arguments[BATCHED_TOKENS] = batched_tokens
    if spec.kind == "simulated":
        simulated = parse_simulated_arguments(arguments)
        if simulated.has_virtual_clock and simulated.cost.seconds_per_output_token == 0:
            raise JobError(
                "engine.simulated.seconds_per_output_token: expected more than 0 with clock: virtual, or no time passes"
            )
    # Whole: what is reserved is for those at normal priority, who are here as well.
    return replace(spec, max_concurrency=most, arguments=arguments, has_priorities=bool(options.low), reserve=0.0)


def check_room(spec: EngineSpec, load: Load) -> None:
    """Refuse, before a model is loaded, a concurrency whose prompts alone would take more than the free memory.

    On a CPU, where the KV cache is in it; a model of an unknown shape and a GPU are left to the engine. Raises
    JobError.
    """
    install = find_vllm()
    token_bytes = read_token_bytes(spec) if spec.kind == "vllm" and install is not None and install.is_cpu else None
    if token_bytes is None:
        return
    free_bytes, tokens = read_free_memory_bytes(), _count_prompt_tokens(load)
    most = free_bytes // (token_bytes * tokens)
    if spec.expected_concurrency > most:
        raise JobError(
            f"--concurrency: expected at most {most:,}, as {free_bytes >> 20:,} MiB of memory are free and a prompt of"
            f" about {tokens:,} tokens takes {token_bytes * tokens >> 10:,} KiB of the KV cache;"
            f" found {spec.expected_concurrency:,}"
        )


def read_token_bytes(spec: EngineSpec) -> int | None:
    """What a token takes in a KV cache of two bytes a number, by the model's config.json; None: it does not say."""
    path = find_config(spec)
    try:
        config = orjson.loads(path.read_bytes()) if path is not None else {}
        heads = config["num_attention_heads"]
        head_size = config.get("head_dim") or config["hidden_size"] // heads
        return int(2 * 2 * config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * head_size)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


def _count_prompt_tokens(load: Load) -> int:
    return max(1, round(load.workload(1).mean_chars / _CHARS_PER_TOKEN))


@contextmanager
def running_engine(job: Job, spec: EngineSpec, load: Load, is_stopped: Callable[[], bool]) -> Iterator[Rig]:
    """Start the engine, and end it whatever happens. Raises EngineError and JobError as it does, and Stopped."""
    check_room(spec, load)
    limits = job.spec.engine
    engine = create_engine(
        spec,
        start_timeout_s=limits.start_timeout_s,
        silence_timeout_s=limits.silence_timeout_s,
        virtual_clock=DrivenClock(),
    )
    try:
        engine.start(load.workload(spec.expected_concurrency))
        rig = Rig(engine, wait_until_ready(engine, is_stopped), is_vllm=spec.kind == "vllm")
        _check_memory(rig, spec, load)
        yield rig
    finally:
        engine.close()


def wait_until_ready(engine: Engine, is_stopped: Callable[[], bool]) -> EngineReady:
    """The engine itself knows how long that may take."""
    while not is_stopped():
        for event in engine.poll(_POLL_S):
            if isinstance(event, EngineReady):
                return event
    raise Stopped


def _check_memory(rig: Rig, spec: EngineSpec, load: Load) -> None:
    """Refuse a concurrency that the KV cache cannot hold even with prompts of the mean length and no answers."""
    wanted, slots = spec.expected_concurrency, rig.ready.max_concurrency
    if slots is not None and slots < wanted:
        raise JobError(
            f"--concurrency: expected at most {slots:,}, which is what the engine has slots for, found {wanted:,}"
        )
    tokens = _count_prompt_tokens(load)
    most = rig.ready.num_kv_cache_tokens // tokens
    if rig.ready.num_kv_cache_tokens <= 0:
        raise EngineError("the engine has no KV cache; it cannot be measured")
    if wanted > most:
        raise JobError(
            f"--concurrency: expected at most {most:,}, as the KV cache holds {rig.ready.num_kv_cache_tokens:,} tokens"
            f" and a prompt has about {tokens:,}; found {wanted:,}. Lower it, or give the engine more memory"
            " (engine.vllm.kv_cache_memory_bytes, gpu_memory_utilization)"
        )
