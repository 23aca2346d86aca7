"""What a job file may say: every key with its type, bounds, default and description.

Strict: no value is converted silently and no unknown key is accepted. What is not a matter of one file's text (does the
input exist, does the template fit it, does vLLM know an argument) is checked elsewhere.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    PlainSerializer,
    Strict,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from bulkinfer.errors import JobError
from bulkinfer.job.limit import (
    EXPECTED,
    RESERVE_EXPECTED,
    RESERVE_PATTERN,
    SHARE_PATTERN,
    FailureLimit,
    parse_failure_limit,
    parse_reserve,
)

SCHEMA_ID = "urn:bulkinfer:job"
"""A name, not a place: editors tell schemas apart by it."""

MAX_REPLICAS = 1024

NAME_PATTERN = r"^[A-Za-z0-9._-]+$"
PATH_PATTERN = r"^[^\x00]*[^\x00\s][^\x00]*$"

Text = Annotated[str, Field(min_length=1, max_length=1_000_000)]
PathText = Annotated[str, Field(min_length=1, max_length=4096, pattern=PATH_PATTERN)]
FreeArguments = dict[Annotated[str, Field(min_length=1, max_length=100)], JsonValue]


def _as_sequence(value: object) -> object:
    """One text stands for a list of one."""
    return (value,) if isinstance(value, str) else value


def _one_or_many(description: str, max_items: int) -> WithJsonSchema:
    one = {"type": "string", "minLength": 1}
    return WithJsonSchema(
        {
            "anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": max_items}],
            "description": description,
        }
    )


def _as_failure_limit(value: object) -> object:
    """Counts are written as numbers and shares as texts; anything else is not a limit."""
    if isinstance(value, bool) or not isinstance(value, int | str | FailureLimit):
        raise wrong_value(EXPECTED)
    if isinstance(value, str) and not value.rstrip().endswith("%"):
        raise wrong_value(EXPECTED, "write a count without quotes" if value.isdecimal() else None)
    try:
        return value if isinstance(value, FailureLimit) else parse_failure_limit(str(value))
    except JobError:
        raise wrong_value(EXPECTED) from None


def _as_reserve(value: object) -> object:
    """Always a text: a number might be a share or a percentage."""
    share = parse_reserve(value) if isinstance(value, str) else None
    if share is None:
        advice = f"write {100 * value:g}%" if isinstance(value, float) and 0 < value < 1 else None
        raise wrong_value(RESERVE_EXPECTED, advice)
    return share


def _as_replicas(value: object) -> object:
    """A count, or the word."""
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_REPLICAS):
        return value
    raise wrong_value(f"1 to {MAX_REPLICAS}, or auto")


def wrong_value(expected: str, advice: str | None = None, **about: object) -> PydanticCustomError:
    """The error of a check of our own; `explain` puts it into the same words as pydantic's.

    A check over several sections gives `path`, the key to name, and `found`, its value.
    """
    return PydanticCustomError("wrong_value", "{expected}", {"expected": expected, "advice": advice, **about})


Sources = Annotated[
    tuple[PathText, ...], Strict(strict=False), BeforeValidator(_as_sequence), Field(min_length=1, max_length=10_000)
]
Stops = Annotated[
    tuple[Text, ...], Strict(strict=False), BeforeValidator(_as_sequence), Field(min_length=1, max_length=64)
]
Limit = Annotated[
    FailureLimit,
    BeforeValidator(_as_failure_limit),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": f"^{SHARE_PATTERN}$"}]}),
]
Reserve = Annotated[
    float,
    BeforeValidator(_as_reserve),
    PlainSerializer(lambda share: f"{100 * share:g}%", return_type=str),
    WithJsonSchema({"type": "string", "pattern": f"^{RESERVE_PATTERN}$"}),
]


Replicas = Annotated[
    int | Literal["auto"],
    BeforeValidator(_as_replicas),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_REPLICAS}, {"const": "auto"}]}),
]


Auto = Annotated[Literal["auto"], Tag("auto")]


def _tell_auto(value: object) -> str | None:
    """Which of the two a limit is; None where it is neither. A number in quotes is told to have none."""
    if value == "auto":
        return "auto"
    is_meant_as_number = isinstance(value, int) or (isinstance(value, str) and value.isdecimal())
    return "number" if is_meant_as_number and not isinstance(value, bool) else None


NumberOrAuto = Discriminator(
    _tell_auto,
    custom_error_type="wrong_value",
    custom_error_message="{expected}",
    custom_error_context={"expected": "a whole number, or auto"},
)
NumSequences = Annotated[Auto | Annotated[int, Field(ge=1, le=65_536), Tag("number")], NumberOrAuto]
NumContextTokens = Annotated[Auto | Annotated[int, Field(ge=2, le=100_000_000), Tag("number")], NumberOrAuto]


class Section(BaseModel):
    """What holds for every part of the job file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


Seconds = Annotated[float, Field(gt=0, le=86_400)]
"""How long something may take: more than nothing, a day at most."""


class InputSpec(Section):
    """The documents."""

    path: Annotated[
        Sources,
        _one_or_many("A file, folder or glob, or a list of them; Parquet, JSONL, JSONL.gz or JSONL.zst.", 10_000),
    ] = Field(
        description="A file, folder or glob, or a list of them; Parquet, JSONL, JSONL.gz or JSONL.zst. "
        "Relative to the job file.",
        examples=["tickets.parquet", "tickets/*.jsonl.gz"],
    )
    id: Text | None = Field(
        default=None,
        max_length=1000,
        description='The field that names a document in results and failures. Default: "<source>:<row>".',
        examples=["ticket_id"],
    )


