"""Files that are replaced together: all, or none."""

import os
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
