"""Job files: what is accepted, and how what is not is explained."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bulkinfer.errors import JobError
from bulkinfer.job import FailureLimit, Job, find_nearest, json_schema, load_job, parse_failure_limit

ROOT = Path(__file__).parents[2]

CONTRACT = r"""
name: ticket-summaries
input:
  path: ../sample_data/tickets.parquet    # file, folder, glob or list
  id: ticket_id                            # optional
model:
  path: ../.models/smollm2-135m-instruct   # hub id or folder
prompt:
  system: You summarise customer support tickets.
  user: "{{ subject }}\n\n{{ body }}"      # fields of the document
sampling: {temperature: 0, max_tokens: 48} # max_tokens must be given
limits:
  max_concurrency: 64
  max_queue_size: 512
  max_context_tokens: 2048
  reject_when_queue_full: false
  max_failures: 5%
engine:
  kind: vllm
  replicas: 1
  vllm: {}
  simulated: {seconds_per_prompt_token: 0.0005, seconds_per_output_token: 0.002, engine_start_s: 0}
output: {database: ../out/tickets.duckdb}
"""
MINIMAL = """\
name: a-job
input: {path: a.jsonl}
model: {path: org/name}
prompt: {user: "{{ body }}"}
sampling: {max_tokens: 48}
output: {database: a.duckdb}
"""

Load = Callable[..., Job]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a job file of the given text; its name in messages is `job.yaml`."""
    monkeypatch.chdir(tmp_path)

    def load(text: str | bytes, *overrides: str) -> Job:
        raw = text if isinstance(text, bytes) else text.encode()
        Path("job.yaml").write_bytes(raw)
        return load_job(Path("job.yaml"), overrides)

    return load


def lines_of(load: Load, text: str | bytes, *overrides: str) -> list[str]:
    with pytest.raises(JobError) as raised:
        load(text, *overrides)
    return str(raised.value).splitlines()


def line_of(load: Load, text: str | bytes, *overrides: str) -> str:
    (line,) = lines_of(load, text, *overrides)
    return line


def test_the_job_file_of_the_contract_loads(load: Load, tmp_path: Path) -> None:
    job = load(CONTRACT)
    assert job.path == tmp_path / "job.yaml"
    assert job.folder == tmp_path
    assert job.input_patterns == ("../sample_data/tickets.parquet",)
    assert job.database_path == tmp_path.parent / "out/tickets.duckdb"
    assert job.model == str(tmp_path.parent / ".models/smollm2-135m-instruct")
    assert job.spec.prompt.user == "{{ subject }}\n\n{{ body }}"
    assert job.spec.limits.max_failures == FailureLimit(share=0.05)
    assert job.spec.sampling.to_engine() == {"temperature": 0.0, "max_tokens": 48}


