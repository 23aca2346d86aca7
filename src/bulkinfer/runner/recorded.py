"""The job as its database keeps it, for people: without what an environment variable or a URL may have of secrets."""

from collections.abc import Mapping
from typing import Any

import orjson

from bulkinfer.job import Job
from bulkinfer.sources import hide_secrets

_NAMES = frozenset({"name", "model"})
"""Sections whose texts are names, by which the job and runs of one model are found again: they stay as they are."""


def write_spec(job: Job) -> str:
    """The whole job as JSON text, with its defaults.

    A text that holds `${NAME}` stands as it is written in the job file, and URLs of the input have no user, no password
    and no query.
    """
    values = job.spec.model_dump(mode="json")
    values["input"]["path"] = [hide_secrets(path) for path in values["input"]["path"]]
    for section, texts in job.expanded.items():
        if section not in _NAMES and section in values:
            hidden = {hide_secrets(text): hide_secrets(written) for text, written in texts.items()}
            values[section] = _replace(values[section], {**texts, **hidden})
    return orjson.dumps(values).decode()


def _replace(value: Any, texts: Mapping[str, str]) -> Any:  # noqa: ANN401 - as JSON has it
    match value:
        case str():
            return texts.get(value, value)
        case list():
            return [_replace(child, texts) for child in value]
        case dict():
            return {key: child if key == "kind" else _replace(child, texts) for key, child in value.items()}
    return value
