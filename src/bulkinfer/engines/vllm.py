"""vLLM as a `StepEngine`. The only importer of vLLM, and itself imported only in the engine's own process.

Works with vLLM 0.26 to 0.33. Prompts are rendered by vLLM as `LLM.chat` renders them, and requests go through our own
loop: `LLM.generate` gives results only at the end, and one invalid prompt ends them all.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jinja2
import orjson
import torch
from vllm import SamplingParams, __version__, exceptions
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.renderers import ChatParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.usage.usage_lib import UsageContext
from vllm.utils.mistral import is_mistral_tokenizer
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.loggers import StatLoggerBase

from bulkinfer.engines.base import EngineRequest, EngineSpec, Prepared, describe_limit, reject_too_long
from bulkinfer.engines.environment import choose_cores, find_vllm, look_at_machine
from bulkinfer.engines.frames import Start, decode_parent_frame
from bulkinfer.engines.tuning import Settings, check_room, decide_settings
from bulkinfer.engines.vllm_arguments import check_sampling, check_vllm_arguments
from bulkinfer.engines.vllm_reading import describe_fault, find_max_prompt_bytes, read_durations, read_model_facts
from bulkinfer.errors import JobError
from bulkinfer.records import (
    UNKNOWN_WORKLOAD,
    Completion,
    EngineReady,
    EngineStats,
    FailureCode,
    FinishReason,
    JsonValue,
    Message,
    Rejection,
    Workload,
)

_WORKING_STEP_S = 0.005
_WATCH_EVERY_S = 1.0


def _collect_request_faults() -> tuple[type[Exception], ...]:
    """What rendering or adding raises for a fault of the request. Older versions have fewer classes."""
    names = ("VLLMClientError", "VLLMValidationError", "VLLMUnprocessableEntityError")
    known = (getattr(exceptions, name, None) for name in names)
    return (ValueError, TypeError, jinja2.TemplateError, *(fault for fault in known if fault is not None))


_REQUEST_FAULTS = _collect_request_faults()


class VllmEngine:
    """A `StepEngine` over vLLM's `LLMEngine`.

    What the job leaves open is chosen by the workload. Raises JobError for engine arguments or sampling parameters
    that vLLM does not know, and whatever vLLM raises when it cannot load the model.
    """

    def __init__(self, spec: EngineSpec, workload: Workload = UNKNOWN_WORKLOAD) -> None:
        self._sampling_params = _create_sampling_params(spec)
        self._recorder = _StatsRecorder()
        self._chosen = choose_settings(spec, workload)
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(**self._chosen.values),
            # Any other context has smaller defaults: it assumes a server.
            usage_context=UsageContext.LLM_CLASS,
            stat_loggers=[lambda *_: self._recorder],
        )
        config = self._engine.vllm_config
        max_model_len = config.model_config.max_model_len
        check_room(spec, max_model_len, "which is what fits into its KV cache")
        self._spec = replace(
            spec,
            max_concurrency=config.scheduler_config.max_num_seqs,
            max_context_tokens=max_model_len,
            context_reason=self._chosen.reasons.get("max_model_len", ""),
        )
        self._renderer = self._engine.renderer
        self._chat_params = self._create_chat_params()
        # Without a limit: vLLM would stop at its own and not say how long the prompt is.
        self._tokenize_params = replace(
            self._renderer.default_chat_tok_params.with_kwargs(add_special_tokens=False), max_total_tokens=None
        )
        self._max_prompt_bytes = find_max_prompt_bytes(self._renderer.tokenizer, max_model_len)
        self._added_at_s: dict[str, float] = {}
        self._num_full_steps = 0
        self._num_fed_steps = 0
        if _has_engine_process():
            threading.Thread(target=_watch_engine_process, args=(self._engine.engine_core,), daemon=True).start()

    def render(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of a prompt: those that `LLM.chat` gives the model. Raises what vLLM raises if it refuses."""
        token_ids: list[int] = self._render(messages)["prompt_token_ids"]
        return list(token_ids)

    def add(self, request: EngineRequest) -> Rejection | None:
        """Render, measure and add one request, or say why not."""
        prepared = self.prepare(request)
        return prepared if isinstance(prepared, Rejection) else self.admit(prepared)

    def prepare(self, request: EngineRequest) -> Prepared | Rejection:
        """Render and measure one request, or say why not.

        May run in another thread than the steps: vLLM's renderer encodes with copies of the tokenizer, and the one that
        turns tokens into text is not touched.
        """
        rejection = self._reject_by_size(request)
        if rejection is not None:
            return rejection
        try:
            prompt = self._render(request.messages)
        except _REQUEST_FAULTS as error:
            return Rejection(request.document_hash, FailureCode.ENGINE_REJECTED, describe_fault(error))
        rejection = reject_too_long(self._spec, request.document_hash, len(prompt["prompt_token_ids"]))
        return Prepared(request.document_hash, prompt) if rejection is None else rejection

    def admit(self, prepared: Prepared) -> Rejection | None:
        """Give one rendered request to vLLM, or say why it refuses it."""
        request_id = prepared.document_hash.hex()
        try:
            self._engine.add_request(request_id, prepared.prompt, self._sampling_params)
        except _REQUEST_FAULTS as error:
            return Rejection(prepared.document_hash, FailureCode.ENGINE_REJECTED, describe_fault(error))
        self._added_at_s[request_id] = time.monotonic()
        self._num_fed_steps = self._recorder.num_steps
        return None

    def step(self) -> list[Completion | Rejection]:
        """One step of vLLM's scheduler. Raises whatever vLLM raises when it is broken."""
        num_recorded = self._recorder.num_steps
        num_requests = len(self._added_at_s)
        start_s = time.monotonic()
        outputs = self._engine.step()
        if self._recorder.num_steps == num_recorded and time.monotonic() - start_s > _WORKING_STEP_S:
            # A part of a long prompt was computed: no token came of it, so vLLM up to 0.32 records no step.
            self._recorder.num_steps += 1
        # What vLLM tells after the step lacks the sequences that finished in it.
        if num_requests >= self._spec.expected_concurrency or self._recorder.num_waiting > 0:
            self._num_full_steps += self._recorder.num_steps - num_recorded
            self._num_fed_steps = self._recorder.num_steps
        return [self._finish(output) for output in outputs if output.finished]

    def abort(self, document_hashes: Sequence[bytes]) -> None:
        """Drop requests."""
        request_ids = [document_hash.hex() for document_hash in document_hashes]
        known_ids = [request_id for request_id in request_ids if self._added_at_s.pop(request_id, None) is not None]
        self._engine.abort_request(known_ids)

    def num_unfinished(self) -> int:
        """Requests added and not yet returned."""
        return len(self._added_at_s)

    def stats(self) -> EngineStats:
        """What vLLM recorded in its last step. `memory_bytes` is 0: whoever owns the process knows it."""
        is_idle = not self._added_at_s
        return EngineStats(
            num_active=0 if is_idle else self._recorder.num_active,
            num_waiting=0 if is_idle else self._recorder.num_waiting,
            kv_cache_usage=0.0 if is_idle else self._recorder.kv_cache_usage,
            num_preemptions=self._recorder.num_preemptions,
            num_steps=self._recorder.num_steps,
            num_output_tokens=self._recorder.num_output_tokens,
            memory_bytes=0,
            num_prompt_tokens=self._recorder.num_prompt_tokens,
            num_full_steps=self._num_full_steps,
            num_fed_steps=self._num_fed_steps,
        )

    def ready(self) -> EngineReady:
        """The settings that vLLM ended up with, by its own names."""
        config = self._engine.vllm_config
        cache = config.cache_config
        settings: dict[str, JsonValue] = {name: self._chosen.values.get(name) for name in self._chosen.reasons}
        settings |= self._chosen.environment
        settings |= {
            "kind": "vllm",
            "vllm_version": str(__version__),
            "device": str(current_platform.device_type),
            "dtype": str(config.model_config.dtype),
            "max_model_len": config.model_config.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "block_size": cache.block_size,
            "kv_cache_memory_bytes": cache.kv_cache_memory_bytes,
            "enable_prefix_caching": bool(cache.enable_prefix_caching),
            "enforce_eager": bool(config.model_config.enforce_eager),
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
            "reasons": self._chosen.reasons,
        }
        num_tokens = (cache.num_gpu_blocks or 0) * cache.block_size
        return EngineReady(0.0, num_tokens, settings, config.scheduler_config.max_num_seqs)

    # Any, here and below: vLLM's objects, whose types differ between its versions.
    def _render(self, messages: Sequence[Message]) -> Any:  # noqa: ANN401
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        _, (prompt,) = self._renderer.render_chat([conversation], self._chat_params, self._tokenize_params)
        return prompt

    def _create_chat_params(self) -> Any:  # noqa: ANN401
        model_config = self._engine.model_config
        tokenize = is_mistral_tokenizer(self._renderer.tokenizer) or model_config.enable_prompt_embeds
        return ChatParams(
            chat_template=self._spec.chat_template,
            chat_template_kwargs={
                "add_generation_prompt": True,
                "continue_final_message": False,
                "tools": None,
                "tokenize": tokenize,
            },
        )

    def _reject_by_size(self, request: EngineRequest) -> Rejection | None:
        """Refuse a prompt that cannot fit, whatever its tokens: tokenizing 20 MB would stall the sequences that run."""
        limit = self._max_prompt_bytes
        if limit is None or sum(len(message.content) for message in request.messages) * 4 <= limit:
            return None
        # Chat templates may trim a message.
        num_bytes = sum(len(message.content.strip().encode(errors="replace")) for message in request.messages)
        if num_bytes <= limit:
            return None
        text = f"prompt of {num_bytes} bytes exceeds {describe_limit(self._spec)}"
        return Rejection(request.document_hash, FailureCode.PROMPT_TOO_LONG, f"{text}, whatever its tokens are")

    def _finish(self, output: Any) -> Completion | Rejection:  # noqa: ANN401
        document_hash = bytes.fromhex(output.request_id)
        added_at_s = self._added_at_s.pop(output.request_id)
        answer = output.outputs[0]
        num_prompt_tokens = len(output.prompt_token_ids)
        if answer.finish_reason in {None, FinishReason.ERROR, FinishReason.ABORT}:
            message = f"vLLM ended the request with finish reason {answer.finish_reason}"
            return Rejection(document_hash, FailureCode.ENGINE_ERROR, message, num_prompt_tokens)
        queue_s, first_token_s, total_s = read_durations(output.metrics, time.monotonic() - added_at_s)
        return Completion(
            document_hash=document_hash,
            text=answer.text,
            finish_reason=answer.finish_reason,
            prompt_tokens=num_prompt_tokens,
            cached_tokens=output.num_cached_tokens or 0,
            output_tokens=len(answer.token_ids),
            queue_s=queue_s,
            first_token_s=first_token_s,
            total_s=total_s,
        )