def test_defaults(load: Load) -> None:
    spec = load(MINIMAL).spec
    assert spec.model_dump(mode="json") == {
        "name": "a-job",
        "input": {
            "path": ["a.jsonl"],
            "id": None,
            "format": "auto",
            "openai_url": None,
            "openai_model": [],
            "where": None,
            "sql": None,
            "sample": None,
            "sample_seed": 0,
            "limit": None,
            "csv": {"delimiter": None, "quote": '"', "escape": None, "encoding": None, "columns": []},
            "text": {"encoding": None},
        },
        "model": {
            "path": "org/name",
            "revision": None,
            "chat_template": None,
            "trust_remote_code": False,
            "adapters": None,
            "adapter": None,
            "adapter_column": None,
        },
        "task": {"kind": "generate"},
        "prompt": {
            "system": None,
            "turns": None,
            "user": "{{ body }}",
            "messages": None,
            "images": None,
            "combine": None,
            "text": None,
            "query": None,
            "document": None,
        },
        "sampling": {
            "temperature": 0.0,
            "max_tokens": 48,
            "top_p": None,
            "top_k": None,
            "min_p": None,
            "presence_penalty": None,
            "frequency_penalty": None,
            "repetition_penalty": None,
            "stop": None,
            "seed": None,
            "n": None,
            "logit_bias": None,
            "logprobs": None,
            "columns": None,
        },
        "limits": {
            "max_concurrency": "auto",
            "max_queue_size": 512,
            "max_context_tokens": "auto",
            "overlong": "fail",
            "overlap_tokens": 64,
            "reject_when_queue_full": False,
            "reserve": "0%",
            "max_failures": "5%",
        },
        "engine": {
            "kind": "vllm",
            "replicas": 1,
            "vllm": {},
            "simulated": {},
            "start_timeout_s": 900.0,
            "silence_timeout_s": 600.0,
            "step_timeout_s": 300.0,
            "max_restarts": 3,
            "grace_s": 30.0,
        },
        "output": {
            "database": "a.duckdb",
            "reasoning": None,
            "accept_truncated": False,
            "repair": "none",
            "max_repairs": 3,
            "lock_timeout_s": 10.0,
            "stall_timeout_s": 300.0,
            "client_timeout_s": 30.0,
        },
    }


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_job_in_jobs_loads(path: Path) -> None:
    is_pooling = path.stem in {"embed", "score"}
    name = "all-minilm-l6-v2" if is_pooling else "smollm2-135m-instruct"
    assert load_job(path).spec.model.path == f"../.models/{name}"


def test_the_two_jobs_are_there() -> None:
    assert {path.name for path in (ROOT / "jobs").glob("*.yaml")} >= {"summarize.yaml", "answer.yaml"}


def test_sampling_goes_to_the_engine_as_given(load: Load) -> None:
    sampling = "sampling: {max_tokens: 8, temperature: 1, top_p: 0.9, top_k: 5, min_p: 0, seed: 3, stop: END}"
    job = load(MINIMAL.replace("sampling: {max_tokens: 48}", sampling))
    assert job.spec.sampling.to_engine() == {
        "max_tokens": 8, "temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.0, "seed": 3, "stop": ["END"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "is_local", "model"),
    [
        ("org/name", False, "org/name"),
        ("name", False, "name"),
        ("a-folder", True, "{folder}/a-folder"),
        ("a-folder/inner", True, "{folder}/a-folder/inner"),
        ("./none", True, "{folder}/none"),
        ("../none", True, "{above}/none"),
        (".models/none", True, "{folder}/.models/none"),
        ("/none/at/all", True, "/none/at/all"),
        ("a/b/c", True, "{folder}/a/b/c"),
        ("~/none", True, "{home}/none"),
        ("~nobody-here/none", True, "{folder}/~nobody-here/none"),
        ("x" * 300, False, "x" * 300),
    ],
)
def test_folders_and_hub_ids_are_told_apart(load: Load, tmp_path: Path, path: str, is_local: bool, model: str) -> None:
    (tmp_path / "a-folder/inner").mkdir(parents=True)
    job = load(MINIMAL, f"model.path={path}")
    assert job.is_local_model is is_local
    home = os.path.realpath(Path.home())
    assert job.model == model.format(folder=tmp_path, above=tmp_path.parent, home=home)


