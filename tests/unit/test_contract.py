"""What the answers of a job must be."""

from typing import Any

import pytest

from bulkinfer.contract import Broken, Contract, Kept, make_contract
from bulkinfer.job import JobSpec


def contract_of(task: dict[str, Any], **output: object) -> Contract:
    return make_contract(
        JobSpec.model_validate(
            {
                "name": "a",
                "input": {"path": "a.jsonl"},
                "model": {"path": "org/name"},
                "task": task,
                "prompt": {"user": "{{ body }}"},
                "sampling": {"max_tokens": 40},
                "output": {"database": "a.duckdb", **output},
            }
        )
    )


CLASSIFY = {"kind": "classify", "choices": ["spam", "ham"]}
SCHEMA = {"kind": "extract", "schema": {"type": "object", "required": ["a"]}}
REGEX = {"kind": "extract", "regex": "[A-Z]{2}-[0-9]{1,3}"}


@pytest.mark.parametrize(
    ("task", "text", "judgement"),
    [
        ({}, "anything", Kept(None)),
        (CLASSIFY, "spam", Kept('"spam"', "spam")),
        (CLASSIFY, "\n\nham", Kept('"ham"', "ham")),
        (CLASSIFY, "Spam", Broken("the answer is not one of task.choices")),
        (CLASSIFY, "spam.", Broken("the answer is not one of task.choices")),
        (SCHEMA, '{"a": [1, 2]}', Kept('{"a":[1,2]}')),
        (SCHEMA, '{"a": 1', Broken("the answer is not JSON at character 7 of 7")),
        (SCHEMA, "{}", Broken("the answer does not fit task.schema: $ breaks the rule required: a")),
        (REGEX, "AB-12", Kept('"AB-12"')),
        (REGEX, "AB-12 ", Broken("the answer does not match task.regex as a whole")),
    ],
)
def test_answers_are_held_to_what_the_task_asks_for(task: dict[str, Any], text: str, judgement: Kept | Broken) -> None:
    assert contract_of(task).judge(text) == judgement


def test_answers_that_were_cut_count_only_where_the_job_says_so() -> None:
    assert not contract_of(SCHEMA).accepts_truncated
    assert contract_of(SCHEMA, accept_truncated=True).accepts_truncated
