"""The task `classify`: one of some labels for each document."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Strict, WithJsonSchema, model_validator

from bulkinfer.constraints import MAX_CHOICES, MAX_SCORED_CHOICES, find_choices_fault
from bulkinfer.job.section import Section, Text, wrong_value


def _as_choices(value: object) -> object:
    """A list, as it stands in the file."""
    if not isinstance(value, list | tuple):
        raise wrong_value("a list of texts")
    return tuple(value)


Choices = Annotated[
    tuple[Text, ...],
    Strict(strict=False),
    BeforeValidator(_as_choices),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": 2,
            "maxItems": MAX_CHOICES,
            "uniqueItems": True,
        }
    ),
]


class ClassifyTask(Section):
    """Choose one of some labels. `sampling.max_tokens` follows from the longest of them."""

    kind: Literal["classify"] = Field(description="Choose one of `choices` for each document.")
    choices: Choices = Field(
        description="The labels; none may begin another. An answer is exactly one of them.",
        examples=[["billing", "shipping", "defect", "other"]],
    )
    probabilities: bool = Field(
        default=False,
        description="Record in `details.probabilities` how probable each choice is, all together 1; the answer is then "
        "the most probable one. Each choice is scored by all its tokens. Needs temperature 0.",
    )
    calibrate: bool = Field(
        default=False,
        description="Divide the probabilities by those of the same prompt with empty fields, and take the best choice "
        "then: small models favour one label whatever the document. Needs temperature 0.",
    )

    @property
    def is_scored(self) -> bool:
        """Whether each choice is asked for by its probability, instead of one being decoded."""
        return self.probabilities or self.calibrate

    @model_validator(mode="after")
    def _check_choices(self) -> "ClassifyTask":
        path: tuple[str | int, ...] = ("task", "choices")
        fault = find_choices_fault(self.choices)
        if fault is not None:
            found = self.choices[int(fault.path[0])] if fault.path else list(self.choices)
            raise wrong_value(fault.expected, fault.advice, path=(*path, *fault.path), found=found)
        if self.is_scored and len(self.choices) > MAX_SCORED_CHOICES:
            expected = f"at most {MAX_SCORED_CHOICES} choices with probabilities or calibrate, which score each of them"
            raise wrong_value(expected, path=path, found=list(self.choices))
        return self
