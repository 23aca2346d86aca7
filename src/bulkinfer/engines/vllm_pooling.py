"""vLLM as a `StepEngine` that embeds texts or scores pairs: pooling models, which compute prompts and draw nothing.

A text goes to the model as its tokenizer makes it, special tokens included, without a chat template. A pair is one
prompt of a cross-encoder (a classification head with one label), or two prompts of an embedding model, whose vectors'
cosine is the score. Like `vllm`, whose importer it uses, imported only in the engine's own process.
"""

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from bulkinfer.engines.base import EngineRequest, EngineSpec, Prepared, reject_too_long
from bulkinfer.engines.vllm import POOLING_PARAMS, REQUEST_FAULTS, VllmEngine
from bulkinfer.engines.vllm_faults import describe_fault
from bulkinfer.engines.vllm_reading import reject_by_size
from bulkinfer.errors import JobError
from bulkinfer.records import (
    UNKNOWN_WORKLOAD,
    Completion,
    EngineReady,
    FailureCode,
    FinishReason,
    Rejection,
    Workload,
)


@dataclass(frozen=True, slots=True)
class _Part:
    """One prompt of a request."""

    prompt: Any
    params: Any
    num_tokens: int


@dataclass(slots=True)
class _Going:
    """A request in vLLM, and what has come of it."""

    num_parts: int
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    queue_s: float = 0.0
    found: dict[int, Any] = field(default_factory=dict)
    """By number of the part, the vector or the scores."""