def test_one_database_under_two_names_has_one_path(load: Load, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert load(MINIMAL, "output.database=link/a.duckdb").database_path == tmp_path / "real/a.duckdb"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("name: a-job\n", "", "job.yaml:1:1: name: the key is missing; add it"),
        ("{max_tokens: 48}", "{}", "job.yaml:5:1: sampling.max_tokens: the key is missing; add it"),
        ("max_tokens", "max_token", "did you mean max_tokens?"),
        ("a-job", "no", "job.yaml:1:1: name: expected text, found false; unquoted yes, no, on, off, true"),
        ("a-job", "2024", "job.yaml:1:1: name: expected text, found the whole number 2024; put it in quotes"),
        ("a-job", "a job", "job.yaml:1:1: name: expected letters, digits and . _ - only, found the text 'a job'"),
        ("a-job", "x" * 101, "name: expected at most 100 characters, found the text '" + "x" * 37 + "...'"),
        ("48", "'48'", "job.yaml:5:12: sampling.max_tokens: expected a whole number, found the text '48'; write it"),
        ("48", "true", "sampling.max_tokens: expected a whole number, found true"),
        ("48", "48.0", "sampling.max_tokens: expected a whole number, found the number 48.0"),
        ("48", "0", "sampling.max_tokens: expected at least 1, found the whole number 0"),
        ("48", "[48]", "sampling.max_tokens: expected a whole number, found a list of 1"),
        (
            "{max_tokens: 48}",
            "{max_tokens: 2048}\nlimits: {max_context_tokens: 2048}",
            "job.yaml:5:12: sampling.max_tokens: expected less than limits.max_context_tokens (2048), ",
        ),
        (
            "output:",
            "limits: {max_context_tokens: all}\noutput:",
            "job.yaml:6:10: limits.max_context_tokens: expected a whole number, or auto, found the text 'all'",
        ),
        (
            "output:",
            "limits: {max_concurrency: 0}\noutput:",
            "job.yaml:6:10: limits.max_concurrency: expected at least 1, found the whole number 0",
        ),
        ("48", "1, temperature: .nan", "sampling.temperature: expected a finite number, found the number nan"),
        ("48", "1, temperature: 2.5", "sampling.temperature: expected at most 2.0, found the number 2.5"),
        ("48", "1, top_p: 0", "sampling.top_p: expected more than 0.0, found the whole number 0"),
        ("48", "1, stop: [a, 3]", "job.yaml:5:37: sampling.stop.1: expected text, found the whole number 3"),
        ("48", "1, stop: []", "sampling.stop: expected at least 1 entry, found a list of 0"),
        ('"{{ body }}"', "[secret]", "job.yaml:4:10: prompt.user: expected text, found a list of 1"),
        ('"{{ body }}"', "''", "prompt.user: expected text that is not empty, found a text of 0 characters"),
        ("user:", "system: 3, user:", "prompt.system: expected text, found the whole number 3"),
        ("{path: a.jsonl}", "a.jsonl", "job.yaml:2:1: input: expected a mapping of keys, found the text 'a.jsonl'"),
        ("{path: a.jsonl}", "", ", found nothing (null); remove the key, or give it keys"),
        ("a.jsonl", "' '", "job.yaml:2:9: input.path.0: expected a path, found the text ' '"),
        ("a.jsonl", "{a: 1}", "input.path: expected text or a list of texts, found a mapping of 1"),
        (
            "output:",
            "engine: {kind: vlm}\noutput:",
            "engine.kind: expected 'vllm' or 'simulated', found the text 'vlm'",
        ),
        ("output:", "engine: {replicas: 0}\noutput:", "engine.replicas: expected 1 to 1024, or auto, found the whole"),
        ("output:", "engine: {replicas: -1}\noutput:", "engine.replicas: expected 1 to 1024, or auto, found the whole"),
        (
            "output:",
            "engine: {replicas: 1025}\noutput:",
            "engine.replicas: expected 1 to 1024, or auto, found the whole",
        ),
        ("output:", "engine: {replicas: many}\noutput:", "expected 1 to 1024, or auto, found the text 'many'"),
        ("output:", "engine: {replicas: true}\noutput:", "engine.replicas: expected 1 to 1024, or auto, found true"),
        ("output:", "engine: {vllm: {a: {b: [.inf]}}}\noutput:", "engine.vllm.a: expected a finite number"),
        ("output:", "engine: {vllm: 3}\noutput:", "engine.vllm: expected a mapping, found the whole number 3"),
        (
            "output:",
            "limits: {max_failures: 0.05}\noutput:",
            'expected a count such as 100, or a share such as "5%" (0% to 100%), found the number 0.05',
        ),
        ("output:", "limits: {max_failures: '7'}\noutput:", "found the text '7'; write a count without quotes"),
        ("output:", "limits: {max_failures: -1}\noutput:", "limits.max_failures: expected a count"),
        ("output:", "limits: {max_failures: true}\noutput:", "limits.max_failures: expected a count"),
        (
            "output:",
            "limits: {reserve: 0.25}\noutput:",
            'limits.reserve: expected a share such as "25%" (0% to less than 100%), found the number 0.25; write 25%',
        ),
        ("output:", "limits: {reserve: 100%}\noutput:", "(0% to less than 100%), found the text '100%'"),
        ("output:", "limits: {reserve: -5%}\noutput:", "(0% to less than 100%), found the text '-5%'"),
        ("output:", "limits: {reserve: 25}\noutput:", "(0% to less than 100%), found the whole number 25"),
        ("output:", "limits: {reserve: true}\noutput:", "(0% to less than 100%), found true"),
        ("output:", "limits: {reserve: some}\noutput:", "(0% to less than 100%), found the text 'some'"),
        ("output:", "limits: {reject_when_queue_full: 1}\noutput:", "expected true or false, found the whole number 1"),
        ("output:", "limts: {}\noutput:", "job.yaml:6:1: limts: unknown key; did you mean limits?"),
        ("output:", "zzz: {}\noutput:", "zzz: unknown key; known are name, input, model, task, prompt, "),
        ("output:", "? [a]\n: b\noutput:", "expected a text as key; put it in quotes"),
        ("output:", "3: b\noutput:", "job.yaml:6:1: expected a text as key; put it in quotes"),
    ],
)
def test_faults_name_place_key_and_what_was_expected_and_found(load: Load, old: str, new: str, line: str) -> None:
    assert old in MINIMAL
    assert any(line in found for found in lines_of(load, MINIMAL.replace(old, new)))


