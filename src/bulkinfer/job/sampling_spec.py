"""The section `sampling`: how an answer is drawn."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, JsonValue, Strict, WithJsonSchema

from bulkinfer.job.section import ColumnName, Section, Text, as_sequence, one_or_many, wrong_value

MAX_ANSWERS = 128
MAX_LOGPROBS = 20
"""What vLLM gives without being told otherwise."""
GREEDY = 1e-5
"""Below it, vLLM takes the most likely token."""

Stops = Annotated[
    tuple[Text, ...], Strict(strict=False), BeforeValidator(as_sequence), Field(min_length=1, max_length=64)
]


_TOKEN_ID = re.compile(r"[0-9]{1,9}")


def _as_token_ids(value: object) -> object:
    """Numbers of tokens are texts in JSON, and may be numbers in YAML."""
    if not isinstance(value, dict) or not all(_TOKEN_ID.fullmatch(str(key)) for key in value):
        raise wrong_value("a mapping with numbers of tokens as keys, each with a number from -100 to 100")
    return {str(key): bias for key, bias in value.items()}


LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]],
    BeforeValidator(_as_token_ids),
    Field(min_length=1, max_length=1000),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "minProperties": 1,
            "maxProperties": 1000,
        }
    ),
]


class SamplingColumns(Section):
    """Fields of the documents that hold parameters of their own; where a field is null or absent, the job's hold."""

    temperature: ColumnName | None = Field(default=None, description="The row's temperature.")
    max_tokens: ColumnName | None = Field(default=None, description="The row's max_tokens.", examples=["max_tokens"])
    top_p: ColumnName | None = Field(default=None, description="The row's top_p.")
    top_k: ColumnName | None = Field(default=None, description="The row's top_k.")
    min_p: ColumnName | None = Field(default=None, description="The row's min_p.")
    presence_penalty: ColumnName | None = Field(default=None, description="The row's presence_penalty.")
    frequency_penalty: ColumnName | None = Field(default=None, description="The row's frequency_penalty.")
    repetition_penalty: ColumnName | None = Field(default=None, description="The row's repetition_penalty.")
    stop: ColumnName | None = Field(default=None, description="The row's stop: a text or a list of texts.")
    seed: ColumnName | None = Field(default=None, description="The row's seed.", examples=["seed"])
    n: ColumnName | None = Field(default=None, description="The row's n.")
    logprobs: ColumnName | None = Field(default=None, description="The row's logprobs.")
    logit_bias: ColumnName | None = Field(default=None, description="The row's logit_bias.")
    response_format: ColumnName | None = Field(
        default=None,
        description="The form of the row's answer, as OpenAI's API has it, as a mapping or JSON text: "
        "{type: json_object}, or {type: json_schema, json_schema: {name, schema}}. Only with task.kind generate.",
    )

    def to_fields(self) -> dict[str, str]:
        """By parameter, the field that holds it: those that the job gives."""
        return self.model_dump(exclude_none=True)


class SamplingSpec(Section):
    """How an answer is drawn; by vLLM's names."""

    temperature: float = Field(default=0.0, ge=0, le=2, description="0: always the most likely token.")
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="The most tokens of one answer. Needed where the task writes one; of classify it follows from the "
        "choices.",
        examples=[48],
    )
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
    stop: Annotated[Stops, one_or_many("The answer ends before any of these texts.", 64)] | None = Field(
        default=None, description="The answer ends before any of these texts."
    )
    seed: int | None = Field(default=None, ge=0, le=2**63 - 1, description="For temperatures above 0.")
    n: int | None = Field(
        default=None,
        ge=1,
        le=MAX_ANSWERS,
        description="Answers to each document, drawn apart: all are in `value`, a list, and `output` is the first. "
        "Above 1 it needs a temperature above 0.",
        examples=[3],
    )
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Keep in `details` the log probability of each token of the answer, and the others among so many "
        "of the likeliest tokens in its place.",
        examples=[0, 5],
    )
    logit_bias: LogitBias | None = Field(
        default=None,
        description="By the number of a token in the model's vocabulary, what is added to its logarithm before "
        "drawing; -100 bans it.",
        examples=[{"1639": -100}],
    )
    columns: SamplingColumns | None = Field(
        default=None,
        description="Fields of the documents that hold parameters of their own, which go before those here.",
        examples=[{"temperature": "temperature", "max_tokens": "max_tokens"}],
    )

    @property
    def num_answers(self) -> int:
        """Answers to each document, where it does not say itself."""
        return self.n or 1

    def to_engine(self) -> dict[str, JsonValue]:
        """Sampling parameters by vLLM's names: those that the job gives, `temperature` always."""
        return self.model_dump(mode="json", exclude_none=True, exclude={"columns"})


def check_answers(sampling: SamplingSpec) -> None:
    """Refuse several answers that would all be the same. Raises PydanticCustomError."""
    by_row = sampling.columns is not None and sampling.columns.temperature is not None
    if sampling.num_answers > 1 and sampling.temperature < GREEDY and not by_row:
        advice = "with temperature 0 all answers would be the same; raise sampling.temperature"
        raise wrong_value("1", advice, path=("sampling", "n"), found=sampling.n)
