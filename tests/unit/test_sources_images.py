"""Image files that rows name: by their contents, read ahead, and whether they are as they were."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import orjson
import pytest

from bulkinfer.errors import InputError
from bulkinfer.fingerprint import hash_document
from bulkinfer.records import BadImage, Document, ImageFields, ImageFile, JsonValue, Origin, SourceFile, UnreadableRow
from bulkinfer.sources import add_images, find_source_files, images, open_source, stamps

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
OTHER = b"\x89PNG\r\n\x1a\n" + bytes(reversed(range(256)))
URL = "data:image/png;base64,AAAA"
FIELDS = frozenset({"photo", "body"})
LONG_AGO_S = 1_700_000_000


def write(folder: Path, *photos: JsonValue, **files: bytes) -> SourceFile:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        write_image(folder / f"{name}.png", content)
    (folder / "in.jsonl").write_bytes(b"".join(orjson.dumps({"photo": one, "body": "x"}) + b"\n" for one in photos))
    (file,) = find_source_files(["in.jsonl"], folder)
    return file


def write_image(path: Path, content: bytes, at_s: int = LONG_AGO_S) -> None:
    path.write_bytes(content)
    os.utime(path, (at_s, at_s))


def read(file: SourceFile, printed: frozenset[str] = frozenset()) -> list[Document]:
    found = replace(file, images=ImageFields(("photo",), str(file.path.parent), printed))
    rows = list(open_source(found, FIELDS, None).iter_rows())
    assert all(isinstance(row, Document) for row in rows)
    return [row for row in rows if isinstance(row, Document)]


def hash_rows(file: SourceFile, printed: frozenset[str] = frozenset()) -> list[bytes]:
    return [hash_document(row.identity) for row in read(file, printed)]


def test_one_name_in_two_folders_is_two_documents_and_one_image_under_two_names_is_one(tmp_path: Path) -> None:
    first = hash_rows(write(tmp_path / "a", "x.png", "y.png", x=PNG, y=OTHER))
    second = hash_rows(write(tmp_path / "b", "x.png", "z.png", x=OTHER, z=PNG))
    assert first == second[::-1]
    assert first[0] != first[1]


def test_names_that_are_printed_count_too(tmp_path: Path) -> None:
    file = write(tmp_path, "x.png", "y.png", x=PNG, y=PNG)
    assert len(set(hash_rows(file))) == 1
    assert len(set(hash_rows(file, frozenset({"photo"})))) == 2


def test_fields_are_left_as_they_are(tmp_path: Path) -> None:
    photos: list[JsonValue] = ["x.png", URL, None, ["x.png", [URL]], {"bytes": None, "path": "x.png"}]
    rows = read(write(tmp_path, *photos, x=PNG))
    assert [row.fields["photo"] for row in rows] == photos
    key = f"sha256:{sha256(PNG).hexdigest()}"
    file = ImageFile(key, str(tmp_path / "x.png"), len(PNG))
    found = [None if row.images is None else row.images.files for row in rows]
    assert found == [{"x.png": file}, None, None, {"x.png": file}, {"x.png": file}]
    known_by = [key, URL, None, [key, [URL]], {"bytes": None, "path": key}]
    assert [row.identity["photo"] for row in rows] == known_by


def test_what_is_no_image_has_a_reason_and_a_hash_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", 1 << 10)
    os.mkfifo(tmp_path / "pipe.png")
    files = {"text": b"text", "large": PNG * 8}
    names = ["none.png", ".", "text.png", "large.png", "pipe.png", "n" * 300]
    rows = read(write(tmp_path, *names, **files))
    found = [one for row in rows if row.images is not None for one in row.images.files.values()]
    reasons = [one.reason for one in found if isinstance(one, BadImage)]
    assert reasons == [
        "the file cannot be read: No such file or directory",
        "the file cannot be read: Is a directory",
        "expected a PNG, JPEG, GIF or WebP file, found another",
        "expected at most 0 MiB, found a larger file",
        "the file cannot be read: it is not a regular one",
        "the file cannot be read: File name too long",
    ]
    assert len({hash_document(row.identity) for row in rows}) == len(names)


def test_only_so_many_files_are_read_at_a_time_and_none_of_a_row_that_names_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0

    def look(path: str, name: str) -> ImageFile:
        nonlocal most
        most = max(most, sum(thread.name == "bulkinfer-image" for thread in threading.enumerate()))
        return ImageFile(f"sha256:{name}", path, 1)

    monkeypatch.setattr(images, "read_image_file", look)
    num_most = 256
    wide = [f"{number}.png" for number in range(num_most)]
    first, second = read(write(tmp_path, wide, [*wide, "more.png"]))
    assert first.images is not None
    assert len(first.images.files) == num_most
    assert second.images is None
    assert 1 <= most <= images.NUM_READERS + 1, "one may have let the next begin and not have ended"


def test_no_row_waits_that_needs_no_file_and_no_more_text_than_a_few_mebibytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MAX_CHARS_AHEAD", 1000)
    taken = 0

    class Rows:
        def iter_rows(self, _wanted: Iterator[int] | None = None) -> Iterator[Document]:
            nonlocal taken
            for photo in (URL, URL, "x.png", *["y.png"] * 50):
                taken += 1
                yield Document(Origin("s", taken, "s"), {"photo": photo, "body": "x" * 300})

    file = write(tmp_path, "x.png", x=PNG)
    source = images.ImageSource(Rows(), file, ImageFields(("photo",), str(tmp_path), frozenset()))  # type: ignore[arg-type]
    seen = [taken for _ in source.iter_rows()]
    assert seen[:4] == [1, 2, 6, 7], "three rows of 305 characters may wait"


def test_rows_come_in_their_order(tmp_path: Path) -> None:
    contents = {f"p{number}": PNG + bytes([number]) for number in range(200)}
    rows = read(write(tmp_path, *(f"{name}.png" for name in contents), **contents))
    assert [row.origin.row for row in rows] == list(range(1, 201))
    assert [row.identity["photo"] for row in rows] == [
        f"sha256:{sha256(content).hexdigest()}" for content in contents.values()
    ]


def test_what_comes_before_a_fault_of_the_file_comes_first(tmp_path: Path) -> None:
    class Damaged:
        def iter_rows(self, wanted: Iterator[int] | None = None) -> Iterator[Document | UnreadableRow]:
            yield from open_source(file, FIELDS, None).iter_rows(wanted)
            raise InputError("damaged")

        def bytes_read(self) -> int:
            return 0

        def read_field_names(self) -> frozenset[str]:
            return FIELDS

    file = write(tmp_path, "x.png", "x.png", x=PNG)
    rows = images.ImageSource(Damaged(), file, ImageFields(("photo",), "")).iter_rows()
    assert [row.origin.row for row in (next(rows), next(rows))] == [1, 2]
    with pytest.raises(InputError, match="damaged"):
        next(rows)


def test_a_file_beside_a_remote_input_is_none(tmp_path: Path) -> None:
    remote = replace(write(tmp_path), url="s3://bucket/in.jsonl")
    assert images.find_image_folder(remote, ImageFields(("photo",), "/job")) is None
    query = replace(write(tmp_path), keeper=object())
    assert images.find_image_folder(query, ImageFields(("photo",), "/job")) == "/job"


def stamp(file: SourceFile) -> str:
    (found,) = add_images([file], ImageFields(("photo",), ""))
    return found.choice


def test_images_that_were_written_just_now_may_change_once_more(tmp_path: Path) -> None:
    file = write(tmp_path, "x.png", "none.png", URL, x=PNG)
    assert stamp(file) != stamp(file)
    assert orjson.loads(stamp(file))["is_settled"] is False


def test_a_stamp_stays_as_long_as_the_images_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "_TICK_NS", -(10**18))  # as if they had been written long ago
    file = write(tmp_path, "x.png", "none.png", URL, x=PNG)
    before = stamp(file)
    assert before == stamp(file)
    write_image(tmp_path / "x.png", OTHER)
    changed = stamp(file)
    assert before != changed, "the same size and time of writing, but not of change"
    (tmp_path / "none.png").write_bytes(PNG)
    assert changed != stamp(file)
    assert orjson.loads(changed).keys() == {"images"}


def test_an_input_without_image_files_has_no_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "NUM_PEEKED", 3)
    assert stamp(write(tmp_path, URL, None, URL)) == ""
    assert stamp(write(tmp_path, URL, None, URL, "x.png")) == "", "nobody looks further"
    assert stamp(write(tmp_path, URL, None, "x.png")) != ""
