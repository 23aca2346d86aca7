"""docs/recipes.md: every command that is shown runs, from the first to the last, with the simulated engine."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

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


JOBS_OF_OTHERS = re.findall(
    r"^```yaml\n(.*?)^```", (ROOT / "docs" / "migrate.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("text", JOBS_OF_OTHERS)
def test_a_job_for_those_who_come_from_other_tools_is_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_job(path).spec.sampling.max_tokens


def test_there_are_jobs_for_those_who_come_from_other_tools() -> None:
    assert len(JOBS_OF_OTHERS) == 2
