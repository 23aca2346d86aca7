"""The section `prompt`: what the model is given of one document."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Strict

from bulkinfer.job.section import ColumnName, Section, Text, as_sequence, missing_key, one_or_many, wrong_value


class Turn(Section):
    """One message of the examples that stand before the document."""

    role: Literal["system", "user", "assistant"] = Field(description="Who says it; `system` only in the first turn.")
    content: Text = Field(description="Jinja over the document's fields.", examples=["The parcel never came."])


def _as_turns(value: object) -> object:
    if isinstance(value, list | tuple):
        return tuple(value)
    raise wrong_value("a list of turns, each with role and content")


Turns = Annotated[
    tuple[Turn, ...],
    Strict(strict=False),
    BeforeValidator(_as_turns),
    Field(min_length=1, max_length=1000),
]


Columns = Annotated[
    tuple[ColumnName, ...], Strict(strict=False), BeforeValidator(as_sequence), Field(min_length=1, max_length=64)
]


class PromptSpec(Section):
    """What is made of one document: Jinja templates over its fields. Which are wanted, `task.kind` says.

    A conversation ends with `user`, or is brought by the row (`messages`); `text` is completed, or embedded, as it is.
    """

    system: Text | None = Field(
        default=None,
        description="The system message.",
        examples=["You summarise customer support tickets."],
    )
    turns: Turns | None = Field(
        default=None,
        description="Messages after `system` and before `user`: examples that show what is wanted (few-shot).",
        examples=[[{"role": "user", "content": "2 + 2"}, {"role": "assistant", "content": "4"}]],
    )
    user: Text | None = Field(
        default=None,
        description="The user message, the last of the conversation.",
        examples=["{{ subject }}\n\n{{ body }}"],
    )
    messages: ColumnName | None = Field(
        default=None,
        description="Instead of `user`: the field that holds the conversation, a list of {role, content}, or such a "
        "list as JSON text.",
        examples=["messages"],
    )
    images: Annotated[Columns, one_or_many("Fields that hold images.", 64)] | None = Field(
        default=None,
        description="Fields that hold images for the last message: files (relative to the input file), `data:` URLs, "
        "bytes of PNG, JPEG, GIF and WebP, or lists of these; null: none.",
        examples=["photo", ["front", "back"]],
    )
    combine: Text | None = Field(
        default=None,
        description="With `limits.overlong: split`: the user message that joins the answers to the parts of one "
        "document. `parts` is the list of them; the document's fields are there, too, and the system message.",
        examples=["{{ parts | join('\n\n') }}\n\nMake one summary of these."],
    )
    text: Text | None = Field(
        default=None,
        description="Instead of `user`: a text that the model goes on with; with task.kind embed, the text that is "
        "embedded. No chat template is put around it.",
        examples=["{{ subject }}\n\n{{ body }}"],
    )
    query: Text | None = Field(
        default=None, description="With task.kind score: what is looked for.", examples=["{{ question }}"]
    )
    document: Text | None = Field(
        default=None, description="With task.kind score: what is judged by the query.", examples=["{{ passage }}"]
    )

    @property
    def templates(self) -> Mapping[str, str]:
        """Those that are given, by key, in the order in which the model reads them; without `turns`."""
        keys = ("system", "user", "text", "query", "document")
        return {key: template for key in keys if (template := getattr(self, key)) is not None}


def check_conversation(prompt: PromptSpec) -> None:
    """Refuse a prompt that is not exactly one of the three that a text can answer. Raises PydanticCustomError."""
    given = [name for name in ("user", "messages", "text") if getattr(prompt, name) is not None]
    if not given:
        raise missing_key(("prompt", "user"), "a prompt has user, messages or text")
    if len(given) > 1:
        raise _refuse_beside(prompt, given[1], given[0])
    if given[0] == "messages" and prompt.turns is not None:
        raise _refuse_beside(prompt, "turns", "messages")
    if given[0] == "text":
        for name in ("system", "turns", "images"):
            if getattr(prompt, name) is not None:
                raise _refuse_beside(prompt, name, "text")
    _check_turns(prompt)


def _check_turns(prompt: PromptSpec) -> None:
    for index, turn in enumerate(prompt.turns or ()):
        if turn.role != "system":
            continue
        if index > 0 or prompt.system is not None:
            advice = "a system message comes first, once: in prompt.system, or as the first turn"
            raise wrong_value("user or assistant", advice, path=("prompt", "turns", index, "role"), found=turn.role)


def _refuse_beside(prompt: PromptSpec, name: str, other: str) -> Exception:
    advice = "a prompt is one of user (with system, turns and images), messages (with system and images) and text"
    value = getattr(prompt, name)
    found = list(value) if isinstance(value, tuple) else value
    return wrong_value(f"nothing beside prompt.{other}", advice, path=("prompt", name), found=found)
