"""The house: every room that the import rules name is there, no module grows without end, every shipped job loads."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest

from bulkinfer.job import load_job
from bulkinfer.prompt import PromptTemplate
from bulkinfer.sources import find_source_files
from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "bulkinfer"
MAX_LINES = 380
"""Above it, a module most likely owns more than one noun."""


def read_layers() -> list[str]:
    """The rooms of the import rules, siblings one by one."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = rules["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [room for layer in layers for room in layer.split(" | ")]


def read_doors() -> list[tuple[str, str]]:
    """Each library that has one door, and the module or package that is its door."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = rules["tool"]["importlinter"]["contracts"]
    imports = [line.split(" -> ") for contract in contracts for line in contract.get("ignore_imports", [])]
    return [(library, door.removesuffix(".*")) for door, library in imports]


def find_module(name: str) -> Path | None:
    """The file of a module, or the folder of a package, below the package."""
    path = PACKAGE.joinpath(*name.split("."))
    if (path / "__init__.py").is_file():
        return path
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else None


def test_every_layer_is_a_module_and_every_module_has_its_layer() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    layers = read_layers()
    assert sorted(layers) == sorted(modules | packages)


@pytest.mark.parametrize(("library", "door"), read_doors())
def test_every_door_is_there_and_imports_its_library(library: str, door: str) -> None:
    path = find_module(door.removeprefix("bulkinfer."))
    assert path is not None
    files = path.glob("*.py") if path.is_dir() else [path]
    imports = (f"import {library}", f"from {library}")
    assert any(line.startswith(imports) for file in files for line in file.read_text(encoding="utf-8").splitlines())


def test_no_module_is_too_long() -> None:
    num_lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert len(num_lines) > 40
    assert {str(path.relative_to(PACKAGE)): count for path, count in num_lines.items() if count > MAX_LINES} == {}


JOBS = sorted((ROOT / "jobs").glob("*.yaml"))


def test_only_two_places_catch_whatever_is_raised_and_go_on() -> None:
    found = {path.name: path.read_text(encoding="utf-8").count("except Exception") for path in PACKAGE.rglob("*.py")}
    assert {name: count for name, count in found.items() if count} == {"bugs.py": 1, "worker.py": 1}


def test_there_are_jobs_and_a_dag_and_nothing_else() -> None:
    assert ROOT / "jobs" / "summarize.yaml" in JOBS
    others = {path.name for path in (ROOT / "jobs").iterdir() if path.is_file()} - {path.name for path in JOBS}
    assert others == {"airflow_dag.py"}


def test_the_dag_compiles_and_asks_only_airflow_for_help() -> None:
    """It is copied to where bulkinfer is not installed; that it runs under Airflow, tests/airflow shows."""
    tree = ast.parse((ROOT / "jobs" / "airflow_dag.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports]
    assert {name.partition(".")[0] for name in names} - {"airflow"} <= sys.stdlib_module_names


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_every_job_loads_finds_its_input_and_has_a_template_that_parses(path: Path) -> None:
    job = load_job(path)
    template = PromptTemplate.of(job.spec)
    assert template.fields
    assert find_source_files(job.input_patterns, job.folder)
    assert job.database_path.parent == ROOT / "out", "what a run leaves behind lies where `make clean` looks"
