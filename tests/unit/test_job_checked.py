"""The section `task` of a job file: what its kinds take, and how what they do not take is explained."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bulkinfer.errors import JobError
from bulkinfer.job import ClassifyTask, ExtractTask, Job, load_job

BASE = """\
name: a-job
input: {path: a.jsonl}
model: {path: org/name}
prompt: {user: "{{ body }}"}
output: {database: a.duckdb}
"""
SAMPLING = "sampling: {max_tokens: 30}\n"

Load = Callable[[str], Job]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a job of `BASE` and more; its name in messages is `job.yaml`."""
    monkeypatch.chdir(tmp_path)

    def load(text: str) -> Job:
        Path("job.yaml").write_text(BASE + text)
        return load_job(Path("job.yaml"))

    return load


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("task: {kind: clasify}", "6:8: task.kind: expected one of generate, "),
        ("task: {kind: classify}", "6:1: task.choices: the key is missing; add it"),
        ("task: {kind: classify, choises: [a, b]}", "6:24: task.choises: unknown key; did you mean choices?"),
        ("task: {kind: classify, choices: []}", "6:24: task.choices: expected at least 2 choices, found a list of 0"),
        (
            "task: {kind: classify, choices: [yes, maybe]}",
            "6:34: task.choices.0: expected text, found true; unquoted yes",
        ),
        ("task: {kind: classify, choices: a}", "6:24: task.choices: expected a list of texts, found the text 'a'"),
        (
            "task: {kind: classify, choices: [ship, shipping]}",
            "6:40: task.choices.1: expected choices of which none begins another: 'ship' (number 1) and 'shipping' (",
        ),
        (
            "task: {kind: classify, choices: [a, b, a]}",
            "6:40: task.choices.2: expected different choices: 'a' (number 1) and 'a' (number 3) are equal",
        ),
        (
            "task: {kind: classify, choices: [long, b]}\nsampling: {max_tokens: 4}",
            "7:12: sampling.max_tokens: expected at least 5, which the longest choice may take",
        ),
        (
            "task: {kind: classify, choices: [a, b], probabilities: true}\nsampling: {temperature: 1}",
            "7:12: sampling.temperature: expected 0, as task.probabilities",
        ),
        (
            "task: {kind: classify, choices: [a, b]}\nsampling: {n: 2, temperature: 1}",
            "7:12: sampling.n: expected no n with task.kind classify",
        ),
        (
            "task: {kind: classify, choices: [not spam, ok]}\nsampling: {stop: [' ']}",
            "7:12: sampling.stop: expected no text that is part of a choice",
        ),
        (f"{SAMPLING}task: {{kind: extract}}", "7:1: task: expected a schema or a regex, found a mapping of 1"),
        (
            f"{SAMPLING}task: {{kind: extract, regex: a, schema: {{}}}}",
            "7:23: task.regex: expected no regex beside a schema, found the text 'a'; remove one",
        ),
        (
            f"{SAMPLING}task: {{kind: extract, regex: 'a('}}",
            "7:23: task.regex: expected a regular expression: missing )",
        ),
        (
            f"{SAMPLING}task: {{kind: extract, regex: 'a{{9000}}'}}",
            "7:23: task.regex: expected a regular expression with",
        ),
        ("task: {kind: extract, regex: 'a'}", "1:1: sampling: the key is missing; add it"),
        (
            f"{SAMPLING}task: {{kind: extract, schema: [1]}}",
            "7:23: task.schema: expected a JSON Schema, or the path of a",
        ),
        (
            f"{SAMPLING}task: {{kind: extract, schema: {{properties: {{a: {{type: txt}}}}}}}}",
            "7:49: task.schema.properties.a.type: expected one of array, boolean, integer, null, number, object",
        ),
        (
            f"{SAMPLING}task: {{kind: extract, schema: {{items: {{uniqueItems: true}}}}}}",
            "7:40: task.schema.items.uniqueItems: expected a schema without uniqueItems, found true; the engine cannot",
        ),
        (
            f"{SAMPLING}task: {{kind: extract, schema: {{properties: {{a: {{$ref: '#/$defs/b'}}}}}}}}",
            "7:49: task.schema.properties.a.$ref: expected a reference to a part of the schema that exists",
        ),
        (f"{SAMPLING}task: {{kind: extract, schema: no.json}}", "7:23: task.schema: the file no.json does not exist"),
    ],
)
def test_what_a_task_does_not_take_is_told_with_its_place(load: Load, text: str, line: str) -> None:
    with pytest.raises(JobError) as raised:
        load(text)
    first = str(raised.value).splitlines()[-1 if "choises" in text else 0]
    assert first.startswith(f"job.yaml:{line}"), first


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "ticket.json:1:2: not JSON"),
        (b"[]", "expected an object"),
        (b"\xff", "not UTF-8"),
        (b"[" * 200_000, "too many levels"),
        (b" " * 1_000_001, "more than 1,000,000 bytes"),
        (b'{"minimum": ' + b"9" * 5000 + b"}", "a number with too many digits"),
        (b'{"enum": [1, 99999999999999999999]}', "something else than a number of at most 64 bits"),
        (b'{"enum": ["\\ud800"]}', "something else than text without half characters"),
        (b'{"type": "txt"}', "task.schema.type: expected one of array"),
    ],
)
def test_a_file_that_holds_no_schema_is_told(load: Load, content: bytes, words: str) -> None:
    Path("ticket.json").write_bytes(content)
    with pytest.raises(JobError) as raised:
        load(f"{SAMPLING}task: {{kind: extract, schema: ticket.json}}")
    assert words in str(raised.value)


