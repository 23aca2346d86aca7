"""The task `extract`: JSON of a schema, or text of a pattern, for each document."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema, model_validator

from bulkinfer.constraints import Fault, find_pattern_fault
from bulkinfer.job.section import Section, Text, wrong_value


def _as_schema(value: object) -> object:
    """A mapping; the path of a file was replaced by what stands in it."""
    if not isinstance(value, dict):
        raise wrong_value("a JSON Schema, or the path of a .json file with one")
    from bulkinfer.constraints.json_schema import find_schema_fault  # noqa: PLC0415 - only such jobs need it

    fault = find_schema_fault(value)
    if fault is not None:
        raise _wrong(fault, "schema", value)
    return value


def _check_regex(value: object) -> object:
    if isinstance(value, str) and (fault := find_pattern_fault(value)) is not None:
        raise _wrong(fault, "regex", value)
    return value


AnswerSchema = Annotated[
    dict[str, JsonValue],
    BeforeValidator(_as_schema),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string", "pattern": r"\.json$"}]}),
]


class ExtractTask(Section):
    """Take something out of each document, in a form that holds while it is written, and is checked afterwards."""

    # `schema` is a method of pydantic's models: the field has another name, and the file's in everything written.
    model_config = ConfigDict(serialize_by_alias=True)

    kind: Literal["extract"] = Field(description="Extract JSON of a `schema`, or text of a `regex`.")
    answer_schema: AnswerSchema | None = Field(
        default=None,
        alias="schema",
        description="A JSON Schema that each answer fits, or a .json file with one, relative to the job file.",
        examples=[
            {
                "type": "object",
                "properties": {"product": {"type": "string", "maxLength": 40}, "days": {"type": "integer"}},
                "required": ["product", "days"],
                "additionalProperties": False,
            },
            "ticket.schema.json",
        ],
    )
    regex: Annotated[Text, BeforeValidator(_check_regex)] | None = Field(
        default=None,
        description="A regular expression that each answer matches as a whole.",
        examples=["[A-Z]{2}-[0-9]{1,6}"],
    )

    @model_validator(mode="after")
    def _check_one(self) -> "ExtractTask":
        if self.answer_schema is None and self.regex is None:
            raise wrong_value("a schema or a regex", path=("task",), found={"kind": self.kind})
        if self.answer_schema is not None and self.regex is not None:
            raise wrong_value("no regex beside a schema", "remove one", path=("task", "regex"), found=self.regex)
        return self


def _wrong(fault: Fault, key: str, value: JsonValue) -> Exception:
    found = value
    for part in fault.path:
        match found, part:
            case dict(), str() if part in found:
                found = found[part]
            case list(), int() if part < len(found):
                found = found[part]
            case _:
                break
    return wrong_value(fault.expected, fault.advice, path=("task", key, *fault.path), found=found)
