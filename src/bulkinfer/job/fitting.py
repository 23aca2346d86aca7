"""Do the sections of a job fit its task? What each kind of task needs, and what means nothing to it."""

from collections.abc import Mapping
from dataclasses import dataclass

from bulkinfer.constraints import cannot_fit, most_tokens
from bulkinfer.job.classify_spec import ClassifyTask
from bulkinfer.job.limits_spec import LimitsSpec
from bulkinfer.job.model_spec import ModelSpec
from bulkinfer.job.output_spec import OutputSpec
from bulkinfer.job.prompt_spec import PromptSpec, check_conversation
from bulkinfer.job.sampling_spec import SamplingSpec
from bulkinfer.job.section import missing_key, wrong_value

_UNSET = frozenset[str]()


@dataclass(frozen=True, slots=True)
class _Wants:
    """Keys of `prompt`, and whether an answer is drawn."""

    needed: tuple[str, ...]
    allowed: frozenset[str] = _UNSET
    """Besides those that are needed."""
    is_drawn: bool = True


_ANSWER = _Wants((), frozenset({"system", "turns", "user", "messages", "text", "images"}))
_WANTS: Mapping[str, _Wants] = {
    "generate": _Wants((), frozenset({"system", "turns", "user", "messages", "text", "images", "combine"})),
    "classify": _ANSWER,
    "extract": _ANSWER,
    "embed": _Wants(("text",), is_drawn=False),
    "score": _Wants(("query", "document"), is_drawn=False),
}
"""By kind of task."""


def check_prompt(kind: str, prompt: PromptSpec) -> None:
    """Raises PydanticCustomError for a key of `prompt` that is missing, or means nothing to the task."""
    wants = _WANTS[kind]
    given = {key for key in prompt.model_fields_set if getattr(prompt, key) is not None}
    for key in sorted(given - wants.allowed - set(wants.needed)):
        taken = wants.needed or ("user", "messages", "text")
        advice = f"it takes {(' and ' if wants.needed else ' or ').join(f'prompt.{one}' for one in taken)}"
        raise wrong_value(
            f"no such key with task.kind {kind}", advice, path=("prompt", key), found=getattr(prompt, key)
        )
    for key in wants.needed:
        if key not in given:
            raise missing_key(("prompt", key), f"task.kind {kind} needs it")
    if wants.is_drawn:
        check_conversation(prompt)


def check_sampling(kind: str, sampling: SamplingSpec | None) -> None:
    """Raises PydanticCustomError for a missing `max_tokens`, and for `sampling` where nothing is drawn.

    `sampling` None: the section is not given. What classify needs follows from its choices.
    """
    if kind == "classify":
        return
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
    """Raises PydanticCustomError for a chat template where there is no chat, and adapters of a model that writes."""
    if not _WANTS[kind].is_drawn and model.adapters is not None:
        expected = f"no such key with task.kind {kind}"
        raise wrong_value(expected, "remove it", path=("model", "adapters"), found=dict(model.adapters))
    if not _WANTS[kind].is_drawn and model.chat_template is not None:
        raise wrong_value(
            f"no such key with task.kind {kind}",
            "remove it: no chat template is put around a text that is embedded or scored",
            path=("model", "chat_template"),
            found=model.chat_template,
        )


def check_overlong(kind: str, prompt: PromptSpec, limits: LimitsSpec, sampling: SamplingSpec) -> None:
    """Raises PydanticCustomError for documents that are to be split where their answers cannot be joined."""
    if limits.overlong != "split":
        return
    if kind != "generate":
        raise wrong_value(
            f"fail or one of truncate_head, truncate_middle, truncate_tail with task.kind {kind}",
            "only what generate writes can be joined",
            path=("limits", "overlong"),
            found="split",
        )
    if prompt.combine is None:
        raise missing_key(("prompt", "combine"), "limits.overlong split joins the answers to the parts with it")
    if sampling.num_answers > 1:
        advice = "several answers to each part cannot be joined"
        raise wrong_value("1 with limits.overlong split", advice, path=("sampling", "n"), found=sampling.n)
    if sampling.columns is not None and sampling.columns.n is not None:
        raise wrong_value(
            "no such key with limits.overlong split",
            "several answers to each part cannot be joined",
            path=("sampling", "columns", "n"),
            found=sampling.columns.n,
        )


