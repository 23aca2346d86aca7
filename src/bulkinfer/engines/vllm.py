"""vLLM as a `StepEngine`. The only importer of vLLM, and itself imported only in the engine's own process.

Works with vLLM 0.26 to 0.33. Prompts are rendered by vLLM as `LLM.chat` renders them, and requests go through our own
loop: `LLM.generate` gives results only at the end, and one invalid prompt ends them all.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import torch
from vllm import PoolingParams, SamplingParams, __version__, exceptions
from vllm.config import StructuredOutputsConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.reasoning import ReasoningParserManager
from vllm.renderers import ChatParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.third_party import pynvml
from vllm.usage.usage_lib import UsageContext
from vllm.utils.mistral import is_mistral_tokenizer
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.loggers import StatLoggerBase

from bulkinfer.engines.adapters import choose_adapter_settings
from bulkinfer.engines.base import EngineRequest, EngineSpec, Prepared, find_room, reject_too_long
from bulkinfer.engines.environment import choose_cores, find_vllm, look_at_machine
from bulkinfer.engines.frames import Start, decode_parent_frame
from bulkinfer.engines.model_files import check_purpose
from bulkinfer.engines.reasoning import Reasoning
from bulkinfer.engines.tuning import Settings, check_room, decide_settings
from bulkinfer.engines.tuning_pooling import decide_pooling_settings
from bulkinfer.engines.vllm_arguments import (
    CHOSEN_FORM,
    FORM_ARGUMENT,
    check_sampling,
    check_vllm_arguments,
    complete_arguments,
)
from bulkinfer.engines.vllm_choices import create_scorer
from bulkinfer.engines.vllm_counts import StepCounts, count_context_tokens, read_live_counts
from bulkinfer.engines.vllm_faults import collect_request_faults, describe_fault
from bulkinfer.engines.vllm_reading import (
    LOOK_FOR_SPINNING_EVERY,
    GpuMemory,
    describe_engine_ready,
    end_spinning,
    find_max_prompt_bytes,
    read_model_facts,
    read_outcome,
    read_pooling_facts,
    reject_by_size,
    write_message,
)
from bulkinfer.engines.vllm_sampling import SamplingChoices, build_params
from bulkinfer.engines.vllm_watch import watch_engine_process
from bulkinfer.errors import JobError
from bulkinfer.records import (
    FORM,
    UNKNOWN_WORKLOAD,
    Completion,
    EngineReady,
    EngineStats,
    FailureCode,
    JsonValue,
    Message,
    Rejection,
    Workload,
)

_WORKING_STEP_S = 0.005
REQUEST_FAULTS = collect_request_faults(exceptions)
_LOADING_FAULTS: tuple[type[Exception], ...] = (*REQUEST_FAULTS, RuntimeError, OSError, LookupError)
POOLING_PARAMS: Any = PoolingParams
_PARAMS = partial(SamplingParams, output_kind=RequestOutputKind.FINAL_ONLY)  # else each step would build outputs
_BUILD = partial(build_params, _PARAMS, StructuredOutputsParams)


class VllmEngine:
    """A `StepEngine` over vLLM's `LLMEngine`.

    What the job leaves open is chosen by the workload. Raises JobError for engine arguments or sampling parameters
    that vLLM does not know, and whatever vLLM raises when it cannot load the model.
    """

    def __init__(self, spec: EngineSpec, workload: Workload = UNKNOWN_WORKLOAD) -> None:
        self._sampling = _create_sampling(spec)
        self._counts = _Recorder()
        self._chosen = choose_settings(spec, workload)
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(**complete_arguments(self._chosen.values, StructuredOutputsConfig)),
            # Any other context has smaller defaults: it assumes a server.
            usage_context=UsageContext.LLM_CLASS,
            stat_loggers=[lambda *_: self._counts],
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
        self._num_slots: int = config.scheduler_config.max_num_seqs
        self._renderer = self._engine.renderer
        self._chat_params = self._create_chat_params()
        # Without a limit: vLLM would stop at its own and not say how long the prompt is.
        self._tokenize_params = replace(
            self._renderer.default_chat_tok_params.with_kwargs(add_special_tokens=False), max_total_tokens=None
        )
        self._plain_tokenize_params = replace(self._renderer.default_cmpl_tok_params, max_total_tokens=None)
        self._reasoning: Reasoning | None = None
        if spec.reasoning is not None:
            self._reasoning = self._create_reasoning(spec.reasoning, self._renderer.tokenizer)
            if self._reasoning.needs_special_tokens:
                self._sampling = _create_sampling(spec, skip_special_tokens=False)
        self._max_prompt_bytes = find_max_prompt_bytes(self._renderer.tokenizer, max_model_len)
        self._adapters = {
            name: LoRARequest(name, number, folder) for number, (name, folder) in enumerate(spec.adapters.items(), 1)
        }
        self._load_adapters()
        self._added_at_s: dict[str, float] = {}
        self._held: set[str] | None = None if spec.form else set()
        self._scorer = create_scorer(self._spec, self._engine, _PARAMS, self._render)
        num_gpus = config.parallel_config.world_size if current_platform.is_cuda() else 0
        self._gpu_memory = GpuMemory(pynvml, current_platform, num_gpus)
        watch_engine_process(self._engine.engine_core, EngineDeadError)

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
        rejection = reject_by_size(self._spec, request, self._max_prompt_bytes)
        if rejection is not None:
            return rejection
        try:
            prompt = self._render(request.messages)
        except REQUEST_FAULTS as error:
            return Rejection(request.document_hash, FailureCode.ENGINE_REJECTED, describe_fault(error))
        rejection = reject_too_long(self._spec, request, len(prompt["prompt_token_ids"]))
        return rejection or Prepared(request.document_hash, prompt, request.sampling, request.priority, request.adapter)

    def count_tokens(self, request: EngineRequest) -> int | None:
        """As vLLM's renderer has them; None for a prompt that it refuses."""
        try:
            return len(self._render(request.messages)["prompt_token_ids"])
        except REQUEST_FAULTS:
            return None

    def find_room(self, request: EngineRequest) -> int:
        """What the answer leaves of vLLM's context."""
        return find_room(self._spec, request)

    def admit(self, prepared: Prepared) -> Rejection | None:
        """Give one rendered request to vLLM, or say why it refuses it."""
        request_id = prepared.document_hash.hex()
        try:
            adapter = None if prepared.adapter is None else self._adapters[prepared.adapter]
            if self._scorer is not None:
                self._scorer.add(request_id, prepared.prompt, lora_request=adapter, priority=prepared.priority)
            else:
                params = self._sampling.find(prepared.sampling)
                self._engine.add_request(
                    request_id, prepared.prompt, params, lora_request=adapter, priority=prepared.priority
                )
        except REQUEST_FAULTS as error:
            return Rejection(prepared.document_hash, FailureCode.ENGINE_REJECTED, describe_fault(error))
        if self._held is not None and FORM in prepared.sampling:
            self._held.add(request_id)
        self._added_at_s[request_id] = time.monotonic()
        self._counts.num_fed_steps = self._counts.num_steps
        return None

    def step(self) -> list[Completion | Rejection]:
        """One step of vLLM's scheduler. Raises whatever vLLM raises when it is broken."""
        num_recorded = self._counts.num_steps
        num_requests = len(self._added_at_s)
        num_context_tokens = count_context_tokens(self._engine)
        start_s = time.monotonic()
        outputs = self._engine.step()
        now_s = time.monotonic()
        if self._counts.num_steps == num_recorded and now_s - start_s > _WORKING_STEP_S:
            # A part of a long prompt was computed: no token came of it, so vLLM up to 0.32 records no step.
            self._counts.num_steps += 1
        finished = [output for output in outputs if output.finished]
        is_watched = self._spec.holds_text and self._counts.num_steps % LOOK_FOR_SPINNING_EVERY == 0
        spun = end_spinning(self._engine, self._added_at_s, self._held) if is_watched else []
        self._counts.note_step(
            num_recorded,
            len(finished),
            took_s=now_s - start_s,
            num_context_tokens=num_context_tokens,
            has_all_slots_wanted=num_requests >= self._num_slots,
        )
        return self._read_finished(finished, now_s) + spun

    def abort(self, document_hashes: Sequence[bytes]) -> tuple[bytes, ...]:
        """Drop requests; returns those that were there."""
        known = tuple(one for one in document_hashes if self._added_at_s.pop(one.hex(), None) is not None)
        ids = [document_hash.hex() for document_hash in known]
        self._engine.abort_request(ids if self._scorer is None else self._scorer.drop(ids))
        self._counts.num_aborted += len(known)
        return known

    def num_unfinished(self) -> int:
        """Requests added and not yet returned."""
        return len(self._added_at_s)

    def num_steps(self) -> int:
        """Steps since its start."""
        return self._counts.num_steps

    def stats(self) -> EngineStats:
        """What vLLM's scheduler says now, where it runs in this process; else what it said after its last step.

        `memory_bytes` is 0: whoever owns the process knows it.
        """
        return self._counts.read(read_live_counts(self._engine), is_idle=not self._added_at_s)

    def gpu_memory_bytes(self) -> int:
        """In use on the GPUs of this engine, as the driver says it."""
        return self._gpu_memory.read_bytes()

    def ready(self) -> EngineReady:
        """The settings that vLLM ended up with, by its own names."""
        config, device = self._engine.vllm_config, str(current_platform.device_type)
        return describe_engine_ready(config, self._chosen, str(__version__), device, self._scorer)

    # Any, here and below: vLLM's objects, whose types differ between its versions.
    def _read_finished(self, outputs: Sequence[Any], now_s: float) -> list[Completion | Rejection]:
        """What became of documents; of those whose choices are scored, with the last of their requests."""
        if self._scorer is not None:
            done = [document_id for document_id in map(self._scorer.take, outputs) if document_id is not None]
            return [self._scorer.finish(one, now_s - self._added_at_s.pop(one)) for one in done]
        return [
            read_outcome(output, now_s - self._added_at_s.pop(output.request_id), self._reasoning) for output in outputs
        ]

    def _render(self, messages: Sequence[Message]) -> Any:  # noqa: ANN401
        if self._spec.is_plain:
            text = {"prompt": messages[-1].content}
            (prompt,) = self._renderer.render_cmpl([text], self._plain_tokenize_params)
            return prompt
        conversation = [write_message(message) for message in messages]
        _, (prompt,) = self._renderer.render_chat([conversation], self._chat_params, self._tokenize_params)
        return prompt

    def _load_adapters(self) -> None:
        """Load all now, so that one that vLLM refuses is told before the first document. Raises JobError."""
        for name, adapter in self._adapters.items():
            try:
                self._engine.add_lora(adapter)
            except _LOADING_FAULTS as error:
                raise JobError(f"model.adapters.{name}: vLLM refuses it: {error}") from error

    def _create_reasoning(self, name: str, tokenizer: Any) -> Reasoning:  # noqa: ANN401
        """Raises JobError for a parser that vLLM lacks, or that is none for this model."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: PLC0415 - a second

        try:
            create = ReasoningParserManager.get_reasoning_parser(name)
            parser = create(tokenizer, model_config=self._engine.model_config)
            request = parser.adjust_request(ChatCompletionRequest(messages=[], model=self._spec.model))
        except _LOADING_FAULTS as error:
            raise JobError(f"output.reasoning: vLLM's parser {name} is none for this model: {error}") from error
        has_marks = not getattr(request, "skip_special_tokens", True)
        return Reasoning(name, lambda text: parser.extract_reasoning(text, request), has_marks)

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


class _Recorder(StepCounts, StatLoggerBase):  # type: ignore[misc]  # vLLM is untyped here
    """Is given what vLLM tells after each step."""


def _create_sampling(spec: EngineSpec, **more: JsonValue) -> SamplingChoices:
    """Those of the job, and `more`. Raises JobError."""
    check_sampling(spec.sampling, SamplingParams.__struct_fields__)
    try:
        return SamplingChoices({**spec.sampling, **more}, _BUILD)
    except REQUEST_FAULTS as error:
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
    if spec.has_priorities:
        settings.choose("scheduling_policy", "priority", "some requests go before others")
    if spec.adapters:
        choose_adapter_settings(settings, spec.adapters)
    if spec.reasoning is not None:
        # A structured answer begins behind the reasoning.
        settings.values.setdefault("reasoning_parser", spec.reasoning)
    if spec.holds_text:
        settings.choose(FORM_ARGUMENT, *CHOSEN_FORM)
    settings.values.setdefault("seed", 0)
    settings.values.setdefault("use_tqdm_on_load", False)
    return settings


def _decide(spec: EngineSpec, workload: Workload) -> Settings:
    own = {"model": spec.model, "revision": spec.revision, "trust_remote_code": spec.trust_remote_code}
    check_purpose(spec)  # of a hub id, the files may have come only now
    given: dict[str, Any] = complete_arguments(spec.arguments, StructuredOutputsConfig) | own
    if spec.is_pooling:
        given.setdefault("runner", "pooling")
    # A limit above what a model can take is told in our words: of embedding models it is low.
    limit = None if spec.is_pooling else spec.max_context_tokens
    config = EngineArgs(**given, max_model_len=limit).create_model_config()
    machine = look_at_machine(spec, is_cpu=bool(current_platform.is_cpu()), num_threads=torch.get_num_threads())
    facts, known = read_model_facts(config, spec.model, spec.revision), EngineArgs.__dataclass_fields__
    if spec.is_pooling:
        return decide_pooling_settings(spec, workload, machine, facts, known, read_pooling_facts(config))
    return decide_settings(spec, workload, machine, facts, known)


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
