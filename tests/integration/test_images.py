"""Whole runs over documents that name image files: they are known by what the images are, wherever they lie."""

import shutil
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from bulkinfer.engines import base
from bulkinfer.errors import ExitCode
from bulkinfer.export import Exported, ExportOptions, export_job, parse_target
from bulkinfer.job import load_job
from bulkinfer.records import Message, Only, Request, SeenImage
from bulkinfer.runner import RunOptions, RunReport, plan_run
from bulkinfer.runner.forecast import forecast_run
from bulkinfer.sources import images, stamps
from bulkinfer.store import Reader, open_reader, runs
from tests.conftest import JobFolder

ONE = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
OTHER = b"\x89PNG\r\n\x1a\n" + bytes(reversed(range(256)))


@pytest.fixture
def photos(folder: JobFolder) -> JobFolder:
    """Two folders, each with one row that names the same file; the files differ."""
    for name, content in (("a", ONE), ("b", OTHER)):
        write(folder, name, content)
    folder.spec["limits"] |= {"max_failures": "100%", "max_context_tokens": 512}
    folder.spec["prompt"]["images"] = "photo"
    folder.spec["input"]["path"] = ["a", "b"]
    folder.write_job()
    return folder


@pytest.fixture
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as one that was written long ago."""
    for module, name in ((stamps, "_TICK_NS"), (runs, "TICK_NS"), (runs, "COARSE_TICK_NS")):
        monkeypatch.setattr(module, name, -(10**18))


def write(folder: JobFolder, name: str, content: bytes | None) -> None:
    path = folder.path / name
    path.mkdir(exist_ok=True)
    (path / "in.jsonl").write_bytes(orjson.dumps({"id": name, "body": "x", "photo": "1.png"}))
    if content is not None:
        (path / "1.png").write_bytes(content)


def counts(report: RunReport) -> tuple[int, ...]:
    found = report.summary["documents"]
    assert isinstance(found, dict)
    names = ("read", "distinct", "already_done", "succeeded", "failed")
    return tuple(found[name] for name in names)


def select(folder: JobFolder, sql: str) -> list[tuple[Any, ...]]:
    with Reader.open(folder.database) as reader:
        return list(reader.query(sql).rows)


def export(folder: JobFolder) -> tuple[Exported, list[dict[str, Any]]]:
    job = load_job(folder.job_path)
    with open_reader(job.database_path) as reader:
        exported = export_job(reader, job, parse_target(folder.path / "out.jsonl"), ExportOptions(None))
    return exported, [orjson.loads(line) for line in (folder.path / "out.jsonl").read_bytes().splitlines()]


def test_one_name_in_two_folders_is_two_documents(photos: JobFolder) -> None:
    report = photos.run_as_written()
    assert counts(report) == (2, 2, 0, 2, 0)
    hashes = select(photos, "select document_id, document_hash from answers")
    assert len(set(hashes)) == 2
    exported, rows = export(photos)
    assert [(row["document_id"], row["photo"], row["status"]) for row in rows] == [
        ("a", "1.png", "answered"),
        ("b", "1.png", "answered"),
    ]
    assert {(row["document_id"], row["document_hash"]) for row in rows} == {(one, str(two)) for one, two in hashes}
    assert exported.notes == []


def test_equal_images_are_one_document_wherever_they_lie(photos: JobFolder) -> None:
    write(photos, "b", ONE)
    assert counts(photos.run_as_written()) == (2, 1, 0, 1, 0)


def test_inputs_that_move_with_their_images_are_not_asked_again(photos: JobFolder) -> None:
    photos.run_as_written()
    for name in "ab":
        shutil.move(photos.path / name, photos.path / f"moved-{name}")
    photos.spec["input"]["path"] = ["moved-a", "moved-b"]
    photos.write_job()
    assert counts(photos.run_as_written()) == (2, 2, 2, 0, 0)


@pytest.mark.usefixtures("_settled")
def test_answers_of_a_run_that_looked_at_no_images_are_exported(photos: JobFolder) -> None:
    """As runs before images counted by their contents listed their files."""
    photos.run_as_written()
    with duckdb.connect(photos.database) as connection:
        connection.execute("""update scans set layout = regexp_replace(layout, '\\{"images".*\\}', '')""")
        connection.execute(
            "create temp table old as select md5(document_hash::varchar)::uuid u, document_hash h from results"
        )
        connection.execute("update results r set document_hash = (select u from old where h = r.document_hash)")
        connection.execute("update document_rows r set document_hash = (select u from old where h = r.document_hash)")
    exported, rows = export(photos)
    assert (exported.notes, [row["status"] for row in rows]) == ([], ["answered", "answered"])


@pytest.mark.usefixtures("_settled")
def test_an_image_that_is_replaced_under_its_name_is_asked_anew(photos: JobFolder) -> None:
    photos.run_as_written()
    (photos.path / "a" / "1.png").write_bytes(ONE + b"more")
    exported, rows = export(photos)
    assert [row["status"] for row in rows] == ["pending", "answered"], "the answer is to another image"
    assert len(exported.notes) == 1
    assert "a/in.jsonl: images that its rows name changed since the run read it" in exported.notes[0]
    planned = forecast_run(plan_run(load_job(photos.job_path)), lambda _: None)
    assert isinstance(planned["documents"], dict)
    assert planned["documents"]["already_done"] == 1
    assert counts(photos.run_as_written()) == (2, 2, 1, 1, 0)
    assert [row["status"] for row in export(photos)[1]] == ["answered", "answered"]


@pytest.mark.usefixtures("_settled")
def test_images_that_are_as_they_were_are_not_read_again(photos: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, name: str) -> None:
        raise AssertionError(f"{name} was read")

    photos.run_as_written()
    monkeypatch.setattr(images, "read_image_file", refuse)
    assert counts(photos.run_as_written()) == (2, 2, 2, 0, 0)
    assert [row["status"] for row in export(photos)[1]] == ["answered", "answered"]


def test_an_export_finds_rows_by_what_their_images_are(photos: JobFolder) -> None:
    photos.run_as_written()
    for name in "ab":
        path = photos.path / name / "in.jsonl"
        row = orjson.loads(path.read_bytes())
        path.write_bytes(orjson.dumps({**row, "photo": "renamed.png"}))
        (photos.path / name / "1.png").rename(photos.path / name / "renamed.png")
    exported, rows = export(photos)
    assert [(row["photo"], row["status"]) for row in rows] == [("renamed.png", "answered")] * 2
    assert len(exported.notes) == 2
    assert all("it changed since the run read it: its rows were matched by content" in note for note in exported.notes)


def test_an_image_that_is_missing_is_one_failure_and_a_document_once_it_is_there(photos: JobFolder) -> None:
    (photos.path / "a" / "1.png").unlink()
    report = photos.run_as_written()
    assert report.exit_code is ExitCode.OK
    assert counts(report) == (2, 2, 0, 1, 1)
    message = "prompt.images: image 1: the file cannot be read: No such file or directory"
    assert select(photos, "select document_id, code, message from failures") == [("a", "invalid_field", message)]
    assert counts(photos.run_as_written()) == (2, 2, 2, 0, 0)
    write(photos, "a", ONE)
    assert counts(photos.run_as_written()) == (2, 2, 1, 1, 0)
    assert [row["status"] for row in export(photos)[1]] == ["answered", "answered"]


def test_an_image_that_changes_between_its_reading_and_its_sending_is_a_failure(
    photos: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = photos.path / "a" / "1.png"
    read = images.read_image_file

    def read_and_change(name: str, called: str) -> SeenImage:
        found = read(name, called)
        path.write_bytes(OTHER[:-1] + b"x")
        return found

    monkeypatch.setattr(images, "read_image_file", read_and_change)
    photos.spec["input"]["path"] = "a"
    photos.write_job()
    report = photos.run_as_written()
    assert counts(report) == (1, 1, 0, 0, 1)
    ((message,),) = select(photos, "select message from failures")
    assert message == "prompt.images: image 1: the file changed while the run was using it; run again"
    monkeypatch.undo()
    assert counts(photos.run_as_written()) == (1, 1, 0, 1, 0), "what it is now is another document"


@pytest.mark.timeout(60)
def test_a_lack_of_memory_while_an_image_is_sent_ends_the_run_which_goes_on_later(
    photos: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: Request) -> tuple[Message, ...]:
        raise MemoryError

    monkeypatch.setattr(base, "load_images", fail)
    photos.write_job(engine={"replicas": 2})  # in processes, to which a thread sends
    with pytest.raises(MemoryError):
        photos.run_as_written()
    monkeypatch.undo()
    assert counts(photos.run_as_written()) == (2, 2, 0, 2, 0)


def test_rows_of_a_query_name_images_beside_the_job_file(photos: JobFolder) -> None:
    (photos.path / "1.png").write_bytes(ONE)
    photos.spec["input"] |= {"path": "a", "sql": "select * from input"}
    photos.write_job()
    assert counts(photos.run_as_written()) == (1, 1, 0, 1, 0)
    (photos.path / "1.png").unlink()
    assert counts(photos.run_as_written()) == (1, 1, 0, 0, 1)


def test_a_name_that_the_prompt_prints_counts_beside_the_image(photos: JobFolder) -> None:
    shutil.copy(photos.path / "a" / "1.png", photos.path / "a" / "2.png")
    rows = [{"id": name, "body": "x", "photo": name} for name in ("1.png", "2.png")]
    photos.spec["input"]["path"] = "a"
    photos.write_documents(rows, str(Path("a", "in.jsonl")))
    photos.write_job()
    assert counts(photos.run_as_written()) == (2, 1, 0, 1, 0)
    photos.spec["prompt"]["user"] = "{{ photo }}: {{ body }}"
    photos.write_job()
    assert counts(photos.run_as_written()) == (2, 2, 0, 2, 0)


@pytest.mark.usefixtures("_settled")
def test_a_run_goes_on_where_another_ended_also_among_images(photos: JobFolder) -> None:
    rows = [{"id": f"{number}", "body": f"{number}", "photo": f"{number % 90}.png"} for number in range(300)]
    for number in range(90):
        (photos.path / "a" / f"{number}.png").write_bytes(ONE + bytes([number]))
    photos.write_documents(rows, str(Path("a", "in.jsonl")))
    photos.spec["input"]["path"] = "a"
    photos.write_job()
    assert counts(photos.run_as_written(RunOptions(limit=120))) == (120, 120, 0, 120, 0)
    assert counts(photos.run_as_written()) == (300, 300, 120, 180, 0)
    assert counts(photos.run_as_written()) == (300, 300, 300, 0, 0)
    assert select(photos, "select count(*), count(distinct document_hash) from answers") == [(300, 300)]
    (photos.path / "a" / "89.png").write_bytes(OTHER)
    assert counts(photos.run_as_written()) == (300, 300, 297, 3, 0), "rows 90, 180 and 270"


@pytest.mark.usefixtures("_settled")
def test_a_run_over_failures_reads_their_images_alone(photos: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": f"{n}", "body": f"{n}", "photo": "none.png" if n % 70 == 5 else "1.png"} for n in range(200)]
    photos.write_documents(rows, str(Path("a", "in.jsonl")))
    photos.spec["input"]["path"] = "a"
    photos.write_job()
    assert counts(photos.run_as_written()) == (200, 200, 0, 197, 3)
    read = images.read_image_file
    names: list[str] = []

    def note(path: str, name: str) -> SeenImage:
        names.append(name)
        return read(path, name)

    monkeypatch.setattr(images, "read_image_file", note)
    assert counts(photos.run_as_written(RunOptions(only=Only.FAILED))) == (200, 200, 197, 0, 3)
    assert names == ["none.png"] * 3
