"""The plan: what is refused before a model is loaded, and what engine and store are told."""

import json
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bulkinfer.engines.base import EngineSpec
from bulkinfer.errors import InputError, JobError
from bulkinfer.job import load_job
from bulkinfer.runner import RunPlan, plan_run
from bulkinfer.runner.plan import MAX_PROBED_FILES, refuse_empty_input
from tests.conftest import JobFolder

NO_ID: dict[str, Any] = {"path": "in.jsonl", "id": None}


def plan(folder: JobFolder, **sections: dict[str, Any]) -> RunPlan:
    """The plan of the folder's job."""
    return plan_run(load_job(folder.write_job(**sections)))


@pytest.mark.parametrize(
    ("template", "missing"),
    [
        ("{{ body }}", None),
        ("{{ bodi }}", "bodi"),
        ("{{ zulu }} {{ alpha }}", "alpha"),  # the first by name
        ("{{ tone | default('calm') }} {{ body }}", None),
        ("{% if tone %}{{ tone }}{% endif %}{{ body }}", None),
        ("{% if body %}{{ tone }}{% endif %}", "tone"),
        ("{{ tone | default('calm') }} {{ zulu }}", "zulu"),
        ("{% for line in lines %}{{ line }}{% endfor %}{{ body }}", "lines"),
        ("{{ tone or body }}", None),
        ("{{ body }} {{ tone | upper }}", "tone"),
        ("Nothing of the document", None),
    ],
)
def test_a_field_that_the_prompt_prints_must_be_in_the_input(
    folder: JobFolder, template: str, missing: str | None
) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    if missing is None:
        plan(folder, prompt={"user": template})
        return
    with pytest.raises(JobError, match=f"the prompt prints the field {missing},"):
        plan(folder, prompt={"user": template})


def test_the_system_message_is_checked_too(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    with pytest.raises(JobError, match="the prompt prints the field tone,"):
        plan(folder, prompt={"user": "{{ body }}", "system": "Be {{ tone }}."})


def test_a_missing_field_is_told_with_the_nearest_and_with_what_is_there(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "secret text", "title": "t"}])
    with pytest.raises(JobError) as caught:
        plan(folder, prompt={"user": "{{ boddy }}"})
    message = str(caught.value)
    assert message.startswith(f"{folder.job_path}: ")
    assert "the field boddy, which the input lacks (up to 10,000 rows were looked at); did you mean body?" in message
    assert "in.jsonl has body, id, title" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("prompt.user", "{{ body", ", line 1: the template does not parse"),
        ("input.where", "id =", ": syntax error"),
        ("input.where", "nothing = 3", ': Referenced column "nothing" not found'),
        ("input.sql", "selec", ": syntax error"),
        ("input.path", "none.jsonl", " 'none.jsonl': "),
        ("model.path", "./nowhere", ": the folder "),
    ],
)
@pytest.mark.parametrize("is_set", [False, True])
def test_an_error_about_a_key_begins_with_the_place_of_the_key(
    folder: JobFolder, key: str, value: str, told: str, *, is_set: bool
) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    section, name = key.split(".")
    if is_set:
        job = load_job(folder.write_job(), [f"{key}={json.dumps(value)}"])
    else:
        job = load_job(folder.write_job(**{section: {name: value}}))
    with pytest.raises((JobError, InputError)) as caught:
        plan_run(job)
    place, found, rest = str(caught.value).partition(key)
    assert found
    assert rest.startswith(told)
    if is_set:
        assert place == "--set "
        return
    file, line, column, end = place.rsplit(":", 3)
    assert (file, end) == (str(folder.job_path), " ")
    named = folder.job_path.read_text().splitlines()[int(line) - 1][int(column) - 1 :]
    assert named.startswith(name)


