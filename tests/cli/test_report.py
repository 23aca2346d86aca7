"""`bulkinfer report` as it is called: exit codes, what it says and where."""

import os
from pathlib import Path

import pytest

from bulkinfer.store import Store
from tests.cli_support import call
from tests.conftest import JobFolder, make_documents


@pytest.fixture
def done(folder: JobFolder) -> JobFolder:
    """A job that has run."""
    folder.write_documents(make_documents(50))
    assert folder.run().exit_code == 0
    return folder


@pytest.mark.parametrize("ending", ["html", "png"])
def test_a_report_of_a_job_and_of_a_database(done: JobFolder, ending: str) -> None:
    for target in (done.job_path, done.database):
        file = done.path / f"report.{ending}"
        called = call("report", str(target), "--to", str(file))
        assert (called.exit_code, called.stdout) == (0, "")
        assert called.stderr.startswith("report of run ")
        assert file.stat().st_size > 20_000
        file.unlink()


def test_a_wrong_question_is_exit_code_2_and_leaves_no_file(done: JobFolder) -> None:
    (done.path / "blank.duckdb").unlink(missing_ok=True)
    Store.open(done.path / "blank.duckdb").close()
    questions = {
        (str(done.job_path), "--to", str(done.path / "a.pdf")): "must be .html or .png",
        (str(done.path / "none.yaml"), "--to", str(done.path / "a.pdf")): "must be .html or .png",
        (str(done.job_path), "--to", str(done.path / "none" / "a.html")): "cannot be written",
        (str(done.job_path), "--to", str(done.path / "a.html"), "--run", "123456789"): "holds no such run",
        (str(done.path / "blank.duckdb"), "--to", str(done.path / "a.html")): "holds no run",
        (str(done.job_path),): "--to",
    }
    for question, said in questions.items():
        called = call("report", *question)
        assert called.exit_code == 2, called
        assert said in " ".join(called.stderr.split()), called.stderr
        assert called.stdout == ""
    assert not (done.path / "a.html").exists()


def test_a_pipe_stays_a_pipe_and_a_link_a_link(done: JobFolder) -> None:
    pipe, link, file = (done.path / name for name in ("pipe.html", "link.html", "real.html"))
    os.mkfifo(pipe)
    link.symlink_to(file)
    called = call("report", str(done.job_path), "--to", str(pipe))
    assert called.exit_code == 2
    assert "is not a file" in called.stderr
    assert pipe.is_fifo()
    assert call("report", str(done.job_path), "--to", str(link)).exit_code == 0
    assert link.is_symlink()
    assert file.stat().st_size > 20_000


def test_a_job_that_never_ran_has_no_database_to_report(folder: JobFolder) -> None:
    folder.write_documents(make_documents(5))
    folder.write_job()
    called = call("report", str(folder.job_path), "--to", str(folder.path / "a.html"))
    assert called.exit_code == 4, "as for every command that reads: there is no such file"
    assert "out.duckdb" in called.stderr


def test_a_second_run_with_nothing_to_do_is_told_and_the_first_reported(done: JobFolder) -> None:
    assert done.run().exit_code == 0
    file = Path(done.path / "a.html")
    assert call("report", str(done.job_path), "--to", str(file)).exit_code == 0
    assert "has committed no outcome: this is the report of the newest that has" in file.read_text(encoding="utf-8")
