"""What a job over an OpenAI batch file does not have to say: its requests bring prompt, parameters and names.

Filled in before the job is checked, so that all else takes it for a job that says so itself. A key that is given stays.
"""

from collections.abc import Mapping

from bulkinfer.job.document import Plain
from bulkinfer.job.sampling_spec import SamplingColumns

_CHAT, _COMPLETIONS, _EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
_PROMPTS: Mapping[str, dict[str, Plain]] = {
    _CHAT: {"messages": "messages"},
    _COMPLETIONS: {"text": "{{ prompt }}"},
    _EMBEDDINGS: {"text": "{{ input }}"},
}


def fill_in_openai(values: dict[str, Plain]) -> dict[str, Plain]:
    """The values of a job file with what `input.format: openai` says; of other jobs as they are."""
    section = values.get("input")
    if not isinstance(section, dict) or section.get("format") != "openai":
        return values
    task = values.get("task")
    kind = task.get("kind", "generate") if isinstance(task, dict) else "generate"
    is_embedding = kind == "embed"
    url = section.get("openai_url") or (_EMBEDDINGS if is_embedding else _CHAT)
    prompt = _PROMPTS.get(url) if isinstance(url, str) else None
    if prompt is None:  # the check of the section tells it
        return values
    filled = {**values, "input": {"id": "custom_id", **section, "openai_url": url}}
    filled.setdefault("prompt", prompt)
    sampling = values.get("sampling")
    if kind in {"generate", "extract"} and isinstance(sampling, dict) and sampling.get("columns") is None:
        left_out = _list_left_out(kind, values.get("limits"))
        columns: dict[str, Plain] = {name: name for name in SamplingColumns.model_fields if name not in left_out}
        filled["sampling"] = {**sampling, "columns": columns}
    return filled


def _list_left_out(kind: object, limits: Plain) -> frozenset[str]:
    """What such a job lets no request choose; one that does is a failure. Labels are drawn as the job alone says."""
    if isinstance(limits, dict) and limits.get("overlong") == "split":
        return frozenset({"n", "response_format"})
    return frozenset() if kind == "generate" else frozenset({"response_format"})
