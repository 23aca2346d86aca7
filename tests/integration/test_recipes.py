"""docs/recipes.md, docs/migrate.md: every command that is shown runs, in its order, with the simulated engine."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bulkinfer.job import load_job
from tests.cli_support import call
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
FAULTS = "engine.simulated.faults=[{match: smart plug, kind: truncate, times: 2}]"
"""Some answers are cut, as those of the demo model are."""
SIMULATED = ["--set", "engine.kind=simulated", "--set", "engine.simulated.clock=virtual", "--set", FAULTS]


def find_recipes() -> dict[str, str]:
    """The text of each, by its title."""
    parts = re.split(r"^## \d+\. (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


RECIPES = find_recipes()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a repository with what the recipes need."""
    for name in ("jobs", "sample_data"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / ".models").symlink_to(ROOT / ".models")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_ten_and_each_runs_a_job() -> None:
    assert len(RECIPES) >= 10
    assert all("    bulkinfer run " in text for text in RECIPES.values())


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_runs(title: str, place: Path) -> None:
    text = RECIPES[title]
    for job in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (place / job[0]).write_text(job[1], encoding="utf-8")
    for line in re.findall(r"^    bulkinfer (.+)$", text, re.MULTILINE):
        name, *arguments = shlex.split(line)
        called = call(name, *arguments, *(SIMULATED if name in {"run", "plan"} else ()))
        assert called.exit_code == 0, f"{line}\n{called.stderr}"
        if name == "query":
            assert called.stdout.strip(), line


MIGRATION = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
BODIES = ["one text", "another text", "a third text"]


def find_tools() -> dict[str, str]:
    """What is said to those who come from each of the other tools."""
    parts = re.split(r"^## (.+)$", MIGRATION, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def ask(custom_id: str, body: str, **parameters: object) -> str:
    messages = [{"role": "user", "content": body}]
    request = {"model": "Qwen/Qwen3-8B", "messages": messages, **parameters}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": request})


@pytest.fixture
def input_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the input that the jobs are about."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    wish = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    lines = [ask("1", BODIES[0]), ask("2", BODIES[1], response_format=wish), ask("3", BODIES[2], tools=[{}])]
    (tmp_path / "requests.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "tickets").mkdir()
    for path in (tmp_path / "tickets.parquet", tmp_path / "tickets" / "part.parquet"):
        pq.write_table(pa.table({"id": ["a", "b", "c"], "body": BODIES}), path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_lines(title: str, folder: Path) -> list[str]:
    """Write the job of a section, run its commands on the simulated engine; their names."""
    text = find_tools()[title]
    for job in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (folder / "job.yaml").write_text(job, encoding="utf-8")
    names = []
    for line in re.findall(r"^    bulkinfer (.+)$", text, re.MULTILINE):
        name, *arguments = shlex.split(line)
        called = call(name, *arguments, *([*SIMULATED, "--max-failures", "50%"] if name == "run" else []))
        assert called.exit_code == 0, f"{line}\n{called.stderr}"
        names.append(name)
    return names


def test_what_run_batch_does_is_done_line_by_line(input_of_others: Path) -> None:
    assert run_lines("vLLM's run-batch", input_of_others) == ["run", "export"]
    spec = load_job(input_of_others / "job.yaml").spec
    assert (spec.limits.max_context_tokens, spec.sampling.max_tokens) == (8192, 512)
    answers = [json.loads(line) for line in (input_of_others / "answers.jsonl").read_text().splitlines()]
    contents = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in answers}
    assert contents.keys() == {"1", "2"}
    assert isinstance(json.loads(contents["2"])["a"], bool)
    (error,) = map(json.loads, (input_of_others / "answers_errors.jsonl").read_text().splitlines())
    assert (error["custom_id"], "body.tools" in error["error"]["message"]) == ("3", True)


def test_what_ray_data_does_is_done_for_each_row(input_of_others: Path) -> None:
    assert run_lines("Ray Data LLM", input_of_others) == ["run", "export"]
    spec = load_job(input_of_others / "job.yaml").spec
    assert (spec.limits.max_context_tokens, spec.sampling.max_tokens, spec.engine.replicas) == (8192, 128, 2)
    check_answers(input_of_others / "answers.parquet")


def test_what_a_loop_does_takes_no_job_file(input_of_others: Path) -> None:
    assert run_lines("A loop around LLM.chat", input_of_others) == ["run"]
    check_answers(input_of_others / "answers.parquet")


def check_answers(path: Path) -> None:
    table = pq.read_table(path).to_pydict()
    assert (table["id"], table["body"]) == (["a", "b", "c"], BODIES)
    assert all(table["output"])


def test_no_command_of_the_page_is_left_out() -> None:
    shown = {title for title, text in find_tools().items() if "    bulkinfer " in text}
    assert shown == {"vLLM's run-batch", "Ray Data LLM", "A loop around LLM.chat"}
