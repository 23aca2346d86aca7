"""Files that are replaced together: all, or none."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bulkinfer.errors import JobError
from bulkinfer.store import replacing_all


def write_both(folder: Path, text: str) -> None:
    with replacing_all([folder / "one", folder / "two"]) as streams:
        for stream in streams:
            stream.write(text.encode())


def test_both_are_replaced(tmp_path: Path) -> None:
    write_both(tmp_path, "old")
    write_both(tmp_path, "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"one": "new", "two": "new"}


def test_a_disk_that_is_full_at_the_last_moment_leaves_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_both(tmp_path, "old")
    calls = []

    def sync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(JobError, match="two: cannot be written: No space left on device"):
        write_both(tmp_path, "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"one": "old", "two": "old"}


def test_nothing_is_begun_where_one_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    with pytest.raises(JobError, match="two: cannot be written: Is a directory"):
        write_both(tmp_path, "new")
    assert not (tmp_path / "one").exists()


def find_gone_pid() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    return ended.pid


def test_what_a_killed_process_left_of_the_same_file_is_removed(tmp_path: Path) -> None:
    gone = find_gone_pid()
    left = [f".one.{gone}.tmp", f".two.{gone}.tmp"]
    kept = [f".three.{gone}.tmp", f".one.{os.getppid()}.tmp", ".one.tmp", ".one.x.tmp", f".one.{10**30}.tmp"]
    for name in (*left, *kept):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (0, 0))
    young = tmp_path / f".one.{gone}1.tmp"
    young.write_text("half")
    kept.append(young.name)
    write_both(tmp_path, "new")
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", *kept}


def test_what_is_being_written_elsewhere_stays(tmp_path: Path) -> None:
    # In another container the process that writes it has a number that is none here.
    written = tmp_path / f".one.{find_gone_pid()}.tmp"
    with written.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        os.utime(written, (0, 0))
        write_both(tmp_path, "new")
        assert written.exists()


def test_a_file_that_is_being_written_is_locked(tmp_path: Path) -> None:
    with replacing_all([tmp_path / "one"]) as _:
        (written,) = tmp_path.iterdir()
        with written.open("rb") as stream, pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