class ModelSpec(Section):
    """The model that answers."""

    path: PathText = Field(
        description="A model folder (relative to the job file) or a Hugging Face hub id.",
        examples=["../models/my-model", "HuggingFaceTB/SmolLM2-135M-Instruct"],
    )
    revision: Text | None = Field(
        default=None, max_length=200, description="Branch, tag or commit of a hub id. Give a commit to be repeatable."
    )
    chat_template: Text | None = Field(
        default=None, description="A Jinja chat template, instead of the one that comes with the model."
    )
    trust_remote_code: bool = Field(default=False, description="Run Python code that comes with the model.")


class PromptSpec(Section):
    """The conversation that is made of one document. Both are Jinja templates over the document's fields."""

    system: Text | None = Field(
        default=None,
        description="The system message.",
        examples=["You summarise customer support tickets."],
    )
    user: Text = Field(description="The user message.", examples=["{{ subject }}\n\n{{ body }}"])


class SamplingSpec(Section):
    """How an answer is drawn; by vLLM's names."""

    temperature: float = Field(default=0.0, ge=0, le=2, description="0: always the most likely token.")
    max_tokens: int = Field(ge=1, le=10_000_000, description="The most tokens of one answer.", examples=[48])
    top_p: float | None = Field(default=None, gt=0, le=1, description="Draw from the likeliest tokens of this share.")
    top_k: int | None = Field(default=None, ge=-1, le=10_000_000, description="Draw from so many tokens; 0 or -1: all.")
    min_p: float | None = Field(
        default=None, ge=0, le=1, description="Drop tokens below this share of the likeliest token's probability."
    )
    presence_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Above 0: tokens that are there already become less likely."
    )
    frequency_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Above 0: the oftener a token is there, the less likely it becomes."
    )
    repetition_penalty: float | None = Field(
        default=None, gt=0, le=10, description="Above 1: tokens of prompt and answer become less likely."
    )
    stop: Annotated[Stops, _one_or_many("The answer ends before any of these texts.", 64)] | None = Field(
        default=None, description="The answer ends before any of these texts."
    )
    seed: int | None = Field(default=None, ge=0, le=2**63 - 1, description="For temperatures above 0.")

    def to_engine(self) -> dict[str, JsonValue]:
        """Sampling parameters by vLLM's names: those that the job gives, `temperature` and `max_tokens` always."""
        return self.model_dump(mode="json", exclude_none=True)


class LimitsSpec(Section):
    """What a run may use, and when it gives up."""

    max_concurrency: NumSequences = Field(
        default="auto",
        description="Sequences active in the engine; `auto`: as many as suit the machine and the documents.",
        examples=["auto", 64],
    )
    max_queue_size: int = Field(
        default=512,
        ge=1,
        le=10_000_000,
        description="Rendered documents that wait for the engine; the shard behind them is read ahead too.",
    )
    max_context_tokens: NumContextTokens = Field(
        default="auto",
        description="The most tokens of prompt and answer of one document together; `auto`: what the model can take, "
        "as far as there is memory for it.",
        examples=["auto", 2048],
    )
    reject_when_queue_full: bool = Field(
        default=False,
        description="What happens to live arrivals when the queue is full. A run's reader waits in any case.",
    )
    reserve: Reserve = Field(
        default=0.0,
        description="A share of the sequences and of the KV cache that is left to other work on the machine.",
        examples=["25%"],
        json_schema_extra={"default": "0%"},
    )
    max_failures: Limit = Field(
        default=FailureLimit(share=0.05),
        description="A count or a share of the documents; with more failures the run ends with exit code 5.",
        examples=[100, "5%"],
        json_schema_extra={"default": "5%"},
    )


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


class OutputSpec(Section):
    """Where the answers go."""

    database: PathText = Field(
        description="A DuckDB file, relative to the job file. Created if missing; several jobs may share it.",
        examples=["../out/tickets.duckdb"],
    )
    lock_timeout_s: float = Field(
        default=10,
        ge=0,
        le=86_400,
        description="Seconds to wait at the start for other programs that have the database open for reading.",
    )
    stall_timeout_s: float = Field(
        default=300,
        ge=60,
        le=86_400,
        description="Seconds that the disk may take for one commit before the run gives up with exit code 4.",
    )
    client_timeout_s: Seconds = Field(
        default=30,
        description="Seconds that a `query`, `failures` or `export` during the run may say nothing or not read.",
    )


class JobSpec(Section):
    """A bulkinfer job: run one prompt over every document of an input."""

    name: str = Field(
        min_length=1,
        max_length=100,
        pattern=NAME_PATTERN,
        description="The job's name: letters, digits and . _ -",
        examples=["ticket-summaries"],
    )
    input: InputSpec = Field(description="The documents.")
    model: ModelSpec = Field(description="The model that answers.")
    prompt: PromptSpec = Field(description="The conversation that is made of one document: Jinja over its fields.")
    sampling: SamplingSpec = Field(description="How an answer is drawn; by vLLM's names.")
    limits: LimitsSpec = Field(default_factory=LimitsSpec, description="What a run may use, and when it gives up.")
    engine: EngineSection = Field(default_factory=EngineSection, description="What runs the model.")
    output: OutputSpec = Field(description="Where the answers go.")

    @model_validator(mode="after")
    def _check_room_for_prompt(self) -> "JobSpec":
        limit = self.limits.max_context_tokens
        if limit != "auto" and self.sampling.max_tokens >= limit:
            raise wrong_value(
                f"less than limits.max_context_tokens ({limit}), as prompt and answer share it",
                "lower it, or raise limits.max_context_tokens",
                path=("sampling", "max_tokens"),
                found=self.sampling.max_tokens,
            )
        return self


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the job file, for editors."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    schema = JobSpec.model_json_schema()
    return {"$schema": dialect, "$id": SCHEMA_ID, **schema, "title": "bulkinfer job"}
