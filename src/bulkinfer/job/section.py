"""What the sections of a job file have in common: strictness, types of values, the words of an error."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, JsonValue, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

NAME_PATTERN = r"^[A-Za-z0-9._-]+$"
PATH_PATTERN = r"^[^\x00]*[^\x00\s][^\x00]*$"
Text = Annotated[str, Field(min_length=1, max_length=1_000_000)]
PathText = Annotated[str, Field(min_length=1, max_length=4096, pattern=PATH_PATTERN)]
ColumnName = Annotated[str, Field(min_length=1, max_length=1000)]
"""A field of the documents."""
FreeArguments = dict[Annotated[str, Field(min_length=1, max_length=100)], JsonValue]
Auto = Annotated[Literal["auto"], Tag("auto")]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
"""How long something may take: more than nothing, a day at most."""


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


def as_sequence(value: object) -> object:
    """One text stands for a list of one."""
    return (value,) if isinstance(value, str) else value


def one_or_many(description: str, max_items: int) -> WithJsonSchema:
    """The schema of a text or a list of texts."""
    one = {"type": "string", "minLength": 1}
    return WithJsonSchema(
        {
            "anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": max_items}],
            "description": description,
        }
    )


def wrong_value(expected: str, advice: str | None = None, **about: object) -> PydanticCustomError:
    """The error of a check of our own; `explain` puts it into the same words as pydantic's.

    A check over several sections gives `path`, the key to name, and `found`, its value.
    """
    return PydanticCustomError("wrong_value", "{expected}", {"expected": expected, "advice": advice, **about})


def missing_key(path: tuple[str | int, ...], reason: str | None = None) -> PydanticCustomError:
    """The error for a key that is needed and not there; pydantic has one of its own where it is always needed."""
    return PydanticCustomError("missing", "missing", {"path": path, "advice": reason})
