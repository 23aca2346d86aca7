"""The section `task`: what is done with each document."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from bulkinfer.job.classify_spec import ClassifyTask
from bulkinfer.job.extract_spec import ExtractTask
from bulkinfer.job.nearest import find_nearest
from bulkinfer.job.section import Section, wrong_value


class GenerateTask(Section):
    """Write an answer."""

    kind: Literal["generate"] = Field(default="generate", description="Write an answer to each document.")


class EmbedTask(Section):
    """Make a vector."""

    kind: Literal["embed"] = Field(description="Make a vector of each document: `prompt.text`, embedded.")
    normalize: bool = Field(default=True, description="Whether each vector is scaled to the length 1.")


class ScoreTask(Section):
    """Say how well a document fits a query."""

    kind: Literal["score"] = Field(
        description="Give each document a number that says how well its `prompt.document` fits its `prompt.query`. "
        "With a cross-encoder (a classification head with one label), what its head says; with an embedding model, the "
        "cosine of the two vectors."
    )


TASKS: Mapping[str, type[Section]] = {
    "generate": GenerateTask,
    "classify": ClassifyTask,
    "extract": ExtractTask,
    "embed": EmbedTask,
    "score": ScoreTask,
}
"""By `kind`."""


def _check_kind(value: object) -> object:
    """Say which kinds there are, before the keys of one are looked at."""
    if isinstance(value, str) and value in TASKS:
        raise wrong_value("a mapping of keys", f"write {{kind: {value}}}")
    if not isinstance(value, dict):
        return value
    kind = value.get("kind", "generate")
    if not isinstance(kind, str) or kind not in TASKS:
        nearest = find_nearest(kind, list(TASKS)) if isinstance(kind, str) else None
        advice = f"did you mean {nearest}?" if nearest else None
        raise wrong_value(f"one of {', '.join(TASKS)}", advice, path=("task", "kind"), found=kind)
    return value


def _tell_kind(value: object) -> str:
    kind = value.get("kind", "generate") if isinstance(value, dict) else getattr(value, "kind", "generate")
    return str(kind)


TaskSpec = Annotated[
    Annotated[GenerateTask, Tag("generate")]
    | Annotated[ClassifyTask, Tag("classify")]
    | Annotated[ExtractTask, Tag("extract")]
    | Annotated[EmbedTask, Tag("embed")]
    | Annotated[ScoreTask, Tag("score")],
    Discriminator(_tell_kind),
    BeforeValidator(_check_kind),
]