def test_all_problems_are_told_at_once_and_no_more_than_ten(load: Load) -> None:
    lines = lines_of(load, MINIMAL + "".join(f"key{number}: 1\n" for number in range(25)))
    assert len(lines) == 11
    assert lines[9].startswith("job.yaml:16:1: key9: unknown key")
    assert lines[10] == "... and 15 more problems"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "job.yaml: the job file is empty"),
        ("# only\n# comments\n", "job.yaml: the job file is empty"),
        ("---\n", "job.yaml: the job file is empty"),
        ("- a\n- b", "job.yaml:1:1: expected keys and values at the top, such as `name: my-job`, found a list of 2"),
        ("secret", "such as `name: my-job`, found a text of 6 characters"),
        ("a: [1,\nb: 2", "job.yaml:2:5: not valid YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("a:\n\tb: 1", "job.yaml:2:1: not valid YAML: while scanning for the next token, found character '\\t'"),
        ("a: 1\n---\nb: 2", "job.yaml:2:1: not valid YAML: expected a single document in the stream"),
        ("a: 1\nb: 2\na: 3", "job.yaml:3:1: a: given twice, first in line 1; remove one"),
        ("x: {a: 1, a: 2}", "job.yaml:1:11: a: given twice, first in line 1"),
        ("a: x\0", "job.yaml:1:5: not valid YAML: a control character"),
        (b"a: 1\nb: \xff\n", "job.yaml:2: not UTF-8 text (byte 8); save the job file as UTF-8"),
        (b"12345678DUCK@\x00\xff", "job.yaml: is a database, and here stands a job file"),
        ("a: 1\n".encode("utf-16"), "job.yaml:1: not UTF-8 text (byte 0)"),
        ("a: !!python/object/apply:os.system [ls]", "job.yaml:1:4: a YAML tag (!name) is not allowed; "),
        ("a: !!python/name:os.system ''", "job.yaml:1:4: a YAML tag (!name) is not allowed; "),
        ("a: !!binary eA==", "job.yaml:1:4: a YAML tag (!name) is not allowed; "),
        ("a: !!set {x}", "job.yaml:1:4: a YAML tag (!name) is not allowed; "),
        ("a: !own x", "job.yaml:1:4: a YAML tag (!name) is not allowed; "),
        ("a: !!int x", "job.yaml:1:4: int: the text does not fit its tag"),
        ("a: !!bool x", "job.yaml:1:4: bool: the text does not fit its tag"),
        ('a: "\\UFFFFFFFF"', "job.yaml: not valid YAML: a number or an escape"),
        ("%YAML 1." + "9" * 5000 + "\n---\na: 1", "job.yaml: not valid YAML: a number or an escape"),
        ("a: *b", "job.yaml:1:4: not valid YAML: an alias (*name) without its anchor"),
        ("a: &a [*a]", "too many levels or values"),
        ("a: &a {<<: *a}", "too many levels or values"),
        ("a: " + "[" * 50_000, "more than 50 levels"),
        ("a: " + "{a: " * 50_000, "more than 50 levels"),
        ("a: 99999999999999999999999", "job.yaml:1:4: expected a number of at most 64 bits"),
        ('a: ["\\uD800"]', "job.yaml:1:5: expected text without half characters"),
        ('"\\uD800": 1', "job.yaml:1:1: expected text without half characters"),
        ("<<: 3", "job.yaml:1:5: <<: expected a mapping or a list of mappings"),
        ("<<: [3]", "job.yaml:1:6: <<: expected a mapping or a list of mappings"),
    ],
)
def test_files_that_are_no_job_files(load: Load, text: str | bytes, line: str) -> None:
    assert line in line_of(load, text)


