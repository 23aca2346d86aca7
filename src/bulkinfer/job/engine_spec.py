"""The section `engine`: what runs the model."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from bulkinfer.job.section import FreeArguments, Seconds, Section, wrong_value

MAX_REPLICAS = 1024


def _as_replicas(value: object) -> object:
    """A count, or the word."""
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_REPLICAS):
        return value
    raise wrong_value(f"1 to {MAX_REPLICAS}, or auto")


Replicas = Annotated[
    int | Literal["auto"],
    BeforeValidator(_as_replicas),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_REPLICAS}, {"const": "auto"}]}),
]


class EngineSection(Section):
    """What runs the model. Nothing here changes an answer's identity, except `kind`."""

    kind: Literal["vllm", "simulated"] = Field(
        default="vllm", description="`simulated` computes nothing: for dry runs, tests and planning."
    )
    replicas: Replicas = Field(
        default=1,
        description="Engines side by side on this machine, which share its cores or its GPUs. auto: as many as there "
        "are GPUs for; on a CPU one for each NUMA node. limits.max_concurrency holds for each.",
        examples=[2, "auto"],
    )
    vllm: FreeArguments = Field(
        default_factory=dict,
        description="Further vLLM engine arguments, by vLLM's names.",
        examples=[{"gpu_memory_utilization": 0.9}],
    )
    simulated: FreeArguments = Field(
        default_factory=dict,
        description="Costs and faults of the simulated engine.",
        examples=[{"seconds_per_prompt_token": 0.0005, "seconds_per_output_token": 0.002, "engine_start_s": 0}],
    )
    start_timeout_s: Seconds = Field(default=900, description="Seconds that loading may take.")
    silence_timeout_s: Seconds = Field(
        default=600,
        description="Seconds without a sign of life after which the engine counts as dead.",
    )
    step_timeout_s: Seconds = Field(
        default=300,
        description="Seconds that one step of the engine may take before it is ended and started again.",
    )
    max_restarts: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="Deaths of the engine without an answer in between that a run bears.",
    )
    grace_s: float = Field(
        default=30, ge=0, le=86_400, description="Seconds that documents in flight may take to finish after a signal."
    )
