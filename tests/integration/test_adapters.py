"""Whole runs with LoRA adapters, on the simulated engine: who is asked for which document, and what is asked again."""

from typing import Any

import pytest

from bulkinfer.errors import ExitCode, JobError
from bulkinfer.job import load_job
from bulkinfer.runner import plan_run
from bulkinfer.store import Reader
from tests.adapter_support import write_adapter, write_base
from tests.conftest import JobFolder

ADAPTERS = {"first": "first", "second": "second"}


def select(folder: JobFolder, sql: str) -> list[tuple[Any, ...]]:
    with Reader.open(folder.database) as reader:
        return list(reader.query(sql).rows)


@pytest.fixture
def adapted(folder: JobFolder) -> JobFolder:
    """A job with two adapters; it chooses none yet."""
    write_base(folder.path / "base")
    for seed, name in enumerate(ADAPTERS):
        write_adapter(folder.path / name, num_layers=2, seed=seed)
    folder.spec["model"] = {"path": "base", "adapters": ADAPTERS}
    return folder


def count_answered(folder: JobFolder, **model: str) -> object:
    documents = folder.run(model=model).summary["documents"]
    assert isinstance(documents, dict)
    return documents["succeeded"]


def test_another_adapter_or_one_that_was_trained_anew_is_another_task(adapted: JobFolder) -> None:
    adapted.write_documents([{"id": "a", "body": "b"}])
    assert count_answered(adapted, adapter="first") == 1
    assert count_answered(adapted, adapter="second") == 1
    assert count_answered(adapted, adapter="first") == 0
    (adapted.path / "first").rename(adapted.path / "elsewhere")
    adapted.spec["model"]["adapters"] = {"renamed": "elsewhere"}
    assert count_answered(adapted, adapter="renamed") == 0, "what is in it counts, not how it is called"
    write_adapter(adapted.path / "first", num_layers=2, seed=7)
    adapted.spec["model"]["adapters"] = ADAPTERS
    assert count_answered(adapted, adapter="first") == 1
    names = select(adapted, "select details->>'adapter' from results order by completed_at")
    assert names == [("first",), ("second",), ("first",)]


def test_rows_choose_their_adapter_and_unknown_names_fail_alone(adapted: JobFolder) -> None:
    rows = [("first", "first"), ("second", "second"), ("null", None), ("unknown", "third"), ("number", 3)]
    adapted.write_documents(
        [*({"id": name, "body": "b", "by": value} for name, value in rows), {"id": "absent", "body": "b"}]
    )
    report = adapted.run(model={"adapter_column": "by"}, limits={"max_failures": "90%"})
    assert report.exit_code is ExitCode.OK
    answers = select(adapted, "select document_id, details->>'adapter' from answers order by row")
    assert answers == [("first", "first"), ("second", "second"), ("null", None), ("absent", None)]
    failures = select(adapted, "select document_id, code, message from failures order by row")
    message = "model.adapter_column: the field by: expected a name of model.adapters, or null"
    assert failures == [("unknown", "invalid_field", message), ("number", "invalid_field", message)]


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({}, "model.adapter: the key is missing; add it: it chooses among model.adapters, or adapter_column does"),
        ({"adapter": "frist"}, "model.adapter: expected one of first, second, found the text 'frist'"),
        ({"adapter": "first", "adapter_column": "by"}, "model.adapter_column: expected nothing beside model.adapter"),
        ({"adapter": "first", "adapters": None}, "model.adapter: expected a name in model.adapters, which is missing"),
        (
            {"adapter_column": "by", "adapters": None},
            "model.adapters: the key is missing; add it: model.adapter_column",
        ),
        ({"adapter": "first", "adapters": {"first": "none"}}, "/none does not exist; name the folder that holds"),
        ({"adapter_column": "bye"}, "model.adapter_column is the field bye, which the input lacks"),
    ],
)
def test_adapters_that_cannot_be_are_refused_before_a_model_is_loaded(
    adapted: JobFolder, model: dict[str, Any], told: str
) -> None:
    adapted.write_documents([{"id": "a", "body": "b", "by": "first"}])
    adapted.write_job(model=model)
    with pytest.raises(JobError) as caught:
        plan_run(load_job(adapted.job_path))
    assert told in str(caught.value)


def test_a_rank_above_the_jobs_limit_is_refused(adapted: JobFolder) -> None:
    adapted.write_documents([{"id": "a", "body": "b"}])
    adapted.write_job(model={"adapter": "first"}, engine={"vllm": {"max_lora_rank": 4}})
    with pytest.raises(JobError, match=r"model.adapters.first: expected a rank of at most 4"):
        plan_run(load_job(adapted.job_path))