def test_aliases_that_multiply_are_refused_soon(load: Load) -> None:
    names = "abcdefghij"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in pairwise(names)]
    assert "do aliases (*name) repeat each other?" in line_of(load, "\n".join(lines))


def test_anchors_aliases_and_merge_keys_work(load: Load) -> None:
    text = MINIMAL.replace(
        "{max_tokens: 48}", "&s\n  <<: [{max_tokens: 5, top_k: 1}, {top_k: 2, seed: 4}]\n  max_tokens: 7"
    )
    sampling = load(text).spec.sampling
    assert (sampling.max_tokens, sampling.top_k, sampling.seed) == (7, 1, 4)
    assert load(MINIMAL.replace("a-job", "&n a-job").replace("org/name", "*n")).spec.model.path == "a-job"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("1_000", 1000),
        ("0x1F", 31),
        ("true", True),
        ("off", False),
        ("~", None),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("1.2.3", "1.2.3"),
        ("0b1", "0b1"),
        ("+", "+"),
        ("'3'", "3"),
        ("=", "="),
        ("9" * 60, "9" * 60),
        (r'"\ud83d\ude00"', "\U0001f600"),
    ],
)
def test_yaml_values(load: Load, text: str, value: object) -> None:
    job = load(MINIMAL + f"engine: {{vllm: {{x: {text}, y: [{text}]}}}}\n")
    assert job.spec.engine.vllm == {"x": value, "y": [value]}
    assert type(job.spec.engine.vllm["x"]) is type(value)


def test_a_byte_order_mark_is_fine(load: Load) -> None:
    assert load(b"\xef\xbb\xbf" + MINIMAL.encode()).spec.name == "a-job"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "summarize.yaml").write_text(MINIMAL)
    with pytest.raises(JobError) as raised:
        load_job(tmp_path / "sumarize.yaml")
    expected = f"{tmp_path}/sumarize.yaml: the job file does not exist; did you mean {tmp_path}/summarize.yaml?"
    assert str(raised.value) == expected
    with pytest.raises(JobError, match=r"expected a job file, found a folder; did you mean .*/summarize.yaml\?"):
        load_job(tmp_path)
    with pytest.raises(JobError, match="cannot be read: Not a directory"):
        load_job(tmp_path / "summarize.yaml" / "x")
    with pytest.raises(JobError, match="cannot be read: File name too long"):
        load_job(tmp_path / ("x" * 300))
    with pytest.raises(JobError, match="cannot be read: not a file name"):
        load_job(tmp_path / "a\0b")


