"""The section `sampling`: how an answer is drawn."""

from typing import Annotated

from pydantic import BeforeValidator, Field, JsonValue, Strict

from bulkinfer.job.section import Section, Text, as_sequence, one_or_many

Stops = Annotated[
    tuple[Text, ...], Strict(strict=False), BeforeValidator(as_sequence), Field(min_length=1, max_length=64)
]


class SamplingSpec(Section):
    """How an answer is drawn; by vLLM's names."""

    temperature: float = Field(default=0.0, ge=0, le=2, description="0: always the most likely token.")
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="The most tokens of one answer. Must be given where the task writes one.",
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

    def to_engine(self) -> dict[str, JsonValue]:
        """Sampling parameters by vLLM's names: those that the job gives, `temperature` and `max_tokens` always."""
        return self.model_dump(mode="json", exclude_none=True)