def check_row_form(kind: str, sampling: SamplingSpec, limits: LimitsSpec) -> None:
    """Raises PydanticCustomError for answers of a form of the row's own where the task has one, or joins answers."""
    column = None if sampling.columns is None else sampling.columns.response_format
    if column is None or (kind == "generate" and limits.overlong != "split"):
        return
    why = "limits.overlong split" if kind == "generate" else f"task.kind {kind}"
    advice = "the answers to parts cannot be joined" if kind == "generate" else "the task says what form answers have"
    raise wrong_value(f"no such key with {why}", advice, path=("sampling", "columns", "response_format"), found=column)


def check_reasoning(kind: str, output: OutputSpec) -> None:
    """Raises PydanticCustomError for a parser of answers where none is written."""
    if not _WANTS[kind].is_drawn and output.reasoning is not None:
        expected = f"no such key with task.kind {kind}"
        raise wrong_value(expected, "remove it", path=("output", "reasoning"), found=output.reasoning)


def check_prior(task: ClassifyTask, model: ModelSpec) -> None:
    """Raises PydanticCustomError for a calibration by the model alone where adapters answer."""
    if task.calibrate and model.adapters is not None:
        expected = "no such key with task.calibrate"
        advice = "the prior is asked of the model without an adapter; leave one of the two out"
        raise wrong_value(expected, advice, path=("model", "adapters"), found=dict(model.adapters))


def check_classify(task: ClassifyTask, sampling: SamplingSpec, output: OutputSpec) -> None:
    """Raises PydanticCustomError for parameters with which a label would be cut, or be another than the best."""
    needed, given = most_tokens(task.choices), sampling.max_tokens
    if output.reasoning is not None and task.is_scored:
        expected = "no such key with task.probabilities and task.calibrate, for which nothing is written"
        raise wrong_value(expected, "remove it", path=("output", "reasoning"), found=output.reasoning)
    if output.reasoning is not None and given is None:
        raise missing_key(("sampling", "max_tokens"), "with output.reasoning it does not follow from the choices")
    if given is not None and given < needed:
        expected = f"at least {needed}, which the longest choice may take"
        advice = "leave it out: it follows from the choices"
        raise wrong_value(expected, advice, path=("sampling", "max_tokens"), found=given)
    columns = {} if sampling.columns is None else sampling.columns.to_fields()
    if sampling.num_answers > 1 or "n" in columns:
        path, found = (
            (("sampling", "columns", "n"), columns["n"]) if "n" in columns else (("sampling", "n"), sampling.n)
        )
        raise wrong_value("no n with task.kind classify", "there is one label", path=path, found=found)
    if task.is_scored:
        _check_scored(sampling)
    for stop in sampling.stop or ():
        if any(stop in choice for choice in task.choices):
            raise wrong_value("no text that is part of a choice", path=("sampling", "stop"), found=stop)


def _check_scored(sampling: SamplingSpec) -> None:
    """Nothing is drawn where each choice is asked for by its probability: what says how would mean nothing."""
    reason = "as task.probabilities and task.calibrate take the most probable choice"
    if sampling.temperature > 0:
        raise wrong_value(f"0, {reason}", path=("sampling", "temperature"), found=sampling.temperature)
    given = sampling.model_dump(exclude_none=True, exclude={"temperature", "max_tokens"})
    columns = given.pop("columns", {})
    for place, found in ((("sampling",), given), (("sampling", "columns"), columns)):
        for key, value in found.items():
            raise wrong_value(f"no such key, {reason}", "remove it", path=(*place, key), found=value)


def check_pattern(regex: str, max_tokens: int) -> None:
    """Raises PydanticCustomError for a pattern of which no match fits into the answer."""
    if cannot_fit(regex, max_tokens):
        expected = f"a regular expression with matches that fit into {max_tokens} tokens"
        raise wrong_value(expected, path=("task", "regex"), found=regex)
