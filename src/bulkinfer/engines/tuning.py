"""Which settings an engine gets where the job gives none, and why. Pure: facts in, decisions out.

On a GPU vLLM decides well by itself; on a CPU its defaults assume a server. docs/settings.md has the measurements
behind the numbers here.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.reserve import Reserve
from bulkinfer.engines.vllm_arguments import MIB, MIN_KV_CACHE_BYTES, decide_kv_cache_bytes
from bulkinfer.errors import JobError
from bulkinfer.records import NUM_LONGEST, JsonValue, Overlong, Workload

BLOCK_SIZE = 32
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 4096
AS_MUCH_AS_FITS = -1
"""As a `max_model_len`: vLLM takes the model's own, or what of it one document can have of the KV cache."""

CHARS_PER_TOKEN = 4
"""Of English text, for time."""
_GPU_MEMORY_UTILIZATION = 0.9
"""What vLLM takes of a card at the least, without being told (0.26 to 0.33)."""
_ROOM_BYTES_PER_TOKEN = 3
"""Of UTF-8, for room: three characters of English, one of Chinese or Japanese."""
_TEMPLATE_TOKENS = 32
_MAX_TOKENS_PER_CHAR = 4
"""A character has at most four bytes, and a tokenizer that works on bytes makes at most one token of each.

One whose normalizer makes texts longer could make more.
"""
_MAX_TEMPLATE_TOKENS = 4096
_CHEAP_CONTEXT_BYTES = 1024 * MIB

COMPILE_BASE_S = 10.0
COMPILE_S_PER_LAYER = 1.2
COMPILE_GAIN = 0.12
"""Share of the time that compiled code saves: 11 and 14 % were measured."""
COMPILE_MARGIN = 2.0
"""Compiling has to save so many times its cost: the estimate of the work may be off by that much."""
_SHARE_OF_MAX_TOKENS = 0.5
_OPERATIONS_PER_PARAMETER = 2
_SHARE_OF_QUICK_ESTIMATE = 0.25
"""Assumed, on the low side: vLLM's products may be faster than the one here, and a shared prefix is computed once."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to run on."""

    is_cpu: bool
    num_threads: int
    """That compute."""
    num_cores: int
    """Physical cores that the engine may use."""
    free_memory_bytes: int
    """Before the weights are loaded."""
    has_compiler: bool = False
    flops_per_s: float | None = None
    """Of a matrix product with all threads."""
    compile_cache: str | None = None
    """The folder for compiled code; None: vLLM's own."""
    is_own_cache: bool = True
    """It was chosen here, and not by the user."""
    has_compiled_code: bool = False
    """An earlier run compiled here; whether the same model is not known."""
    num_replicas: int = 1
    """Engines that share the work."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the model's configuration says; None where it does not."""

    max_context_tokens: int
    kv_bytes_per_token: int | None = None
    num_layers: int | None = None
    num_parameters: int | None = None
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """Engine arguments by vLLM's names, those of the job included, and a line on each that was chosen here."""

    values: dict[str, JsonValue] = field(default_factory=dict)
    environment: dict[str, JsonValue] = field(default_factory=dict)
    """What was set for the process before it started, in our words."""
    reasons: dict[str, str] = field(default_factory=dict)

    def choose(self, name: str, value: JsonValue, reason: str) -> None:
        """Set one, unless the job has."""
        if name not in self.values:
            self.values[name] = value
            self.reasons[name] = reason


def decide_settings(
    spec: EngineSpec, workload: Workload, machine: Machine, model: ModelFacts, known: Collection[str]
) -> Settings:
    """All that is to be set; `known` are the arguments that this vLLM has.

    Raises JobError when the context, or what of it fits into memory, has no room for a prompt and `max_tokens`.
    """
    settings = Settings(dict(spec.arguments))
    if spec.max_concurrency is not None:
        settings.values["max_num_seqs"] = Reserve(spec.reserve).max_sequences(spec.max_concurrency)
        if spec.reserve:
            settings.reasons["max_num_seqs"] = f"limits.max_concurrency {spec.max_concurrency}{_less_reserve(spec)}"
    if spec.max_context_tokens is not None:
        settings.values["max_model_len"] = spec.max_context_tokens
    if machine.is_cpu:
        _decide_for_cpu(settings, spec, workload, machine, model)
    else:
        _decide_for_gpu(settings, spec, model, known)
    return settings


