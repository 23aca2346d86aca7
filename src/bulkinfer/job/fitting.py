"""Do the sections of a job fit its task? What each kind of task needs, and what means nothing to it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

from bulkinfer.job.prompt_spec import ModelSpec, PromptSpec
from bulkinfer.job.sampling_spec import SamplingSpec
from bulkinfer.job.section import wrong_value

_UNSET = frozenset[str]()


@dataclass(frozen=True, slots=True)
class _Wants:
    """Keys of `prompt`, and whether an answer is drawn."""

    needed: tuple[str, ...]
    allowed: frozenset[str] = _UNSET
    """Besides those that are needed."""
    is_drawn: bool = True


_WANTS: Mapping[str, _Wants] = {
    "generate": _Wants(("user",), frozenset({"system"})),
    "embed": _Wants(("text",), is_drawn=False),
    "score": _Wants(("query", "document"), is_drawn=False),
}
"""By kind of task."""


def check_prompt(kind: str, prompt: PromptSpec) -> None:
    """Raises PydanticCustomError for a key of `prompt` that is missing, or means nothing to the task."""
    wants = _WANTS[kind]
    given = {key for key in prompt.model_fields_set if getattr(prompt, key) is not None}
    for key in sorted(given - wants.allowed - set(wants.needed)):
        advice = f"it takes {' and '.join(f'prompt.{needed}' for needed in wants.needed)}"
        raise wrong_value(
            f"no such key with task.kind {kind}", advice, path=("prompt", key), found=getattr(prompt, key)
        )
    for key in wants.needed:
        if key not in given:
            raise missing_key(("prompt", key), f"task.kind {kind} needs it")


def check_sampling(kind: str, sampling: SamplingSpec | None) -> None:
    """Raises PydanticCustomError for a missing `max_tokens`, and for `sampling` where nothing is drawn.

    `sampling` None: the section is not given.
    """
    if _WANTS[kind].is_drawn:
        if sampling is None:
            raise missing_key(("sampling",))
        if sampling.max_tokens is None:
            raise missing_key(("sampling", "max_tokens"))
    elif sampling is not None:
        raise wrong_value(
            f"no such section with task.kind {kind}",
            "remove it: no answer is drawn",
            path=("sampling",),
            found=sampling.model_dump(exclude_unset=True),
        )


def check_model(kind: str, model: ModelSpec) -> None:
    """Raises PydanticCustomError for a chat template where there is no chat."""
    if not _WANTS[kind].is_drawn and model.chat_template is not None:
        raise wrong_value(
            f"no such key with task.kind {kind}",
            "remove it: no chat template is put around a text that is embedded or scored",
            path=("model", "chat_template"),
            found=model.chat_template,
        )


def missing_key(path: tuple[str, ...], reason: str | None = None) -> PydanticCustomError:
    """The error for a key that is needed and not there; pydantic has one of its own where it is always needed."""
    return PydanticCustomError("missing", "missing", {"path": path, "advice": reason})