def test_an_adapter_whose_name_has_a_dot_is_found_in_its_line(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    path = folder.write_job(model={"adapters": {"v1.2": "./nowhere"}, "adapter": "v1.2"})
    line = path.read_text().splitlines().index("    v1.2: ./nowhere") + 1
    with pytest.raises(JobError, match=rf"job\.yaml:{line}:5: model\.adapters\.v1\.2: the folder "):
        plan_run(load_job(path))


def test_an_id_that_no_document_has_is_refused(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    with pytest.raises(JobError, match=r"input\.id is the field ident, which the input lacks"):
        plan(folder, input={"id": "ident"})


@pytest.mark.parametrize("sections", [{"prompt": {"user": "{{ late }}"}}, {"input": {"id": "late"}}])
def test_a_field_that_only_a_later_row_has_is_not_refused(folder: JobFolder, sections: dict[str, Any]) -> None:
    folder.write_documents([*({"id": "a", "body": "b"} for _ in range(5_000)), {"id": "a", "body": "b", "late": "l"}])
    plan(folder, **sections)


def test_no_id_is_fine(folder: JobFolder) -> None:
    folder.write_documents([{"body": "b"}])
    plan(folder, input=NO_ID)


def test_a_field_may_be_in_another_file_of_the_input(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b"}], "1.jsonl")
    pq.write_table(pa.table({"id": ["b"], "tone": ["calm"]}), folder.path / "2.parquet")
    plan(folder, input={"path": ["1.jsonl", "2.parquet"]}, prompt={"user": "{{ body }} {{ tone }}"})
    with pytest.raises(JobError, match=r"1\.jsonl and 1 more has body, id, tone"):
        plan(folder, input={"path": ["1.jsonl", "2.parquet"]}, prompt={"user": "{{ size }}"})


def test_only_so_many_files_are_probed(folder: JobFolder) -> None:
    (folder.path / "many").mkdir()
    for number in range(MAX_PROBED_FILES):
        folder.write_documents([{"id": "a", "body": "b"}], f"many/{number:03}.jsonl")
    folder.write_documents([{"id": "a", "body": "b", "late": "l"}], "many/999.jsonl")
    with pytest.raises(JobError, match="the prompt prints the field late,"):
        plan(folder, input={"path": "many"}, prompt={"user": "{{ late }}"})


@pytest.mark.parametrize("content", [b"", b"\n", b"[1]\nbroken\n"])
def test_an_input_without_a_readable_row_is_not_judged_by_its_fields(folder: JobFolder, content: bytes) -> None:
    folder.input.write_bytes(content)
    plan(folder, prompt={"user": "{{ anything }}"})


def test_layout_is_the_hashed_fields_in_order_and_the_id(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b", "age": 1}])
    user = {"user": "{{ body }} {{ age }} {{ tone | default('calm') }}"}
    assert plan(folder, prompt=user).layout == '[["age","body","tone"],"id"]'
    assert plan(folder, prompt=user, input=NO_ID).layout == '[["age","body","tone"],null]'


def test_the_engine_is_told_what_the_job_says(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    spec = plan(
        folder,
        sampling={"max_tokens": 16, "temperature": 0.5, "top_p": 0.9, "stop": ["END"]},
        limits={"max_concurrency": 3, "max_context_tokens": 99},
        engine={"simulated": {"engine_start_s": 4}, "vllm": {"block_size": 16}},
    ).engine_spec
    assert spec == EngineSpec(
        kind="simulated",
        model=str(folder.path / "model"),
        revision=None,
        sampling={"temperature": 0.5, "max_tokens": 16, "top_p": 0.9, "stop": ["END"]},
        max_concurrency=3,
        max_context_tokens=99,
        arguments={"engine_start_s": 4},
        overlap_tokens=64,
    )


def test_vllm_is_told_its_own_arguments(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    spec = plan(
        folder,
        model={"path": "owner/name", "revision": "abc", "chat_template": "{{ x }}", "trust_remote_code": True},
        engine={"kind": "vllm", "vllm": {"block_size": 16}},
    ).engine_spec
    assert (spec.kind, spec.model, spec.revision, spec.arguments) == ("vllm", "owner/name", "abc", {"block_size": 16})
    assert (spec.chat_template, spec.trust_remote_code) == ("{{ x }}", True)
    assert spec.sampling == {"temperature": 0.0, "max_tokens": 16}


def test_a_plan_knows_files_in_order_and_the_task(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b"}], "b.jsonl")
    folder.write_documents([{"id": "b", "body": "b"}], "a.jsonl")
    found = plan(folder, input={"path": "*.jsonl"})
    assert [file.name for file in found.files] == ["a.jsonl", "b.jsonl"]
    assert isinstance(found.task_fingerprint, UUID)
    assert plan(folder, input={"path": "b.jsonl"}).task_fingerprint == found.task_fingerprint
    other = plan(folder, input={"path": "*.jsonl"}, prompt={"user": "{{ body }}!"})
    assert other.task_fingerprint != found.task_fingerprint


@pytest.mark.parametrize(
    ("sections", "error", "expected"),
    [
        ({"prompt": {"user": "{{ body"}}, JobError, r"prompt\.user"),
        ({"model": {"path": "./nowhere"}}, JobError, "nowhere"),
        ({"input": {"path": "nowhere.jsonl"}}, InputError, r"nowhere\.jsonl"),
    ],
)
def test_what_is_wrong_is_refused(
    folder: JobFolder, sections: dict[str, Any], error: type[Exception], expected: str
) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    with pytest.raises(error, match=expected):
        plan(folder, **sections)


def test_an_empty_input_is_told_with_its_files(folder: JobFolder) -> None:
    for number in range(7):
        (folder.path / f"{number}.jsonl").touch()
    error = refuse_empty_input(plan(folder, input={"path": "*.jsonl"}))
    assert "7 file(s)" in str(error)
    assert "(0.jsonl, 1.jsonl, 2.jsonl, 3.jsonl, 4.jsonl)" in str(error)
    assert str(folder.job_path) in str(error)


@pytest.mark.parametrize(
    ("reserve", "most", "is_warned"), [("25%", 1, True), ("25%", 4, False), ("25%", "auto", False)]
)
def test_a_reserve_of_less_than_one_sequence_is_said(
    folder: JobFolder, reserve: str, most: int | str, *, is_warned: bool
) -> None:
    folder.write_documents([{"id": "1", "body": "word"}])
    found = list(plan(folder, limits={"reserve": reserve, "max_concurrency": most}).iter_warnings())
    expected = "limits.reserve 25% of limits.max_concurrency 1 is less than one sequence"
    assert [text.startswith(expected) for text in found] == [True] * is_warned
