"""Whole runs of the task `generate` on the simulated engine: turns, conversations, texts, answers, what rows bring."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bulkinfer.errors import ExitCode, JobError
from bulkinfer.job import load_job
from bulkinfer.runner import plan_run
from bulkinfer.runner.forecast import forecast_run
from bulkinfer.store import Reader
from tests.conftest import JobFolder

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
FREE = {"clock": "virtual", "seconds_per_prompt_token": 0, "seconds_per_output_token": 0}


def select(folder: JobFolder, sql: str) -> list[tuple[Any, ...]]:
    with Reader.open(folder.database) as reader:
        return list(reader.query(sql).rows)


def write_whole(folder: JobFolder, **sections: object) -> None:
    """A job whose sections replace the default's."""
    folder.spec |= sections
    folder.write_job()


def test_turns_of_a_few_shot_prompt_are_counted(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b" * 40}])
    folder.run()
    turns = [{"role": "user", "content": "x" * 400}, {"role": "assistant", "content": "y" * 400}]
    report = folder.run(prompt={"turns": turns})
    assert report.exit_code is ExitCode.OK
    tokens = select(folder, "select prompt_tokens from results order by prompt_tokens")
    assert tokens == [(4 + 10,), (4 + 10 + 2 * (4 + 100),)]


def test_rows_bring_their_conversations_and_wrong_ones_fail_alone(folder: JobFolder) -> None:
    good = [
        {"role": "user", "content": "x" * 4},
        {"role": "assistant", "content": "y" * 4},
        {"role": "user", "content": "z"},
    ]
    folder.write_documents(
        [
            {"id": "good", "talk": good},
            {"id": "json", "talk": json.dumps(good[2:])},
            {"id": "wrong", "talk": good[:2]},
            {"id": "null", "talk": None},
            {"id": "none"},
        ]
    )
    write_whole(folder, prompt={"messages": "talk"}, limits={"max_failures": "90%"})
    assert folder.run_as_written().exit_code is ExitCode.OK
    assert select(folder, "select document_id, prompt_tokens from answers order by row") == [("good", 15), ("json", 5)]
    failed = select(folder, "select document_id, code from failures order by row")
    assert failed == [("wrong", "invalid_field"), ("null", "missing_field"), ("none", "missing_field")]


def test_conversations_of_a_table_are_those_of_lines(folder: JobFolder) -> None:
    talk = [{"role": "user", "content": "hello"}]
    pq.write_table(pa.table({"id": ["a"], "talk": [talk]}), folder.path / "in.parquet")
    folder.write_documents([{"id": "a", "talk": talk}])
    write_whole(folder, prompt={"messages": "talk"}, input={"path": ["in.jsonl", "in.parquet"], "id": "id"})
    report = folder.run_as_written()
    assert report.exit_code is ExitCode.OK
    assert select(folder, "select count(*) from results") == [(1,)]
    assert select(folder, "select count(*) from answers") == [(2,)]


def test_a_plain_text_has_no_chat_template(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b" * 40}])
    write_whole(folder, prompt={"text": "{{ body }}"})
    assert folder.run_as_written().exit_code is ExitCode.OK
    assert select(folder, "select prompt_tokens from results") == [(10,)]


def test_all_answers_are_kept_in_order(folder: JobFolder) -> None:
    folder.write_documents([{"id": f"d{number}", "body": f"body {number}"} for number in range(20)])
    report = folder.run(sampling={"n": 3, "temperature": 1.0}, limits={"max_concurrency": 2})
    assert report.exit_code is ExitCode.OK
    rows = select(folder, "select output, value::varchar, details::varchar, output_tokens, finish_reason from results")
    assert len(rows) == 20
    for output, value, details, output_tokens, finish_reason in rows:
        texts = json.loads(value)
        outputs = json.loads(details)["outputs"]
        assert texts[0] == output
        assert texts == [one["text"] for one in outputs]
        assert len(set(texts)) == 3
        assert sum(one["output_tokens"] for one in outputs) == output_tokens
        assert [len(text.split()) for text in texts] == [one["output_tokens"] for one in outputs]
        assert finish_reason == "stop"


def test_the_first_of_several_answers_is_the_one_that_there_would_be_alone(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    folder.run(sampling={"n": 3, "temperature": 1.0})
    folder.run()
    assert select(folder, "select count(*), count(distinct output) from results") == [(2, 1)]


def test_one_cut_answer_of_several_is_a_failure_that_keeps_all(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    engine = {"kind": "simulated", "simulated": {**FREE, "output_tokens": 20}}
    write_whole(folder, engine=engine, limits={"max_failures": 1})
    report = folder.run(sampling={"n": 2, "temperature": 1.0})
    assert report.exit_code is ExitCode.TOO_MANY_FAILURES, "all documents failed"
    [(code, message, details)] = select(folder, "select code, message, details::varchar from failures")
    assert code == "truncated"
    assert message.startswith("2 of 2 answers were cut, the first at 16 tokens; ")
    assert len(json.loads(details)["outputs"]) == 2


def test_log_probabilities_are_kept_for_each_token(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    folder.run(sampling={"logprobs": 3})
    [(output, details, output_tokens)] = select(folder, "select output, details::varchar, output_tokens from results")
    logprobs = json.loads(details)["logprobs"]
    assert len(logprobs) == output_tokens
    assert "".join(token for token, _, _ in logprobs).rstrip() == output
    assert [len(others) for _, _, others in logprobs] == [2] * output_tokens


def test_rows_bring_sampling_parameters_and_wrong_ones_fail_alone(folder: JobFolder) -> None:
    folder.write_documents(
        [
            {"id": "job", "body": "b"},
            {"id": "own", "body": "b", "most": 3},
            {"id": "both", "body": "b", "most": 4, "answers": 2, "warmth": 1.0},
            {"id": "text", "body": "b", "most": "3"},
            {"id": "large", "body": "b", "warmth": 9},
            {"id": "greedy", "body": "b", "answers": 2},
        ]
    )
    engine = {"kind": "simulated", "simulated": {**FREE, "output_tokens": 2}}
    columns = {"max_tokens": "most", "n": "answers", "temperature": "warmth"}
    write_whole(folder, engine=engine, limits={"max_failures": "90%"})
    report = folder.run(sampling={"max_tokens": 16, "columns": columns})
    assert report.exit_code is ExitCode.OK
    answers = select(folder, "select document_id, output_tokens, value is null from answers order by row")
    assert answers == [("job", 2, True), ("own", 2, True), ("both", 4, False)]
    failures = select(folder, "select document_id, code, message from failures order by row")
    assert [(document_id, code) for document_id, code, _ in failures] == [
        ("text", "invalid_field"),
        ("large", "invalid_field"),
        ("greedy", "invalid_field"),
    ]
    assert failures[0][2] == "sampling.columns.max_tokens: the field most: expected a whole number"


def test_a_changed_parameter_of_a_row_redoes_that_row(folder: JobFolder) -> None:
    documents: list[dict[str, Any]] = [{"id": f"d{number}", "body": f"b{number}", "most": 8} for number in range(5)]
    sampling = {"columns": {"max_tokens": "most"}}
    folder.write_documents(documents)
    folder.run(sampling=sampling)
    documents[2]["most"] = 9
    folder.write_documents(documents)
    report = folder.run(sampling=sampling)
    counts = report.summary["documents"]
    assert isinstance(counts, dict)
    assert (counts["already_done"], counts["succeeded"]) == (4, 1)


def test_a_row_that_asks_for_more_than_the_context_fails_alone_and_the_plan_says_so(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b", "most": 90}, {"id": "b", "body": "b", "most": 10}])
    limits = {"max_context_tokens": 64, "max_failures": "50%"}
    sampling = {"max_tokens": 16, "columns": {"max_tokens": "most"}}
    folder.write_job(limits=limits, sampling=sampling)
    found = forecast_run(plan_run(load_job(folder.job_path)), lambda _: None)
    assert found["expected_failures"] == {"prompt_too_long": {"documents": 1, "is_exact": True}}
    tokens = found["tokens"]
    assert isinstance(tokens, dict)
    assert tokens["output_at_most"] == 10
    folder.run(limits=limits, sampling=sampling)
    assert select(folder, "select document_id, code from failures") == [("a", "prompt_too_long")]
    assert select(folder, "select document_id from answers") == [("b",)]


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"prompt": {"messages": "bdy"}}, "prompt.messages is the field bdy, which the input lacks"),
        (
            {"sampling": {"max_tokens": 8, "columns": {"seed": "sed"}}},
            "sampling.columns.seed is the field sed, which the input lacks",
        ),
    ],
)
def test_a_column_that_no_row_has_is_refused_before_a_model_is_loaded(
    folder: JobFolder, sections: dict[str, Any], told: str
) -> None:
    folder.write_documents([{"id": "a", "body": "b", "seed": 1}])
    write_whole(folder, **sections)
    with pytest.raises(JobError) as caught:
        plan_run(load_job(folder.job_path))
    assert told in str(caught.value)


def test_several_answers_come_once_also_when_the_engine_dies_among_them(folder: JobFolder) -> None:
    folder.write_documents([{"id": f"d{number}", "body": f"body {number}"} for number in range(30)])
    faults = [{"match": "body 7", "kind": "raise", "times": 1}]
    folder.spec["engine"]["simulated"] |= {"faults": faults}
    report = folder.run(sampling={"n": 4, "temperature": 1.0})
    assert report.exit_code is ExitCode.OK
    assert select(folder, "select count(*), count(distinct document_hash) from results") == [(30, 30)]
    assert select(folder, "select distinct json_array_length(value) from results") == [(4,)]


def test_reasoning_stands_beside_the_answer(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b"}])
    folder.run()
    folder.run(output={"reasoning": "qwen3"})
    whole, split = select(folder, "select output, details->>'reasoning' from results order by completed_at")
    assert whole[1] is None
    assert len(split[1].split()) == len(whole[0].split()) // 2
    assert f"{split[1]} {split[0]}" == whole[0]


def test_images_are_read_beside_the_input_and_wrong_ones_fail_alone(folder: JobFolder) -> None:
    (folder.path / "photos").mkdir()
    (folder.path / "photos" / "a.png").write_bytes(PNG)
    (folder.path / "photos" / "text.png").write_text("text")
    rows = {"file": "photos/a.png", "none": None, "missing": "photos/b.png", "text": "photos/text.png", "number": 3}
    folder.write_documents([{"id": name, "body": "b" * 4, "photo": photo} for name, photo in rows.items()])
    report = folder.run(prompt={"images": "photo"}, limits={"max_failures": "90%", "max_context_tokens": 512})
    assert report.exit_code is ExitCode.OK
    answers = select(folder, "select document_id, prompt_tokens from answers order by row")
    assert answers == [("file", 4 + 1 + 256), ("none", 4 + 1)]
    failures = dict(select(folder, "select document_id, message from failures where code = 'invalid_field'"))
    assert set(failures) == {"missing", "text", "number"}
    assert failures["missing"] == "prompt.images: image 1: the file cannot be read: No such file or directory"
    assert not any("photos/" in message for message in failures.values())


def test_images_of_a_table_need_no_file(folder: JobFolder) -> None:
    table = pa.table({"id": ["a", "b"], "body": ["x", "x"], "photo": pa.array([PNG, None], pa.binary())})
    pq.write_table(table, folder.path / "in.parquet")
    limits = {"max_context_tokens": 512}
    report = folder.run(input={"path": "in.parquet"}, limits=limits, prompt={"images": ["photo"]})
    assert report.exit_code is ExitCode.OK
    assert select(folder, "select prompt_tokens from answers order by row") == [(261,), (5,)]


@pytest.mark.engine
def test_a_model_that_takes_no_images_is_refused_before_it_is_loaded(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": "b", "photo": None}])
    folder.write_job(prompt={"images": "photo"}, engine={"kind": "vllm"})
    with pytest.raises(JobError, match=r"prompt.images: the model \(LlamaForCausalLM\) takes no images"):
        plan_run(load_job(folder.job_path))