def test_a_file_without_read_permission(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(MINIMAL)
    path.chmod(0)
    # A relative path: the folders above a test's are closed to others, and root, who can read all, becomes one here.
    here, user = Path.cwd(), os.geteuid()
    os.chdir(tmp_path)
    try:
        if user == 0:
            os.seteuid(65534)
        with pytest.raises(JobError, match="cannot be read: Permission denied"):
            load_job(Path("job.yaml"))
    finally:
        os.seteuid(user)
        os.chdir(here)


def test_environment_variables(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKINFER_X", 'a"\nname: b\\{{ x }}${BULKINFER_X}')
    user = "'${BULKINFER_X}|$${BULKINFER_X}|${{ price }}|$BULKINFER_X|${1}|$$${BULKINFER_X}'"
    spec = load(MINIMAL.replace('"{{ body }}"', user)).spec
    value = 'a"\nname: b\\{{ x }}${BULKINFER_X}'
    assert spec.prompt.user == f"{value}|${{BULKINFER_X}}|${{{{ price }}}}|$BULKINFER_X|${{1}}|$${{BULKINFER_X}}"
    assert spec.name == "a-job"


def test_environment_variables_that_are_not_set_are_all_named(load: Load) -> None:
    text = MINIMAL.replace("a.jsonl", "['${BULKINFER_NO}/a', b]").replace("a.duckdb", "'${BULKINFER_NOT}'")
    advice = "is not set; set it, or write $${{{0}}} for the text itself"
    assert lines_of(load, text) == [
        f"job.yaml:2:16: input.path.0: the environment variable BULKINFER_NO {advice.format('BULKINFER_NO')}",
        f"job.yaml:6:10: output.database: the environment variable BULKINFER_NOT {advice.format('BULKINFER_NOT')}",
    ]


def test_values_from_the_environment_and_prompts_are_not_shown(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKINFER_TOKEN", "very secret")
    assert line_of(load, MINIMAL.replace("a-job", "${BULKINFER_TOKEN}")).endswith("found a text of 11 characters")
    for key in ("prompt.user", "prompt.system", "model.chat_template"):
        line = line_of(load, MINIMAL, f"{key}=[very secret]")
        assert line == f"--set {key}: expected text, found a list of 1"


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("limits.max_concurrency=8", "limits.max_concurrency", 8),
        ("limits.reject_when_queue_full=true", "limits.reject_when_queue_full", True),
        ("limits.max_failures=3%", "limits.max_failures", FailureLimit(share=0.03)),
        ("limits.max_failures=3", "limits.max_failures", FailureLimit(count=3)),
        ("limits.reserve=12.5%", "limits.reserve", 0.125),
        ("limits.reserve=0%", "limits.reserve", 0.0),
        ("sampling.temperature=1", "sampling.temperature", 1.0),
        ("sampling.stop=[a, b]", "sampling.stop", ("a", "b")),
        ("sampling={max_tokens: 5, seed: 1}", "sampling.seed", 1),
        ("engine.vllm.block_size=32", "engine.vllm", {"block_size": 32}),
        ("engine.vllm.a.b={c: [1]}", "engine.vllm", {"a": {"b": {"c": [1]}}}),
        (" limits.max_concurrency = 8 ", "limits.max_concurrency", 8),
        ("input.path=*.jsonl", "input.path", ("*.jsonl",)),
        ("input.path=a=b.jsonl", "input.path", ("a=b.jsonl",)),
        ("prompt.user={{ a }} # {{ b }}", "prompt.user", "{{ a }} # {{ b }}"),
        ("prompt.user=a # b", "prompt.user", "a # b"),
        ("prompt.user={% if a %}{{ a }}{% endif %}", "prompt.user", "{% if a %}{{ a }}{% endif %}"),
        ("prompt.user=Answer: yes or no", "prompt.user", "Answer: yes or no"),
        ("prompt.user='3'", "prompt.user", "3"),
        ("prompt.user=- a\n- b", "prompt.user", "- a\n- b"),
        ("prompt.user=@ %", "prompt.user", "@ %"),
        ("model.revision=null", "model.revision", None),
        ("model.revision=", "model.revision", None),
        ("name=off-line", "name", "off-line"),
    ],
)
def test_overrides(load: Load, override: str, path: str, value: object) -> None:
    found: object = load(MINIMAL, override).spec
    for key in path.split("."):
        found = getattr(found, key)
    assert found == value
    assert type(found) is type(value)


def test_later_overrides_win_and_the_rest_of_a_section_stays(load: Load) -> None:
    job = load(CONTRACT, "limits.max_concurrency=8", "limits.max_concurrency=9")
    assert (job.spec.limits.max_concurrency, job.spec.limits.max_queue_size) == (9, 512)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("limits.max_concurency=8", "--set limits.max_concurency: unknown key; did you mean max_concurrency?"),
        ("limit.max_concurrency=8", "--set limit: unknown key; did you mean limits?"),
        ("limits.max_concurrency", "--set limits.max_concurrency: expected key.path=value, such as "),
        ("=3", "--set '': expected key.path=value"),
        ("limits.=3", "--set limits.: expected key.path=value"),
        ("limits.max_concurrency=many", "--set limits.max_concurrency: expected a whole number, or auto, found the "),
        ("limits.max_concurrency=1.5", "--set limits.max_concurrency: expected a whole number, or auto, found the num"),
        ("limits.max_concurrency=true", "--set limits.max_concurrency: expected a whole number, or auto, found true"),
        (
            "limits.max_concurrency='64'",
            "--set limits.max_concurrency: expected a whole number, found the text '64'; w",
        ),
        ("name.x=3", "--set name.x: name has no keys below it; set it as a whole"),
        ("input.path.0=x", "--set input.path.0: path has no keys below it; set it as a whole"),
        ("limits=3", "--set limits: expected a mapping of keys, found the whole number 3"),
        ("sampling={}", "--set sampling.max_tokens: the key is missing; add it"),
        ("input.path=[ab", "--set input.path: not valid YAML: "),
        ("input.path={a: 1, a: 2}", "--set input.path: a: given twice"),
        ("name=!!python/name:os.system x", "--set name: a YAML tag (!name) is not allowed; "),
        ("name=${BULKINFER_NO}", "--set name: the environment variable BULKINFER_NO is not set"),
        ("limits.max_context_tokens=40", "job.yaml:5:12: sampling.max_tokens: expected less than limits.max_context"),
    ],
)
def test_overrides_that_are_wrong(load: Load, override: str, line: str) -> None:
    assert line_of(load, MINIMAL, override).startswith(line)


