"""Which changes keep a run over failures in the task that failed, and that the documentation says just that."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from bulkinfer.fingerprint import ModelIdentity, fingerprint_task
from bulkinfer.job import JobSpec, keep_task
from bulkinfer.job.engine_spec import EngineSection
from bulkinfer.job.limits_spec import LimitsSpec
from bulkinfer.job.output_spec import OutputSpec

HUB = ModelIdentity("org/name", None, None)
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "failures.md"
OTHER_VALUES: dict[str, dict[str, object]] = {
    "limits": {
        "max_concurrency": 3,
        "max_queue_size": 9,
        "max_context_tokens": 4096,
        "overlong": "truncate_head",
        "overlap_tokens": 7,
        "reject_when_queue_full": True,
        "reserve": "25%",
        "max_failures": 3,
    },
    "output": {
        "database": "b.duckdb",
        "reasoning": "qwen3",
        "accept_truncated": True,
        "repair": "retry",
        "max_repairs": 5,
        "lock_timeout_s": 1,
        "stall_timeout_s": 60,
        "client_timeout_s": 5,
    },
    "engine": {
        "kind": "simulated",
        "replicas": 2,
        "vllm": {"block_size": 64},
        "simulated": {"engine_start_s": 1},
        "start_timeout_s": 5,
        "silence_timeout_s": 5,
        "step_timeout_s": 5,
        "max_restarts": 9,
        "grace_s": 1,
    },
}
"""One for each key of the sections that mostly are no part of a task."""


def spec(**sections: dict[str, object]) -> JobSpec:
    values: dict[str, dict[str, object]] = {
        "input": {"path": "a.jsonl"},
        "model": {"path": "org/name"},
        "prompt": {"user": "{{ body }}", "combine": "{{ parts }}"},
        "sampling": {"max_tokens": 48},
        "output": {"database": "a.duckdb"},
    }
    given = {name: {**values.get(name, {}), **section} for name, section in sections.items()}
    return JobSpec.model_validate({"name": "a-job", **values, **given})


def keeps(changed: JobSpec, original: JobSpec) -> bool:
    return fingerprint_task(keep_task(changed, original), HUB) == fingerprint_task(original, HUB)


def find_new_tasks(section: str, **given: object) -> set[str]:
    """Keys of a section that make a new task when they change; `given` is what the section has before."""
    original = spec(**{section: given})
    changed = {key: spec(**{section: {**given, key: value}}) for key, value in OTHER_VALUES[section].items()}
    return {key for key, other in changed.items() if not keeps(other, original)}


@pytest.mark.parametrize(
    ("section", "model"), [("limits", LimitsSpec), ("output", OutputSpec), ("engine", EngineSection)]
)
def test_every_key_of_these_sections_is_tried(section: str, model: type[BaseModel]) -> None:
    assert set(OTHER_VALUES[section]) == set(model.model_fields)


def test_the_documentation_says_which_keys_keep_the_task() -> None:
    text = DOCUMENTATION.read_text()
    told = {
        section: set(re.findall(r"`(\w+)`", exceptions))
        for section, exceptions in re.findall(
            r"^- all of `(\w+)`(?: where [^;]*; else all)? but (.*)$", text, re.MULTILINE
        )
    }
    assert told.pop("output") == find_new_tasks("output")
    assert told.pop("engine") == find_new_tasks("engine")
    assert find_new_tasks("limits") == set()
    assert find_new_tasks("limits", overlong="truncate_tail") == {"overlong"}
    assert (
        told.pop("limits") - {"split"} == find_new_tasks("limits", overlong="split") == {"overlong", "overlap_tokens"}
    )
    assert told == {}


@pytest.mark.parametrize(
    ("accepts", "before", "after", "is_kept"),
    [
        (False, 48, 64, True),
        (False, 48, 32, False),
        (True, 48, 64, False),
    ],
)
def test_more_tokens_keep_a_task_whose_answers_ended_by_themselves(
    accepts: bool, before: int, after: int, is_kept: bool
) -> None:
    output: dict[str, object] = {"accept_truncated": accepts}
    original = spec(sampling={"max_tokens": before}, output=output)
    assert keeps(spec(sampling={"max_tokens": after}, output=output), original) is is_kept