class PoolingEngine(VllmEngine):
    """A `StepEngine` for `task.kind` embed and score.

    Raises what `VllmEngine` does, and JobError for a model that can do neither.
    """

    def __init__(self, spec: EngineSpec, workload: Workload = UNKNOWN_WORKLOAD) -> None:
        super().__init__(spec, workload)
        self._counts.waits_s = {}
        tasks = self._engine.get_supported_tasks()
        if spec.task == "score" and "classify" in tasks and "embed" not in tasks:
            self._scored_by = "cross_encoder"
            self._params = POOLING_PARAMS(task="classify")
        elif "embed" in tasks:
            self._scored_by = "cosine"
            # Older versions have a parameter of its own for it.
            scaling = "normalize" if "normalize" in POOLING_PARAMS.__struct_fields__ else "use_activation"
            self._params = POOLING_PARAMS(task="embed", **{scaling: spec.is_normalized})
        else:
            able = ", ".join(sorted(str(task) for task in tasks))
            raise JobError(f"model.path: {spec.model} cannot {spec.task}; vLLM says that it can: {able}")
        self._going: dict[str, _Going] = {}
        """By request id of the document."""

    def prepare(self, request: EngineRequest) -> Prepared | Rejection:
        """Tokenize the texts of one request, or say why not. Runs in another thread than the steps."""
        rejection = reject_by_size(self._spec, request, self._max_prompt_bytes)
        if rejection is not None:
            return rejection
        try:
            parts = self._tokenize([message.content for message in request.messages])
        except REQUEST_FAULTS as error:
            return Rejection(request.document_hash, FailureCode.ENGINE_REJECTED, describe_fault(error))
        rejection = reject_too_long(self._spec, request, max(part.num_tokens for part in parts))
        if rejection is not None:
            return rejection
        return Prepared(request.document_hash, parts, priority=request.priority)

    def count_tokens(self, request: EngineRequest) -> int | None:
        """Of the longest text that has to fit into the context by itself; None for one that is refused."""
        try:
            return max(part.num_tokens for part in self._tokenize([message.content for message in request.messages]))
        except REQUEST_FAULTS:
            return None

    def admit(self, prepared: Prepared) -> Rejection | None:
        """Give the prompts of one request to vLLM, or say why it refuses them."""
        request_id = prepared.document_hash.hex()
        parts = prepared.prompt
        assert isinstance(parts, tuple)
        ids = [_name_part(request_id, number) for number in range(len(parts))]
        try:
            for part_id, part in zip(ids, parts, strict=True):
                self._engine.add_request(part_id, part.prompt, part.params, priority=prepared.priority)
        except REQUEST_FAULTS as error:
            self._engine.abort_request(ids)
            return Rejection(prepared.document_hash, FailureCode.ENGINE_REJECTED, describe_fault(error))
        self._going[request_id] = _Going(len(parts))
        self._added_at_s[request_id] = time.monotonic()
        self._counts.num_fed_steps = self._counts.num_steps
        return None

    def abort(self, document_hashes: Sequence[bytes]) -> tuple[bytes, ...]:
        """Drop requests; returns those that were there."""
        known = tuple(one for one in document_hashes if self._added_at_s.pop(one.hex(), None) is not None)
        for document_hash in known:
            going = self._going.pop(document_hash.hex())
            parts = (number for number in range(going.num_parts) if number not in going.found)
            self._engine.abort_request([_name_part(document_hash.hex(), number) for number in parts])
        self._counts.num_aborted += len(known)
        return known

    def ready(self) -> EngineReady:
        """As of an engine that writes; without a KV cache where the model keeps none."""
        ready = super().ready()
        if (self._engine.vllm_config.cache_config.num_gpu_blocks or 0) <= 1:  # one is vLLM's own, and stands for none
            ready = replace(ready, num_kv_cache_tokens=0)
        if self._spec.task == "score":
            return replace(ready, settings={**ready.settings, "scored_by": self._scored_by})
        return replace(ready, vector_size=int(self._engine.model_config.embedding_size))

    # Any, here and below: vLLM's objects, whose types differ between its versions.
    def _read_finished(self, outputs: Sequence[Any], now_s: float) -> list[Completion | Rejection]:
        outcomes: list[Completion | Rejection] = []
        for output in outputs:
            request_id, number = _split_name(output.request_id)
            going = self._going[request_id]
            going.found[number] = output.outputs.data
            going.num_prompt_tokens += len(output.prompt_token_ids)
            going.num_cached_tokens += output.num_cached_tokens or 0
            assert self._counts.waits_s is not None
            going.queue_s = max(going.queue_s, self._counts.waits_s.pop(output.request_id, 0.0))
            if len(going.found) == going.num_parts:
                del self._going[request_id]
                outcomes.append(self._complete(request_id, going, now_s - self._added_at_s.pop(request_id)))
        return outcomes

    def _complete(self, request_id: str, going: _Going, total_s: float) -> Completion:
        is_score = self._spec.task == "score"
        queue_s = min(going.queue_s, total_s)
        return Completion(
            document_hash=bytes.fromhex(request_id),
            text=self._score(going) if is_score else "",
            finish_reason=FinishReason.STOP,
            prompt_tokens=going.num_prompt_tokens,
            cached_tokens=going.num_cached_tokens,
            output_tokens=0,
            queue_s=queue_s,
            first_token_s=total_s,
            total_s=total_s,
            details={"scored_by": self._scored_by} if is_score else None,
            vector=None if is_score else array("f", going.found[0].float().tolist()).tobytes(),
        )

    def _score(self, going: _Going) -> str:
        """As a text that JSON reads as a number; seven digits are what a 32-bit number has."""
        if self._scored_by == "cosine":
            one, other = going.found[0].float(), going.found[1].float()
            number = float(torch.nn.functional.cosine_similarity(one, other, dim=0))
        else:
            number = float(going.found[0].flatten()[0])
        return str(float(f"{number:.7g}"))

    def _tokenize(self, texts: Sequence[str]) -> tuple[_Part, ...]:
        """Of a pair, a prompt each or one together. A text alone, which a run asks to see whether the engine works,
        stands for both."""
        if self._spec.task == "score":
            texts = (texts[0], texts[-1])
            if self._scored_by == "cross_encoder":
                return (self._join_pair(*texts),)
        prompts = self._renderer.render_cmpl([{"prompt": text} for text in texts], self._plain_tokenize_params)
        return tuple(_Part(prompt, self._params, len(prompt["prompt_token_ids"])) for prompt in prompts)

    def _join_pair(self, query: str, document: str) -> _Part:
        """One prompt of both, as the tokenizer joins them, or one text where the model says that it wants that."""
        config = self._engine.model_config
        if not getattr(config, "use_sep_token", getattr(config, "use_pad_token", True)):
            (prompt,) = self._renderer.render_cmpl([{"prompt": query + document}], self._plain_tokenize_params)
            return _Part(prompt, self._params, len(prompt["prompt_token_ids"]))
        found = self._renderer.tokenizer(query, text_pair=document)
        token_ids = list(found["input_ids"])
        (prompt,) = self._renderer.render_cmpl([{"prompt_token_ids": token_ids}], self._plain_tokenize_params)
        params = self._params
        if (types := found.get("token_type_ids")) is not None:
            # vLLM is told where the second text begins, and no more: the types are zeros, then ones.
            second = types.index(1) if 1 in types else len(types)
            params = POOLING_PARAMS(task="classify", extra_kwargs={"compressed_token_type_ids": second})
        return _Part(prompt, params, len(token_ids))


def _name_part(request_id: str, number: int) -> str:
    return f"{request_id}.{number}"


def _split_name(name: str) -> tuple[str, int]:
    request_id, _, number = name.rpartition(".")
    return request_id, int(number)
