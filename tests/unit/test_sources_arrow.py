"""Arrow files, streams and Hugging Face datasets: what is read, and what is the fault of a row or of the file."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather, ipc

from bulkinfer.errors import InputError
from bulkinfer.records import Document, UnreadableRow
from bulkinfer.sources import Source, find_source_files, open_source

TABLE = pa.table({"text": [f"text {number}" for number in range(10)], "number": range(10), "share": [0.5] * 10})


def open_file(path: Path, *fields: str) -> Source:
    (file,) = find_source_files([path.name], path.parent)
    return open_source(file, frozenset(fields), None)


def read(path: Path, *fields: str) -> list[object]:
    return [row.fields if isinstance(row, Document) else row.reason for row in open_file(path, *fields).iter_rows()]


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_feather_is_read_packed_or_not(tmp_path: Path, compression: str) -> None:
    feather.write_feather(TABLE, tmp_path / "in.feather", compression=compression, chunksize=3)
    assert read(tmp_path / "in.feather", "number", "text") == [
        {"number": number, "text": f"text {number}"} for number in range(10)
    ]


def test_no_needed_column_gives_the_rows_all_the_same(tmp_path: Path) -> None:
    feather.write_feather(TABLE, tmp_path / "in.feather")
    assert read(tmp_path / "in.feather", "gone") == [{}] * 10


def test_a_value_that_is_not_utf8_is_one_unreadable_row(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    feather.write_feather(pa.table({"text": texts}), tmp_path / "in.feather")
    reason = "in.feather, row 2: a value that is not valid, such as text that is not UTF-8"
    assert read(tmp_path / "in.feather", "text") == [{"text": "a"}, reason, {"text": "c"}]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an Arrow file: it is empty"),
        (b"PAR1 and more", "not an Arrow file: it does not begin as"),
        (b"FEA1" + b"\0" * 40, "Feather version 1"),
        (b"ARROW1\0\0" + b"\0" * 40, "the Arrow schema cannot be read"),
        (b"\xff\xff\xff\xff\x10\0\0\0", "the Arrow schema cannot be read"),
    ],
)
def test_what_is_no_arrow_file_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "in.arrow").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read(tmp_path / "in.arrow", "text")


def test_a_stream_that_is_cut_off_gives_the_batches_before_it(tmp_path: Path) -> None:
    path = tmp_path / "in.arrow"
    with ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=4)
    path.write_bytes(path.read_bytes()[:-200])
    rows: list[Document | UnreadableRow] = []
    with pytest.raises(InputError, match="the record batch after row 8 cannot be read"):
        rows.extend(open_file(path, "text").iter_rows())
    assert [row.origin.row for row in rows] == [*range(1, 9)]


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_any_damage_is_an_input_error_or_unreadable_rows(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "in.arrow"
    table = pa.table({"text": [f"text {number}" for number in range(300)], "tags": [["a", "bc"]] * 300})
    with (ipc.new_file if kind == "file" else ipc.new_stream)(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    whole = path.read_bytes()
    rng = random.Random(7)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 3, 20])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([len(whole), rng.randrange(len(whole))])])
        try:
            rows = list(open_file(path, "text", "tags").iter_rows())
        except InputError as error:
            assert str(error).startswith("in.arrow: ")  # noqa: PT017 - some damage leaves a file that can be read
        else:
            assert all(isinstance(row, Document | UnreadableRow) for row in rows)


def write_dataset(folder: Path, num_files: int = 2, **state: object) -> None:
    """As `Dataset.save_to_disk` does."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05}-of-{num_files:05}.arrow" for number in range(num_files)]
    for place, name in enumerate(names):
        with ipc.new_stream(folder / name, TABLE.schema) as writer:
            writer.write_table(TABLE.slice(place * 5, 5))
    found: dict[str, object] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "f00",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(found | state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    (folder / "cache-f00.arrow").write_bytes(b"not of the dataset")


def find_names(folder: Path, name: str) -> list[str]:
    return [file.name for file in find_source_files([name], folder)]


def test_a_dataset_is_its_data_files(tmp_path: Path) -> None:
    write_dataset(tmp_path / "ds")
    files = find_source_files(["ds"], tmp_path)
    assert [file.name for file in files] == ["ds/data-00000-of-00002.arrow", "ds/data-00001-of-00002.arrow"]
    rows = [row for file in files for row in open_source(file, frozenset({"number"}), None).iter_rows()]
    assert [row.fields["number"] for row in rows if isinstance(row, Document)] == [*range(10)]


def test_a_dataset_dict_is_its_splits_and_each_can_be_named(tmp_path: Path) -> None:
    write_dataset(tmp_path / "ds/train")
    write_dataset(tmp_path / "ds/test", num_files=1)
    (tmp_path / "ds/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    train = ["ds/train/data-00000-of-00002.arrow", "ds/train/data-00001-of-00002.arrow"]
    assert find_names(tmp_path, "ds") == ["ds/test/data-00000-of-00001.arrow", *train]
    assert find_names(tmp_path, "ds/train") == train


def test_a_dataset_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    write_dataset(tmp_path / "mapped", _indices_data_files=[{"filename": "indices.arrow"}])
    write_dataset(tmp_path / "short")
    (tmp_path / "short/data-00001-of-00002.arrow").unlink()
    write_dataset(tmp_path / "broken")
    (tmp_path / "broken/state.json").write_text("{")
    for name, words in (
        ("mapped", "indices mapping, .* Call flatten_indices"),
        ("short", "without its file data-00001-of-00002.arrow"),
        ("broken", r"whose state.json cannot be read \(JSONDecodeError\)"),
    ):
        with pytest.raises(InputError, match=words):
            find_names(tmp_path, name)


def test_a_state_json_of_something_else_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/state.json").write_text("[1]")
    (tmp_path / "other/a.jsonl").write_text("{}\n")
    assert find_names(tmp_path, "other") == ["other/a.jsonl"]