def note_threads(settings: Settings, machine: Machine) -> None:
    """How many threads compute, and why."""
    settings.environment["threads"] = machine.num_threads
    settings.reasons["threads"] = (
        "one for each physical core that the engine may use"
        if machine.num_threads == machine.num_cores
        else f"as OMP_NUM_THREADS says; the engine may use {machine.num_cores} physical cores"
    )


def expect_work_s(workload: Workload, max_tokens: int, machine: Machine, model: ModelFacts) -> float | None:
    """Seconds of work ahead, rather too few than too many; None where nothing is known to tell by.

    Tokens over the speed of an earlier run, with all its engines, else over what the matrix products of each engine
    allow.
    """
    if workload.num_documents is None:
        return None
    num_tokens = workload.num_documents * (
        workload.mean_chars / CHARS_PER_TOKEN + max(1.0, _SHARE_OF_MAX_TOKENS * max_tokens)
    )
    if workload.tokens_per_s:
        return num_tokens / workload.tokens_per_s
    if machine.flops_per_s and model.num_parameters:
        operations = num_tokens * _OPERATIONS_PER_PARAMETER * model.num_parameters
        return _SHARE_OF_QUICK_ESTIMATE * operations / (machine.flops_per_s * machine.num_replicas)
    return None


def _decide_for_gpu(settings: Settings, spec: EngineSpec, model: ModelFacts, known: Collection[str]) -> None:
    if "performance_mode" in known:
        reason = "a queue wants documents per hour: twice vLLM's own sequences and tokens for this card"
        settings.choose("performance_mode", "throughput", reason)
    settings.choose(
        "max_model_len", AS_MUCH_AS_FITS, "what the model can take, as far as one document fits into the KV cache"
    )
    check_room(spec, model.max_context_tokens, "which is what the model can take")
    if spec.reserve and "kv_cache_memory_bytes" not in settings.values:
        given = settings.values.get("gpu_memory_utilization")
        utilization = float(given) if isinstance(given, int | float) else _GPU_MEMORY_UTILIZATION
        settings.values["gpu_memory_utilization"] = round(utilization * (1 - spec.reserve), 4)
        settings.reasons["gpu_memory_utilization"] = f"{utilization:g}{_less_reserve(spec)}"
    _reserve_given_cache(settings, spec)


def _less_reserve(spec: EngineSpec) -> str:
    return f", less limits.reserve {Reserve(spec.reserve)}" if spec.reserve else ""


def _reserve_given_cache(settings: Settings, spec: EngineSpec) -> None:
    """Make a KV cache that the job gives that much smaller."""
    given = settings.values.get("kv_cache_memory_bytes")
    if spec.reserve and isinstance(given, int):
        settings.values["kv_cache_memory_bytes"] = int(given * (1 - spec.reserve))
        settings.reasons["kv_cache_memory_bytes"] = f"{given:,}{_less_reserve(spec)}"