def test_overrides_that_are_wrong_are_told_together_with_the_file(load: Load) -> None:
    lines = lines_of(load, MINIMAL + "zzz: 1\n", "limits.max_queue_size=0")
    assert [line.split(": ")[0] for line in lines] == ["--set limits.max_queue_size", "job.yaml:7:1"]


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("0", FailureLimit(count=0), "0"),
        ("100", FailureLimit(count=100), "100"),
        ("5%", FailureLimit(share=0.05), "5%"),
        ("0.5%", FailureLimit(share=0.005), "0.5%"),
        ("0%", FailureLimit(share=0.0), "0%"),
        ("100%", FailureLimit(share=1.0), "100%"),
        ("29 %", FailureLimit(share=0.29), "29%"),
    ],
)
def test_failure_limits(text: str, limit: FailureLimit, shown: str) -> None:
    assert parse_failure_limit(text) == limit
    assert str(limit) == shown


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5", "101%", "100.1%", "%", "5%%", "٣", "1" * 13, "5 percent", "\n5"]
)
def test_what_is_no_failure_limit(text: str) -> None:
    with pytest.raises(JobError, match="expected a count such as 100"):
        parse_failure_limit(text)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("max_concurency", "max_concurrency"),
        ("MAX_TOKENS", "max_tokens"),
        ("zzz", None),
        ("", None),
        ("x" * 10**6, None),
    ],
)
def test_nearest_name(name: str, nearest: str | None) -> None:
    assert find_nearest(name, ["max_concurrency", "max_tokens", "max_queue_size"]) == nearest


