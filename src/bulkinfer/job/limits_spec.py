"""The section `limits`: what a run may use, and when it gives up."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, Tag, WithJsonSchema

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
from bulkinfer.job.section import Auto, NumberOrAuto, Section, wrong_value

NumSequences = Annotated[Auto | Annotated[int, Field(ge=1, le=65_536), Tag("number")], NumberOrAuto]
NumContextTokens = Annotated[Auto | Annotated[int, Field(ge=2, le=100_000_000), Tag("number")], NumberOrAuto]


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
    overlong: Literal["fail", "truncate_head", "truncate_middle", "truncate_tail", "split"] = Field(
        default="fail",
        description="What is done with a document whose prompt and answer are more than max_context_tokens: it fails "
        "(`prompt_too_long`); its head is cut away, so that its end stays; or its middle; or its tail, so that its "
        "beginning stays; or it is split into parts that are answered one by one, and the answers joined by "
        "`prompt.combine`. Only the fields that the prompt prints are cut, the longest first, never the job's own "
        "text. Rows say what was done (`details.overlong`).",
        examples=["truncate_tail"],
    )
    overlap_tokens: int = Field(
        default=64,
        ge=0,
        le=1_000_000,
        description="With `overlong: split`: about so many tokens of each part stand at the beginning of the next, "
        "too; at most a third of it.",
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