def _decide_for_cpu(
    settings: Settings, spec: EngineSpec, workload: Workload, machine: Machine, model: ModelFacts
) -> None:
    is_seeded = spec.may_have("seed")
    is_whole = is_seeded or settings.values.get("enable_chunked_prefill") is False
    note_threads(settings, machine)
    settings.choose("block_size", BLOCK_SIZE, "a shared prefix is only cached in whole blocks, and vLLM's have 128")
    block_size = _read_int(settings, "block_size")
    _reserve_given_cache(settings, spec)
    free_bytes = machine.free_memory_bytes - model.weight_bytes
    machine = replace(machine, free_memory_bytes=model.weight_bytes + int(free_bytes * (1 - spec.reserve)))
    given_bytes = settings.values.get("kv_cache_memory_bytes")
    room_bytes = max(MIN_KV_CACHE_BYTES, (machine.free_memory_bytes - model.weight_bytes) // 2)
    if isinstance(given_bytes, int):
        room_bytes = given_bytes
    room_tokens = _count_tokens(room_bytes, model.kv_bytes_per_token, block_size)

    _decide_context(settings, spec, workload, model, room_tokens, is_whole=is_whole)
    context = _read_context(settings, model)
    longest = min(context, _expect_document_tokens(workload, spec.max_tokens) or context)
    _decide_num_seqs(settings, spec, room_tokens, longest)
    num_seqs = _read_int(settings, "max_num_seqs")
    _decide_kv_cache(settings, spec, workload, machine, model, longest)

    if is_seeded:
        # After a part of a prompt vLLM sets a seeded generator back, which torch's CPU generator cannot: the engine
        # would die (0.32).
        settings.choose("enable_chunked_prefill", value=False, reason="sampling.seed: a prompt must be computed whole")
    if is_whole:
        cause = "sampling.seed" if is_seeded else "enable_chunked_prefill false"
        most = max(MAX_NUM_BATCHED_TOKENS, context, num_seqs)
        settings.choose("max_num_batched_tokens", most, f"{cause}: the longest prompt must fit into one step")
    else:
        most = max(MAX_NUM_BATCHED_TOKENS, num_seqs)
        settings.choose("max_num_batched_tokens", most, "vLLM's own for a CPU, and no less than the sequences")
    if "compilation_config" not in settings.values:
        settings.choose("enforce_eager", *_decide_eager(workload, spec.max_tokens, machine, model))
    if machine.compile_cache is not None and not settings.values.get("enforce_eager"):
        settings.environment["compile_cache"] = machine.compile_cache
        own = "for these versions, threads and this CPU; it is kept for the next run"
        settings.reasons["compile_cache"] = own if machine.is_own_cache else "as VLLM_CACHE_ROOT says"


def _decide_context(
    settings: Settings,
    spec: EngineSpec,
    workload: Workload,
    model: ModelFacts,
    room_tokens: int | None,
    *,
    is_whole: bool,
) -> None:
    own = model.max_context_tokens
    if spec.max_context_tokens is not None:
        return
    chosen, reason = own, "what the model can take"
    is_cheap = own * (model.kv_bytes_per_token or 0) <= _CHEAP_CONTEXT_BYTES
    is_of_documents = False
    is_told_by_chars = not spec.has_images and "max_tokens" not in spec.row_sampling
    if workload.is_read_to_end and (is_whole or not is_cheap) and is_told_by_chars:
        needed = workload.max_chars * _MAX_TOKENS_PER_CHAR + _MAX_TEMPLATE_TOKENS + spec.max_tokens
        is_of_documents = needed < own
        if is_of_documents:
            chosen, reason = needed, f"enough for the longest prompt there is, of {workload.max_chars:,} characters"
    if room_tokens is not None and chosen > room_tokens:
        chosen, reason = room_tokens, f"what fits into memory; the model could take {own:,}"
    step_tokens = settings.values.get("max_num_batched_tokens")
    if is_whole and isinstance(step_tokens, int) and chosen > step_tokens:
        chosen, reason = step_tokens, "what max_num_batched_tokens allows, as prompts are computed whole"
    elif room_tokens is None and not is_of_documents:
        settings.choose("max_model_len", AS_MUCH_AS_FITS, f"{reason}, as far as one document fits into the KV cache")
    settings.choose("max_model_len", chosen, reason)
    check_room(spec, chosen, f"which is {reason}")


def check_room(spec: EngineSpec, context: int, what: str) -> None:
    """Refuse a job whose answers alone fill a context that it does not give itself. Raises JobError."""
    if spec.max_context_tokens is None and spec.max_tokens >= context:
        raise JobError(
            f"sampling.max_tokens: expected less than {context:,}, {what}, as prompt and answer share it; "
            f"found {spec.max_tokens:,}",
            "sampling.max_tokens",
        )


def _decide_num_seqs(settings: Settings, spec: EngineSpec, room_tokens: int | None, longest: int) -> None:
    step_tokens = settings.values.get("max_num_batched_tokens")
    # vLLM pauses the youngest when the longest do not fit together.
    most = Reserve(spec.reserve).max_sequences(MAX_NUM_SEQS)
    fitting = most if room_tokens is None else max(1, room_tokens // longest)
    if isinstance(step_tokens, int) and 0 < step_tokens < min(fitting, most):
        settings.choose("max_num_seqs", step_tokens, "max_num_batched_tokens allows no more")
    elif fitting < most:
        told = f"so many documents of {longest:,} tokens fit into memory{_less_reserve(spec)}"
        settings.choose("max_num_seqs", fitting, told)
    else:
        told = "64 took a tenth longer where it was measured; more than 256 was not measured"
        settings.choose("max_num_seqs", most, f"{told}{_less_reserve(spec)}")


def _decide_kv_cache(
    settings: Settings, spec: EngineSpec, workload: Workload, machine: Machine, model: ModelFacts, longest: int
) -> None:
    context, num_seqs = _read_context(settings, model), _read_int(settings, "max_num_seqs")
    block_size, bytes_per_token = _read_int(settings, "block_size"), model.kv_bytes_per_token
    whole = replace(spec, max_concurrency=num_seqs, max_context_tokens=context)
    num_bytes = decide_kv_cache_bytes(
        whole, bytes_per_token, block_size, machine.free_memory_bytes - model.weight_bytes
    )
    reason = f"{num_seqs} sequences at their longest, within half of the free memory{_less_reserve(spec)}"
    if bytes_per_token is None:
        reason = "1 GiB, within half of the free memory: this model does not say what a token takes"
    elif workload.num_documents is not None:
        if spec.overlong == Overlong.SPLIT:
            workload = _split_longest(workload, context - spec.max_tokens)
        num_asked = workload.num_documents or 0
        # An estimate may be far too low; only a count may make the cache smaller.
        num_running = max(1, min(num_seqs, num_asked)) if workload.is_read_to_end else num_seqs
        # One more block: vLLM keeps one for itself. One document may be as long as the context.
        tokens = [min(context, num) for num in _expect_longest_tokens(workload, num_running, spec.max_tokens, longest)]
        blocks = sum(-(-num // block_size) for num in tokens) + -(-context // block_size) + 1
        needed = max(MIN_KV_CACHE_BYTES, blocks * block_size * bytes_per_token)
        if needed < num_bytes:
            num_bytes, reason = (
                needed,
                (f"the {num_running} longest documents, {sum(tokens):,} tokens, and one of {context:,}"),
            )
    settings.choose("kv_cache_memory_bytes", num_bytes, reason)


def _decide_eager(workload: Workload, max_tokens: int, machine: Machine, model: ModelFacts) -> tuple[bool, str]:
    if not machine.has_compiler:
        return True, "this machine has no C++ compiler"
    if model.num_layers is None:
        return True, "it is not known how long compiling this model would take"
    work_s = expect_work_s(workload, max_tokens, machine, model)
    if work_s is None:
        return True, "it is not known how long the work will take"
    compile_s = COMPILE_BASE_S + (0 if machine.has_compiled_code else COMPILE_S_PER_LAYER * model.num_layers)
    least_s = COMPILE_MARGIN * compile_s / COMPILE_GAIN
    cost = f"about {compile_s:.0f} s" + (
        " with code of an earlier run, as is assumed," if machine.has_compiled_code else ""
    )
    told = f"at least {_tell_s(work_s)} of work; compiling takes {cost} and pays above {_tell_s(least_s)}"
    return work_s <= least_s, told


def _expect_document_tokens(workload: Workload, max_tokens: int) -> int | None:
    """Tokens of all but the longest documents, their answers included; None where nothing is known."""
    if workload.num_documents is None or workload.p95_bytes == 0:
        return None
    return _expect_tokens(workload.p95_bytes, max_tokens)


def _split_longest(workload: Workload, room_tokens: int) -> Workload:
    """What is asked where documents that are too long are split: parts that fill the context, instead of them."""
    room_bytes = max(1, (room_tokens - _TEMPLATE_TOKENS) * _ROOM_BYTES_PER_TOKEN)
    longest: list[int] = []
    for num_bytes in workload.longest_bytes:
        longest += [min(num_bytes, room_bytes)] * -(-num_bytes // room_bytes)
    num_more = len(longest) - len(workload.longest_bytes)
    num_documents = None if workload.num_documents is None else workload.num_documents + num_more
    return replace(workload, num_documents=num_documents, longest_bytes=tuple(longest[:NUM_LONGEST]))


def _expect_longest_tokens(workload: Workload, num_running: int, max_tokens: int, others: int) -> list[int]:
    """Tokens of so many documents, the longest that are known, as these run first; `others` where there are fewer."""
    tokens = [_expect_tokens(num_bytes, max_tokens) for num_bytes in workload.longest_bytes[:num_running]]
    if len(workload.longest_bytes) >= NUM_LONGEST:
        others = tokens[-1]  # no other is longer
    return tokens + [others] * (num_running - len(tokens))


def _expect_tokens(num_bytes: int, max_tokens: int) -> int:
    return -(-num_bytes // _ROOM_BYTES_PER_TOKEN) + _TEMPLATE_TOKENS + max_tokens


def _count_tokens(num_bytes: int, bytes_per_token: int | None, block_size: int) -> int | None:
    """What a KV cache holds, less the block that vLLM keeps for itself."""
    if bytes_per_token is None:
        return None
    return max(1, num_bytes // (bytes_per_token * block_size) - 1) * block_size


def _read_context(settings: Settings, model: ModelFacts) -> int:
    context = _read_int(settings, "max_model_len")
    return model.max_context_tokens if context == AS_MUCH_AS_FITS else context


def _read_int(settings: Settings, name: str) -> int:
    value = settings.values[name]
    if not isinstance(value, int):
        raise JobError(f"engine.vllm.{name}: expected a whole number", f"engine.vllm.{name}")
    return value


def _tell_s(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