def test_the_committed_schema_is_current() -> None:
    committed = (ROOT / "docs/job.schema.json").read_text(encoding="utf-8")
    assert orjson.loads(committed) == json_schema(), "renew it: bulkinfer schema > docs/job.schema.json"
    assert committed.endswith("}\n")


def test_the_schema_helps_editors() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["name", "input", "model", "output"]
    assert schema["allOf"][0]["else"] == {"required": ["prompt"]}, "unless the input is an OpenAI batch file"
    assert schema["else"] == {"required": ["sampling"]}, "unless the task is to embed or to score"
    sections = {name: part for name, part in schema["$defs"].items() if name != "JsonValue"}
    for section in (schema, *sections.values()):
        assert section["additionalProperties"] is False
        assert section["description"]
        assert all("description" in key or "$ref" in key for key in section["properties"].values()), section["title"]
    limits = sections["LimitsSpec"]["properties"]
    assert limits["max_failures"]["default"] == "5%"
    assert limits["max_concurrency"] == {
        "default": "auto", "examples": ["auto", 64], "title": "Max Concurrency",
        "description": "Sequences active in the engine; `auto`: as many as suit the machine and the documents.",
        "oneOf": [{"const": "auto", "type": "string"}, {"maximum": 65536, "minimum": 1, "type": "integer"}],
    }  # fmt: skip


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=20)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | SCALARS, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["name", "input", "model", "prompt", "sampling", "limits", "engine", "output", "zzz"])
INNER_KEYS = st.sampled_from(
    ["path", "user", "max_tokens", "stop", "max_failures", "vllm", "kind", "replicas", "database"]
)
PIECES = [
    "{{",
    "&a ",
    "*a",
    "<<: ",
    "!!int ",
    "- ",
    "? ",
    "${HOME}",
    "${X",
    '"',
    "'",
    "\n",
    "\t",
    "%",
    "---\n",
    "|\n",
    "\0",
    ": ",
]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.lists(st.tuples(KEYS, INNER_KEYS, TREES, st.booleans()), max_size=4), TREES)
def test_mutated_values_raise_nothing_but_job_errors(
    load: Load, edits: list[tuple[str, str, object, bool]], override: object
) -> None:
    job: dict[str, object] = yaml.safe_load(CONTRACT)
    for key, inner_key, value, is_inner in edits:
        section = job.get(key)
        job[key] = {**section, inner_key: value} if is_inner and isinstance(section, dict) else value
    text = yaml.safe_dump(job, allow_unicode=False)
    try:
        load(text, f"limits.max_failures={override}", f"engine.vllm.{override}=1")
    except JobError as error:
        assert 1 <= len(str(error).splitlines()) <= 11  # noqa: PT017 - most texts raise, some may not


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, len(CONTRACT)), st.integers(0, 30), st.sampled_from(PIECES) | st.text(max_size=3))
    )
)
def test_mutated_text_raises_nothing_but_job_errors(load: Load, edits: list[tuple[int, int, str]]) -> None:
    text = CONTRACT
    for start, num_dropped, piece in edits:
        text = text[:start] + piece + text[start + num_dropped :]
    try:
        load(text)
    except JobError as error:
        assert str(error).startswith("job.yaml")  # noqa: PT017 - most texts raise, some may not