def test_a_file_that_is_not_there_is_told_with_the_nearest(load: Load) -> None:
    Path("ticket.schema.json").write_text("{}")
    with pytest.raises(
        JobError, match=r"the file ticket.shema.json does not exist; did you mean .*ticket.schema.json\?"
    ):
        load(f"{SAMPLING}task: {{kind: extract, schema: ticket.shema.json}}")


def test_a_schema_in_a_file_takes_the_place_of_its_path(load: Load) -> None:
    Path("ticket.json").write_text('{"type": "object", "required": ["b", "a"]}')
    task = load(f"{SAMPLING}task: {{kind: extract, schema: ticket.json}}").spec.task
    assert isinstance(task, ExtractTask)
    assert task.answer_schema == {"type": "object", "required": ["b", "a"]}
    assert task.model_dump(mode="json") == {"kind": "extract", "schema": task.answer_schema, "regex": None}


def test_the_length_of_a_label_follows_from_the_longest_choice(load: Load) -> None:
    spec = load("task: {kind: classify, choices: [yes indeed, 'no']}").spec
    assert isinstance(spec.task, ClassifyTask)
    assert (spec.sampling.max_tokens, spec.max_tokens) == (None, 11)
    assert load("task: {kind: classify, choices: [a, b]}\nsampling: {max_tokens: 9}").spec.max_tokens == 9


@pytest.mark.parametrize("key", ["probabilities", "calibrate"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("top_p: 0.5", "12: sampling.top_p"),
        ("logprobs: 3", "12: sampling.logprobs"),
        ("repetition_penalty: 1.1", "12: sampling.repetition_penalty"),
        ("stop: x", "12: sampling.stop"),
        ("columns: {max_tokens: most}", "22: sampling.columns.max_tokens"),
        ("columns: {temperature: warmth}", "22: sampling.columns.temperature"),
    ],
)
def test_where_choices_are_scored_nothing_says_how_they_are_drawn(load: Load, key: str, given: str, told: str) -> None:
    with pytest.raises(JobError) as caught:
        load(f"task: {{kind: classify, choices: [a, b], {key}: true}}\nsampling: {{{given}}}")
    reason = "as task.probabilities and task.calibrate take the most probable choice"
    assert str(caught.value).startswith(f"job.yaml:7:{told}: expected no such key, {reason}, found ")
    assert load(f"task: {{kind: classify, choices: [a, b], {key}: true}}\nsampling: {{temperature: 0, max_tokens: 9}}")


def test_a_calibration_by_the_model_alone_does_not_go_with_adapters(tmp_path: Path) -> None:
    base = BASE.replace("{path: org/name}", "{path: org/name, adapters: {polite: polite}, adapter: polite}")
    (tmp_path / "job.yaml").write_text(f"{base}task: {{kind: classify, choices: [a, b], calibrate: true}}\n")
    with pytest.raises(JobError, match=r"model\.adapters: expected no such key with task\.calibrate"):
        load_job(tmp_path / "job.yaml")
