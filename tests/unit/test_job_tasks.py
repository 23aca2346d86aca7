"""The section `task` of job files: what each kind takes, and what it refuses."""

from pathlib import Path

import pytest

from bulkinfer.errors import JobError
from bulkinfer.job import EmbedTask, Job, load_job

MINIMAL = """\
name: a-job
input: {path: a.jsonl}
model: {path: org/name}
prompt: {user: "{{ body }}"}
sampling: {max_tokens: 48}
output: {database: a.duckdb}
"""
EMBED = MINIMAL.replace("user: ", "text: ").replace("sampling: {max_tokens: 48}", "task: {kind: embed}")
SCORE = EMBED.replace("embed", "score").replace("text: ", "document: x, query: ")


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job file's name in messages is `job.yaml`."""
    monkeypatch.chdir(tmp_path)


def load(text: str, *overrides: str) -> Job:
    Path("job.yaml").write_text(text, encoding="utf-8")
    return load_job(Path("job.yaml"), overrides)


def line_of(text: str, *overrides: str) -> str:
    with pytest.raises(JobError) as raised:
        load(text, *overrides)
    (line,) = str(raised.value).splitlines()
    return line


def test_what_is_embedded_or_scored_needs_no_sampling() -> None:
    embed, score = load(EMBED).spec, load(SCORE).spec
    assert embed.task == EmbedTask(kind="embed", normalize=True)
    assert embed.prompt.templates == {"text": "{{ body }}"}
    assert (embed.writes_answers, embed.max_tokens) == (False, 0)
    assert list(score.prompt.templates) == ["query", "document"]
    assert load(EMBED, "task.normalize=false").spec.task == EmbedTask(kind="embed", normalize=False)
    assert load(MINIMAL, "task={}").spec.task.kind == "generate"


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        (EMBED, "task.kind=embedd", "task.kind: expected one of generate, classify, extract, embed, score, found the"),
        (EMBED, "task.kind=3", "--set task.kind: expected one of generate, classify, extract, embed, score, found the"),
        (EMBED, "task=embed", "--set task: expected a mapping of keys, found the text 'embed'; write {kind: embed}"),
        (EMBED, "task=[embed]", "--set task: expected a mapping of keys, found a list of 1"),
        (EMBED, "task.normalise=false", "--set task.normalise: unknown key; did you mean normalize?"),
        (EMBED, "task.normalize=1", "--set task.normalize: expected true or false, found the whole number 1"),
        (SCORE, "task.normalize=true", "--set task.normalize: unknown key; known are kind"),
        (MINIMAL, "task.normalize=true", "--set task.normalize: unknown key; known are kind"),
        (EMBED, "prompt={user: x}", "prompt.user: expected no such key with task.kind embed, found a text of 1 "),
        (EMBED, "prompt={}", "--set prompt.text: the key is missing; add it: task.kind embed needs it"),
        (SCORE, "prompt={query: x}", "--set prompt.document: the key is missing; add it: task.kind score needs it"),
        (SCORE, "prompt.text=x", "prompt.text: expected no such key with task.kind score, found a text of 1 "),
        (SCORE, "prompt.text=x", "; it takes prompt.query and prompt.document"),
        (EMBED, "sampling={max_tokens: 4}", "--set sampling: expected no such section with task.kind embed, found a "),
        (EMBED, "sampling={max_tokens: 4}", "found a mapping of 1; remove it: no answer is drawn"),
        (EMBED, "model.chat_template=x", "model.chat_template: expected no such key with task.kind embed, found a "),
        (EMBED, "output.reasoning=qwen3", "output.reasoning: expected no such key with task.kind embed, found "),
        (EMBED, "model={path: m, adapters: {a: b}, adapter: a}", "model.adapters: expected no such key with "),
        (MINIMAL, "output.reasoning=a b", "output.reasoning: expected letters, digits and . _ - only, found "),
    ],
)  # fmt: skip
def test_what_a_task_does_not_take(text: str, override: str, message: str) -> None:
    assert message in line_of(text, override)
