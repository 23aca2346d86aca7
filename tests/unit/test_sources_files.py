"""What `input.path` means: files, folders, globs, and every fault in them."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bulkinfer.errors import InputError
from bulkinfer.records import CsvDialect, FileFormat, FormatKind, Packing
from bulkinfer.sources import find_source_files
from bulkinfer.sources.files import takes_in
from bulkinfer.sources.formats import FormatChoice


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}\n")


def find_names(folder: Path, *patterns: str) -> list[str]:
    return [file.name for file in find_source_files(patterns, folder)]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["a.jsonl"], ["a.jsonl"]),
        (["./a.jsonl"], ["a.jsonl"]),
        (["b.pq", "a.jsonl"], ["b.pq", "a.jsonl"]),
        (["a.jsonl", "b.pq", "a.jsonl"], ["a.jsonl", "b.pq"]),
        (["a.jsonl", "deep/../a.jsonl"], ["a.jsonl"]),
        (["../job/a.jsonl"], ["../job/a.jsonl"]),
        (["deep"], ["deep/A.NDJSON", "deep/er/b.jsonl.zst", "deep/er/c.parquet", "deep/z.ndjson.gz"]),
        (["deep/"], ["deep/A.NDJSON", "deep/er/b.jsonl.zst", "deep/er/c.parquet", "deep/z.ndjson.gz"]),
        (["deep/*.gz"], ["deep/z.ndjson.gz"]),
        (["**/*.p*q*"], ["b.pq", "deep/er/c.parquet"]),
        (["deep/e*"], ["deep/er/b.jsonl.zst", "deep/er/c.parquet"]),
        (["deep/**/[bc].*"], ["deep/er/b.jsonl.zst", "deep/er/c.parquet"]),
        (["odd[1].jsonl"], ["odd[1].jsonl"]),
        (["deep/er/_part.jsonl"], ["deep/er/_part.jsonl"]),
        (["deep/er/_*.jsonl"], ["deep/er/_part.jsonl"]),
        (["deep/er/*.jsonl", "b.pq"], None),
    ],
)
def test_patterns_give_files_in_order_and_once(tmp_path: Path, patterns: list[str], names: list[str] | None) -> None:
    folder = tmp_path / "job"
    write(
        folder, "a.jsonl", "b.pq", "odd[1].jsonl", "odd1.jsonl", "deep/z.ndjson.gz", "deep/A.NDJSON", "deep/notes.txt"
    )
    write(folder, "deep/er/c.parquet", "deep/er/b.jsonl.zst", "deep/er/_part.jsonl", "deep/.hidden.jsonl")
    write(folder, "deep/_temporary/x.jsonl", "deep/.git/y.jsonl", "deep/_SUCCESS")
    if names is None:
        with pytest.raises(InputError):
            find_names(folder, *patterns)
    else:
        assert find_names(folder, *patterns) == names


@pytest.mark.parametrize(
    ("pattern", "name", "is_taken"),
    [
        ("in", "in/out.jsonl", True),
        ("in", "in/deep/out.parquet", True),
        ("in", "in/out.dat", False),
        ("in", "in/_out.jsonl", False),
        ("in", "in/.hidden/out.jsonl", False),
        ("in", "out.jsonl", False),
        ("in/a.jsonl", "in/out.jsonl", False),
        ("in/*.jsonl", "in/out.jsonl", True),
        ("in/*.jsonl", "in/out.parquet", False),
        ("in/*.jsonl", "in/.out.jsonl", False),
        ("in/*.jsonl", "in/_out.jsonl", False),
        ("in/_*.jsonl", "in/_out.jsonl", True),
        ("*", "in/deep/out.csv", True),
        ("*/*.csv", "in/out.csv", True),
        ("**/*.csv", "out.csv", True),
        ("**/*.csv", "in/deep/out.csv", True),
        ("in/**", "in/deep/out.csv", True),
        ("in/**", "out.csv", False),
        ("link", "in/out.jsonl", True),
        ("in", "link/out.jsonl", True),
        ("in/o[u]t.*", "in/out.dat", True),
        ("s3://in/*.jsonl", "in/out.jsonl", False),
    ],
)
def test_a_file_that_is_not_there_yet_is_taken_in_or_not(
    tmp_path: Path, pattern: str, name: str, is_taken: bool
) -> None:
    for path in (tmp_path / "in/deep", tmp_path / "in/.hidden"):
        path.mkdir(parents=True)
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "in/a.jsonl").write_text("{}")
    assert takes_in([f"file://{tmp_path}/{pattern}"], Path("/nowhere"), tmp_path / name) is is_taken
    assert takes_in([pattern], tmp_path, tmp_path / name) is is_taken
    if pattern.startswith("s3"):
        return
    (tmp_path / name).write_text("{}")
    try:
        found = {os.path.realpath(file.path) for file in find_source_files([pattern], tmp_path)}
    except InputError:  # a pattern that matches what has no known ending
        found = {os.path.realpath(tmp_path / name)} if pattern == "in/o[u]t.*" else set()
    assert (os.path.realpath(tmp_path / name) in found) is is_taken


def test_an_absolute_pattern_and_a_home_give_absolute_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "in/a.jsonl", "in/b.jsonl")
    monkeypatch.setenv("HOME", str(tmp_path))
    names = [f"{tmp_path}/in/a.jsonl", f"{tmp_path}/in/b.jsonl"]
    for pattern in (f"{tmp_path}/in", f"{tmp_path}/in/*.jsonl", "~/in", "~/in/?.jsonl"):
        assert find_names(tmp_path / "elsewhere", pattern) == names


def test_the_job_folder_may_look_like_a_glob(tmp_path: Path) -> None:
    write(tmp_path, "[2026] *jobs/a.jsonl")
    assert find_names(tmp_path / "[2026] *jobs", "*.jsonl") == ["a.jsonl"]


def test_a_file_tells_size_times_and_inode(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl")
    status = (tmp_path / "a.jsonl").stat()
    (file,) = find_source_files(["a.jsonl"], tmp_path)
    assert (file.path, file.size_bytes) == (tmp_path / "a.jsonl", 3)
    assert (file.mtime_ns, file.ctime_ns, file.inode) == (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def test_text_files_of_a_folder_count_where_it_holds_no_others(tmp_path: Path) -> None:
    write(tmp_path, "texts/b.md", "texts/deep/a.txt", "texts/logo.png", "mixed/README.md", "mixed/a.csv")
    assert find_names(tmp_path, "texts") == ["texts/b.md", "texts/deep/a.txt"]
    assert find_names(tmp_path, "mixed") == ["mixed/a.csv"]
    assert find_names(tmp_path, "mixed/*.md") == ["mixed/README.md"]
    choice = FormatChoice(FormatKind.TEXT)
    assert [file.name for file in find_source_files(["mixed"], tmp_path, choice)] == ["mixed/README.md"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.CSV", FileFormat(FormatKind.CSV)),
        ("a.tsv", FileFormat(FormatKind.CSV, csv=CsvDialect(delimiter="\t"))),
        ("a.csv.gz", FileFormat(FormatKind.CSV, Packing.GZIP)),
        ("a.md.zst", FileFormat(FormatKind.TEXT, Packing.ZSTD)),
        ("a.feather", FileFormat(FormatKind.ARROW)),
        ("a.ndjson", FileFormat(FormatKind.JSONL)),
    ],
)
def test_the_ending_says_the_format(tmp_path: Path, name: str, expected: FileFormat) -> None:
    write(tmp_path, name)
    (file,) = find_source_files([name], tmp_path)
    assert (file.format, file.layout) == (expected, "")


def test_the_job_says_the_format_of_files_with_other_endings(tmp_path: Path) -> None:
    write(tmp_path, "a.dat", "b.log.gz", "c.tsv")
    choice = FormatChoice(FormatKind.CSV, csv_encoding="latin-1")
    files = find_source_files(["a.dat", "b.log.gz", "c.tsv"], tmp_path, choice)
    assert [(file.format.kind, file.format.packing, file.format.csv.delimiter) for file in files] == [
        (FormatKind.CSV, Packing.NONE, None),
        (FormatKind.CSV, Packing.GZIP, None),
        (FormatKind.CSV, Packing.NONE, "\t"),
    ]
    assert {file.layout for file in files} == {'{"format":"csv","encoding":"latin-1"}'}


def test_links_are_followed_once_and_a_loop_ends(tmp_path: Path) -> None:
    write(tmp_path, "in/a.jsonl", "elsewhere/b.jsonl")
    (tmp_path / "in/latest.jsonl").symlink_to("a.jsonl")
    (tmp_path / "in/linked").symlink_to("../elsewhere")
    (tmp_path / "in/loop").symlink_to("..")
    assert find_names(tmp_path, "in") == ["in/a.jsonl", "in/linked/b.jsonl"]


def test_a_name_that_is_not_utf8_can_be_printed(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    assert find_names(tmp_path, ".") == ["caf\\xe9.jsonl"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (
            "gone/x.jsonl",
            ["'gone/x.jsonl'", "{0}/gone/x.jsonl does not exist", "{0} is the last folder of it that exists"],
        ),
        ("a.jsonl/b", ["{0}/a.jsonl/b does not exist"]),
        (
            "others",
            ["{0}/others is a folder with no file of a known format", "other files: 3, with .xml", "with .gz or .zst"],
        ),
        ("empty", ["no file of a known format (no file at all)"]),
        ("*.parquet", ["{0}/*.parquet matches no file of a known format (no file at all)"]),
        ("others/_*", ["has an ending that is not known"]),
        ("others/*", ["{0}/others/a.xml has an ending that is not known", ".parquet, .pq, .jsonl"]),
        ("e*", ["{0}/e* matches no file of a known format"]),
        ("others/a.xml", ["{0}/others/a.xml has an ending that is not known"]),
        ("broken.jsonl", ["is a symbolic link to something that does not exist"]),
        ("loop.jsonl", ["cannot be read (Too many levels of symbolic links)"]),
        ("x" * 300 + ".jsonl", ["cannot be read (File name too long)"]),
        ("pipe.jsonl", ["is not a regular file but a named pipe"]),
        ("pipes", ["pipes/p.jsonl is not a regular file but a named pipe"]),
        ("/dev/null", ["/dev/null is not a regular file but a device"]),
        ("", ["not a path"]),
        (" ", ["not a path"]),
        ("a\0b", ["not a path"]),
        ("~nobody-of-this-name/x.jsonl", ["no user with a home folder"]),
    ],
)
def test_a_fault_names_pattern_path_and_what_was_found(tmp_path: Path, pattern: str, words: list[str]) -> None:
    write(tmp_path, "a.jsonl", "others/a.xml", "others/b.xml", "others/_c")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.jsonl").symlink_to("nothing")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipes/p.jsonl")
    with pytest.raises(InputError) as caught:
        find_source_files([pattern], tmp_path)
    for word in [*words, repr(pattern)]:
        assert word.format(tmp_path) in str(caught.value)


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder with a file and a folder that this test may not read, even where the tests run as root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, "a.jsonl", "in/closed/b.jsonl")
        folder.chmod(0o755)
        (folder / "a.jsonl").chmod(0)
        (folder / "in/closed").chmod(0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        yield folder
        os.seteuid(user)
        (folder / "in/closed").chmod(stat.S_IRWXU)


@pytest.mark.parametrize(
    ("pattern", "path"), [("a.jsonl", "a.jsonl"), ("in", "in/closed"), ("in/closed/b.jsonl", "in/closed/b.jsonl")]
)
def test_what_may_not_be_read_is_told(closed_folder: Path, pattern: str, path: str) -> None:
    with pytest.raises(InputError) as caught:
        find_source_files([pattern], closed_folder)
    assert f"{closed_folder}/{path} cannot be read (Permission denied)" in str(caught.value)
