"""What the documents say is so: commands, flags, links, exit codes, make targets, the job file."""

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from bulkinfer.cli import app
from bulkinfer.errors import ExitCode
from bulkinfer.job import load_job
from bulkinfer.prompt import PromptTemplate
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_GOES_ON = "\\"
program: Any = typer.main.get_command(app)
"""Any: what it is depends on Typer's version."""


def iter_lines(text: str) -> Iterator[str]:
    """Lines of code blocks, indented or fenced."""
    for fenced in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from fenced.splitlines()
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (line.strip() for line in re.findall(r"^ {4}.*$", rest, re.MULTILINE))


def iter_inline(text: str) -> Iterator[str]:
    """Code between backticks."""
    text = re.sub(r"^```.*?^```|^ {4}.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text))


def iter_code(text: str) -> Iterator[str]:
    """All code."""
    yield from iter_lines(text)
    yield from iter_inline(text)


def split_command(code: str) -> list[str] | None:
    """Its words up to a redirection or the next command; None where more lines belong to it."""
    words = shlex.shlex(code, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    try:
        found = list(words)
    except ValueError:  # a quote that is not closed, a backslash at the end
        return None
    ends = [place for place, word in enumerate(found) if word and set(word) <= set("<>|&;()")]
    found = found[: ends[0]] if ends else found
    return found[:-1] if ends and code.count(f"{found[-1]}>") and found[-1].isdecimal() else found


def split_commands(codes: Iterable[str]) -> Iterator[list[str]]:
    """The arguments of each `bulkinfer ...` among lines of code; one may go over several."""
    lines = iter(codes)
    for line in lines:
        if not re.match(r"\S*\bbulkinfer ", line):
            continue
        while (words := split_command(line)) is None:
            line = line.removesuffix(_GOES_ON) + " " + next(lines)  # noqa: PLW2901
        name, *arguments = words
        if Path(name).name == "bulkinfer":
            yield arguments


def find_commands(text: str) -> list[list[str]]:
    """The arguments of each `bulkinfer ...` that a document shows as a whole."""
    return list(split_commands(iter_lines(text)))


def find_named(text: str) -> list[list[str]]:
    """The same of what its sentences name, which may be a part of a command."""
    return list(split_commands(iter_inline(text)))


def find_targets(text: str) -> set[str]:
    """The targets of each `make ...` that a document shows."""
    lines = [shlex.split(code, comments=True) for code in iter_code(text) if code.startswith("make ")]
    return {target for _, *targets in lines for target in targets if "=" not in target}


def find_links(text: str) -> list[str]:
    """Where the links of a document lead, without what is elsewhere in the world."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    return [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]


def test_the_readme_shows_the_commands_that_matter() -> None:
    shown = [*find_commands(README), *find_named(README)]
    assert {"run", "doctor", "failures", "query", "export", "schema"} <= {name for name, *_ in shown}


ALL_TEXT = "\n\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)


@pytest.mark.parametrize("arguments", find_commands(ALL_TEXT), ids=" ".join)
def test_every_command_that_is_shown_is_one(arguments: list[str]) -> None:
    name, *rest = arguments
    assert name in program.commands
    command = program.commands[name]
    with command.make_context(name, rest):  # parses, and raises for what it does not know
        pass


@pytest.mark.parametrize("arguments", find_named(ALL_TEXT), ids=" ".join)
def test_every_command_that_is_named_has_its_flags(arguments: list[str]) -> None:
    name, *rest = arguments
    known = {option for parameter in program.commands[name].params for option in parameter.opts}
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known


def test_commands_are_found_whole() -> None:
    text = """
    bulkinfer run a.yaml --quiet 2>> log.txt   # each night
    bulkinfer query a.yaml "select 1
      from answers" | head
    .venv/bin/bulkinfer run a.yaml \\
      --limit 3 && echo done
    other run --bogus
    """
    assert find_commands(text) == [
        ["run", "a.yaml", "--quiet"],
        ["query", "a.yaml", "select 1 from answers"],
        ["run", "a.yaml", "--limit", "3"],
    ]
    assert find_named("see `bulkinfer repair` and `bulkinfer sweep\n--what-if`") == [["repair"], ["sweep", "--what-if"]]


@pytest.mark.parametrize("arguments", [["run", "job.yaml", "--bogus"], ["run", "job.yaml", "--limit", "many"]])
def test_a_command_that_is_none_would_be_found(arguments: list[str]) -> None:
    name, *rest = arguments
    with pytest.raises(typer.BadParameter.__mro__[1]):
        program.commands[name].make_context(name, rest)


def find_flags(text: str) -> set[str]:
    """The flags that are shown on their own: `--grace`, or with a command: `run --json`."""
    names = "|".join(program.commands)
    codes = [code for code in iter_code(text) if re.match(rf"(({names}) )?--[a-z]", code)]
    return {flag for code in codes for flag in re.findall(r"--[a-z0-9-]+", code)}


def test_every_flag_that_is_shown_alone_is_one() -> None:
    known = {
        option for command in program.commands.values() for parameter in command.params for option in parameter.opts
    }
    assert {"--only", "--grace", "--set", "--json"} <= find_flags(README)
    others = {"--no-deps", "--max-model-len", "--peers", "--resume", "--scale"}
    """Of pip, of vLLM, of benchmarks/."""
    assert find_flags(ALL_TEXT) - known == others


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    missing = [link for link in find_links(path.read_text(encoding="utf-8")) if not (path.parent / link).exists()]
    assert missing == []


def test_links_are_found() -> None:
    assert {"CONTRIBUTING.md", "LICENSE", "docs/architecture.md", "docs/job.schema.json"} <= set(find_links(README))
    assert find_links("see [a](b.md#c), [d](https://e.f), [g](#h)\n[i]: j.md") == ["b.md", "j.md"]


def test_the_job_file_of_the_readme_is_valid(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block, encoding="utf-8")
        spec = load_job(path).spec
        assert PromptTemplate.of(spec).fields


def test_the_exit_codes_of_the_readme_are_those_of_the_program() -> None:
    _, _, section = README.partition("## Exit codes\n")
    rows = re.findall(r"^\| ([0-9, ]+) \| .+ \|$", section.partition("\n## ")[0], re.MULTILINE)
    shown = [int(code) for row in rows for code in row.split(",")]
    assert shown == sorted(ExitCode)


@pytest.mark.parametrize(("name", "text"), [("README.md", README), ("CONTRIBUTING.md", CONTRIBUTING)])
def test_every_make_target_that_is_shown_is_one(name: str, text: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    shown = find_targets(text)
    assert "test" in shown, name
    assert shown - known == set()
    [phony] = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(phony.split()) == known