class _StatsRecorder(StatLoggerBase):  # type: ignore[misc]  # vLLM is untyped here
    """Keeps what vLLM tells after each step."""

    def __init__(self) -> None:
        self.num_active = 0
        self.num_waiting = 0
        self.kv_cache_usage = 0.0
        self.num_preemptions = 0
        self.num_steps = 0
        self.num_output_tokens = 0
        self.num_prompt_tokens = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Take the numbers of one step; either argument may be None."""
        self.num_steps += 1
        if scheduler_stats is not None:
            self.num_active = scheduler_stats.num_running_reqs
            self.num_waiting = scheduler_stats.num_waiting_reqs
            self.kv_cache_usage = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            self.num_preemptions += iteration_stats.num_preempted_reqs
            self.num_output_tokens += iteration_stats.num_generation_tokens
            self.num_prompt_tokens += iteration_stats.num_prompt_tokens

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def _create_sampling_params(spec: EngineSpec) -> Any:  # noqa: ANN401
    sampling: dict[str, Any] = dict(spec.sampling)
    check_sampling(sampling, SamplingParams.__struct_fields__)
    structured = sampling.pop("structured_outputs", None)
    try:
        if structured is not None:
            sampling["structured_outputs"] = StructuredOutputsParams(**structured)
        # FINAL_ONLY: without it each step would build an output for each sequence.
        return SamplingParams(**(sampling | {"output_kind": RequestOutputKind.FINAL_ONLY}))
    except _REQUEST_FAULTS as error:
        raise JobError(f"sampling: vLLM refuses it: {error}") from error


def choose_settings(spec: EngineSpec, workload: Workload) -> Settings:
    """The engine's arguments. Reads the model's configuration, not its weights. Raises JobError."""
    check_vllm_arguments(spec.arguments, EngineArgs.__dataclass_fields__)
    settings = _decide(spec, workload)
    settings.values.update(
        model=spec.model,
        revision=spec.revision,
        trust_remote_code=spec.trust_remote_code,
        disable_log_stats=False,
    )
    settings.values.setdefault("seed", 0)
    settings.values.setdefault("use_tqdm_on_load", False)
    return settings


def _decide(spec: EngineSpec, workload: Workload) -> Settings:
    own = {"model": spec.model, "revision": spec.revision, "trust_remote_code": spec.trust_remote_code}
    given: dict[str, Any] = dict(spec.arguments) | own
    config = EngineArgs(**given, max_model_len=spec.max_context_tokens).create_model_config()
    machine = look_at_machine(spec, is_cpu=bool(current_platform.is_cpu()), num_threads=torch.get_num_threads())
    return decide_settings(
        spec, workload, machine, read_model_facts(config, spec.model, spec.revision), EngineArgs.__dataclass_fields__
    )


def _has_engine_process() -> bool:
    return os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") == "1"


def _watch_engine_process(engine_core: Any) -> None:  # noqa: ANN401
    """Wake `step` when vLLM's own process is killed: it would wait for its output for ever (0.26 to 0.33)."""
    while not engine_core.resources.engine_dead:
        time.sleep(_WATCH_EVERY_S)
    engine_core.outputs_queue.put_nowait(EngineDeadError())


def _tell_doctor() -> None:
    """`bulkinfer doctor` runs this in a process of its own: the import is the test.

    Prints the versions, the device and, for a Start frame on the standard input, the settings as JSON.
    """
    device = "CPU" if current_platform.is_cpu() else current_platform.get_device_name()
    print(f"vLLM {__version__}, torch {torch.__version__}\n{device}", flush=True)  # noqa: T201
    ours = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # vLLM logs while it reads a configuration
    body = sys.stdin.buffer.read()
    if body:
        start = decode_parent_frame(body)
        assert isinstance(start, Start)
        if cores := choose_cores(start.spec, find_vllm()):
            os.sched_setaffinity(0, cores)
        try:
            settings = choose_settings(start.spec, start.workload)
            told: dict[str, JsonValue] = {"values": settings.values | settings.environment, "reasons": settings.reasons}
        except JobError as error:
            told = {"error": str(error)}
        os.write(ours, orjson.dumps(told) + b"\n")


if __name__ == "__main__":
    _tell_doctor()
