"""Shards: what of the input becomes a request, in which order, and how much is held at once."""

import gzip
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest

from bulkinfer import shards
from bulkinfer.errors import InputError
from bulkinfer.fingerprint import hash_document
from bulkinfer.prompt import PromptTemplate
from bulkinfer.records import FailureCode, Message, Scan
from bulkinfer.shards import Shard, ShardPlanner
from bulkinfer.sources import find_source_files


class Store:
    """Stands for the store's word: these must not be asked, and so many lookups were made."""

    def __init__(self, *bodies: str) -> None:
        self.done = {hash_of(body) for body in bodies}
        self.asked: list[set[bytes]] = []

    def find_done(self, document_hashes: Sequence[bytes]) -> frozenset[bytes]:
        """The store's answer."""
        self.asked.append(set(document_hashes))
        return frozenset(self.done & set(document_hashes))


def hash_of(body: str) -> bytes:
    """Of a document whose only used field is `body`."""
    return hash_document({"body": body})


def write(path: Path, bodies: Sequence[Any]) -> Path:
    """A JSONL file with one document for each body; a body of bytes is a line as it stands."""
    path.write_bytes(
        b"".join(
            (body if isinstance(body, bytes) else orjson.dumps({"id": "i", "body": body})) + b"\n" for body in bodies
        )
    )
    return path


def plan(
    *paths: Path,
    store: Store | None = None,
    template: str = "{{ body }}",
    limit: int | None = None,
    max_documents: int = 1_000,
    max_chars: int = 1_000_000,
    num_known_rows: int = 0,
) -> ShardPlanner:
    """A planner over files that lie in one folder; scans are numbered from 1."""
    files = find_source_files([path.name for path in paths], paths[0].parent)
    return ShardPlanner(
        scans=[Scan(UUID(int=number), file, num_known_rows) for number, file in enumerate(files, start=1)],
        template=PromptTemplate.parse(None, template),
        id_field=None,
        find_done=(store or Store()).find_done,
        limit=limit,
        max_documents=max_documents,
        max_chars=max_chars,
    )


def texts(shard: Shard) -> list[str]:
    """The prompts of a shard, in order."""
    return [request.messages[0].content for request in shard.requests]


def rows(shard: Shard) -> list[int]:
    """The new input rows of a shard."""
    return [row.row for row in shard.rows]


def test_a_request_holds_hash_origin_messages_and_length(tmp_path: Path) -> None:
    [shard] = plan(write(tmp_path / "a.jsonl", ["x", "yy"]), template="Say {{ body }}!").iter_shards()
    longest, shortest = shard.requests
    assert (longest.document_hash, longest.messages, longest.num_chars) == (
        hash_of("yy"),
        (Message("user", "Say yy!"),),
        7,
    )
    assert (longest.origin.source, longest.origin.row, longest.origin.document_id) == ("a.jsonl", 2, "a.jsonl:2")
    assert (longest.attempt, shortest.num_chars) == (1, 6)


def test_requests_are_longest_first_and_equally_long_ones_in_file_order(tmp_path: Path) -> None:
    [shard] = plan(write(tmp_path / "a.jsonl", ["bb", "a", "cccc", "dd", "e", "ff"])).iter_shards()
    assert texts(shard) == ["cccc", "bb", "dd", "ff", "a", "e"]


def test_equal_documents_of_a_stretch_are_one_request_of_the_first_row(tmp_path: Path) -> None:
    [shard] = plan(write(tmp_path / "a.jsonl", ["x", "y", "x", "x", "y"])).iter_shards()
    assert [(request.messages[0].content, request.origin.row) for request in shard.requests] == [("x", 1), ("y", 2)]
    assert (shard.num_read, shard.num_skipped) == (5, 3)
    assert [(row.row, row.document_hash) for row in shard.rows] == [
        (1, hash_of("x")),
        (2, hash_of("y")),
        (3, hash_of("x")),
        (4, hash_of("x")),
        (5, hash_of("y")),
    ]


def test_equal_documents_of_later_stretches_are_not_asked_again_nor_looked_up(tmp_path: Path) -> None:
    store = Store()
    path = write(tmp_path / "a.jsonl", ["x", "y", "y", "x", "z", "x"])
    first, second, third, _ = plan(path, store=store, max_documents=2).iter_shards()
    assert (texts(first), texts(second), texts(third)) == (["x", "y"], [], ["z"])
    assert (second.num_skipped, third.num_skipped) == (2, 1)
    assert store.asked[:3] == [{hash_of("x"), hash_of("y")}, set(), {hash_of("z")}]


def test_after_forget_the_store_answers_for_a_document(tmp_path: Path) -> None:
    """x is on disk as done; y was forgotten and the store does not know it, so it would be asked again."""
    store = Store()
    planner = plan(write(tmp_path / "a.jsonl", ["x", "y", "z", "x", "y", "z"]), store=store, max_documents=3)
    shards = planner.iter_shards()
    assert texts(next(shards)) == ["x", "y", "z"]
    store.done.add(hash_of("x"))
    planner.forget([hash_of("x"), hash_of("y"), hash_of("never asked")])
    assert texts(next(shards)) == ["y"]
    assert store.asked[1] == {hash_of("x"), hash_of("y")}


def test_documents_that_the_store_knows_are_skipped_but_their_rows_are_written(tmp_path: Path) -> None:
    [shard] = plan(write(tmp_path / "a.jsonl", ["x", "y", "z"]), store=Store("x", "z")).iter_shards()
    assert (texts(shard), rows(shard), shard.num_skipped) == (["y"], [1, 2, 3], 2)


def test_known_rows_are_read_and_asked_but_not_written_again(tmp_path: Path) -> None:
    [shard] = plan(write(tmp_path / "a.jsonl", ["x", "y", "z"]), num_known_rows=2).iter_shards()
    assert (texts(shard), rows(shard), shard.num_read) == (["x", "y", "z"], [3], 3)
    assert shard.last_rows == {UUID(int=1): 3}


@pytest.mark.parametrize(
    ("limit", "asked", "last_row"),
    [
        (1, {"b"}, 3),  # rows 1 and 3 need nothing: they go with it
        (2, {"b", "dddd"}, 4),
        (3, {"b", "dddd", "cc"}, 6),
        (9, {"b", "dddd", "cc"}, 6),
    ],
)
def test_limit_cuts_in_file_order_and_rows_behind_the_cut_are_left(
    tmp_path: Path, limit: int, asked: set[str], last_row: int
) -> None:
    path = write(tmp_path / "a.jsonl", ["done", "b", "b", "dddd", "cc", "done"])
    [shard] = plan(path, store=Store("done"), limit=limit).iter_shards()
    assert set(texts(shard)) == asked
    assert rows(shard) == list(range(1, last_row + 1))
    assert (shard.num_read, shard.last_rows) == (last_row, {UUID(int=1): last_row})
    assert shard.num_skipped == last_row - len(asked)


def test_limit_counts_over_shards_and_ends_the_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [f"body {number}" for number in range(10)])
    shards = list(plan(path, limit=5, max_documents=3).iter_shards())
    assert [rows(shard) for shard in shards] == [[1, 2, 3], [4, 5]]


def test_limit_counts_documents_that_cannot_be_asked(tmp_path: Path) -> None:
    [shard] = plan(write(tmp_path / "a.jsonl", [b"[broken", "", "x", "y"]), limit=3).iter_shards()
    assert [failure.code for failure in shard.failures] == [FailureCode.UNREADABLE_ROW, FailureCode.EMPTY_PROMPT]
    assert (texts(shard), rows(shard)) == (["x"], [1, 2, 3])


def test_rows_without_a_prompt_are_failures_with_their_place(tmp_path: Path) -> None:
    lines: list[Any] = [b"[broken", "x", None, " \n", b"[broken"]
    [shard] = plan(write(tmp_path / "a.jsonl", lines)).iter_shards()
    assert texts(shard) == ["x"]
    assert [(failure.origin.row, failure.code, failure.attempts) for failure in shard.failures] == [
        (1, FailureCode.UNREADABLE_ROW, 0),
        (3, FailureCode.MISSING_FIELD, 0),
        (4, FailureCode.EMPTY_PROMPT, 0),
    ]
    assert (shard.num_read, shard.num_skipped) == (5, 1)


def test_a_failure_is_looked_up_as_a_document_is(tmp_path: Path) -> None:
    store = Store(" ")
    [shard] = plan(write(tmp_path / "a.jsonl", [" ", "x"]), store=store).iter_shards()
    assert (shard.failures, texts(shard)) == ((), ["x"])


@pytest.mark.parametrize(
    ("max_documents", "max_chars", "expected"),
    [
        (3, 1_000, [3, 3, 2]),
        (4, 1_000, [4, 4, 0]),
        (100, 41, [3, 3, 2]),  # ten characters each, and ten of template: the third reaches it
        (100, 60, [3, 3, 2]),
        (100, 61, [4, 4, 0]),
        (100, 1, [1, 1, 1, 1, 1, 1, 1, 1, 0]),
        (2, 60, [2, 2, 2, 2, 0]),
    ],
)
def test_a_stretch_ends_at_the_bound_of_documents_or_of_characters(
    tmp_path: Path, max_documents: int, max_chars: int, expected: list[int]
) -> None:
    path = write(tmp_path / "a.jsonl", [f"{number:010}" for number in range(8)])
    shards = plan(path, max_documents=max_documents, max_chars=max_chars).iter_shards()
    assert [shard.num_read for shard in shards] == expected


@pytest.mark.parametrize(
    ("system", "user", "max_chars", "expected"),
    [
        (None, "{{ body }}" + "x" * 20, 61, [2, 1]),  # 30 of template and 10 of text each
        (None, "{{ body }}" + "x" * 20, 40, [1, 1, 1, 0]),
        ("{{ body }}", "{{ body }}", 90, [3, 0]),  # both messages are copied for each document
        ("x" * 1_000, "{{ body }}", 41, [3, 0]),  # a message without fields is shared by all
    ],
)
def test_template_text_counts_as_often_as_it_is_copied(
    tmp_path: Path, system: str | None, user: str, max_chars: int, expected: list[int]
) -> None:
    planner = plan(write(tmp_path / "a.jsonl", [f"{number:010}" for number in range(3)]), max_chars=max_chars)
    planner.template = PromptTemplate.parse(system, user)
    assert [shard.num_read for shard in planner.iter_shards()] == expected


@pytest.mark.parametrize(
    "body",
    [["aaaaa", "bbbbb"], {"key": "aaaaabbbbb"}, {"a": [{"b": ["aaaaa"]}, "bbbbb"], "c": [1, None, True]}],
)
def test_text_inside_of_lists_and_mappings_counts_against_the_bound(tmp_path: Path, body: object) -> None:
    path = write(tmp_path / "a.jsonl", [body] * 4)
    assert [shard.num_read for shard in plan(path, max_chars=40).iter_shards()] == [2, 2, 0]
    assert [shard.num_read for shard in plan(path, max_chars=41).iter_shards()] == [3, 1]


def test_a_stretch_goes_over_files_and_says_how_far_each_was_read(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", ["1", "2", "3"]), write(tmp_path / "b.jsonl", ["4", "5"])
    first, second, third = plan(a, b, max_documents=2).iter_shards()
    one, two = UUID(int=1), UUID(int=2)
    assert [first.last_rows, second.last_rows, third.last_rows] == [{one: 2}, {one: 3, two: 1}, {two: 2}]
    assert [(row.scan_id, row.row, row.document_id) for row in second.rows] == [
        (one, 3, "a.jsonl:3"),
        (two, 1, "b.jsonl:1"),
    ]


def test_bytes_read_grows_to_the_size_of_the_input(tmp_path: Path) -> None:
    names = ["a.jsonl", "b.jsonl"]
    paths = [write(tmp_path / name, [f"{name} {number}" + "x" * 2_000 for number in range(1_000)]) for name in names]
    size_bytes = paths[0].stat().st_size
    shards = list(plan(*paths, max_documents=300).iter_shards())
    told = [shard.bytes_read for shard in shards]
    assert told == sorted(told)
    assert 300 * 2_000 < told[0] < size_bytes, "the first 300 rows, and not the whole file"
    assert size_bytes < told[3] < 2 * size_bytes, "row 1,200 stands in the second file"
    assert told[-1] == 2 * size_bytes


def test_an_empty_input_is_one_empty_shard(tmp_path: Path) -> None:
    [shard] = plan(write(tmp_path / "a.jsonl", [])).iter_shards()
    assert (shard.num_read, shard.requests, shard.failures, shard.rows, shard.last_rows) == (0, (), (), (), {})


def test_what_was_read_before_a_damaged_place_is_yielded_first(tmp_path: Path) -> None:
    dice = random.Random(1)
    bodies = ["".join(dice.choices("abcdefghijklmnop", k=400)) for _ in range(3_000)]
    whole = gzip.compress(write(tmp_path / "whole.jsonl", bodies).read_bytes(), mtime=0)
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    shards = plan(tmp_path / "a.jsonl.gz", max_documents=1_000).iter_shards()
    first, second = next(shards), next(shards)
    with pytest.raises(InputError, match=r"a\.jsonl\.gz"):
        next(shards)
    assert sorted(texts(first)) == sorted(bodies[:1_000])
    assert 100 < second.num_read < 1_000, "the rest of the readable half"
    assert sorted(texts(second)) == sorted(bodies[1_000 : 1_000 + second.num_read])
    assert second.last_rows == {UUID(int=1): 1_000 + second.num_read}


def test_a_file_that_went_away_ends_the_reading_after_the_files_before_it(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", ["1", "2"]), write(tmp_path / "b.jsonl", ["3"])
    planner = plan(a, b)
    b.unlink()
    shards = planner.iter_shards()
    assert rows(next(shards)) == [1, 2]
    with pytest.raises(InputError, match=r"b\.jsonl"):
        next(shards)


def test_a_stopped_planner_yields_nothing_more(tmp_path: Path) -> None:
    planner = plan(write(tmp_path / "a.jsonl", [str(number) for number in range(10)]), max_documents=3)
    shards = planner.iter_shards()
    assert rows(next(shards)) == [1, 2, 3]
    planner.stop()
    assert list(shards) == []


def test_a_shard_that_is_being_planned_at_the_stop_is_not_yielded(tmp_path: Path) -> None:
    """The first lookup stops the planner: the shard is incomplete, and the second stretch is never filled."""
    store = Store()
    planner = plan(write(tmp_path / "a.jsonl", [str(number) for number in range(10)]), store=store, max_documents=4)

    def stop_and_find(document_hashes: Sequence[bytes]) -> frozenset[bytes]:
        planner.stop()
        return store.find_done(document_hashes)

    planner.find_done = stop_and_find
    assert list(planner.iter_shards()) == []
    assert len(store.asked) == 1


@pytest.mark.parametrize(
    ("num", "limit", "expected"), [(3, None, [False, True]), (2, None, [False, True]), (5, 2, [True])]
)
def test_the_last_shard_says_so(tmp_path: Path, num: int, limit: int | None, expected: list[bool]) -> None:
    path = write(tmp_path / "in.jsonl", [f"body {number}" for number in range(num)])
    shards = list(plan(path, max_documents=2, limit=limit).iter_shards())
    assert [shard.is_last for shard in shards] == expected


def test_a_shard_before_damage_is_the_last(tmp_path: Path) -> None:
    whole = gzip.compress(write(tmp_path / "in.jsonl", [f"body {number}" for number in range(500)]).read_bytes())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-20])
    shards = plan(tmp_path / "cut.jsonl.gz", max_documents=100_000).iter_shards()
    assert next(shards).is_last
    with pytest.raises(InputError):
        next(shards)


def test_image_files_bound_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_SHARD_IMAGE_BYTES", 200)
    png = b"\x89PNG\r\n\x1a\n"
    for number in range(5):
        (tmp_path / f"{number}.png").write_bytes(png + bytes([number]) * 92)
    path = write(tmp_path / "a.jsonl", [f"{number}.png" for number in range(5)])
    planner = plan(path)
    planner.template = replace(planner.template, image_fields=("body",))
    images = planner.template.describe_images("")
    planner.scans = [replace(scan, source=replace(scan.source, images=images)) for scan in planner.scans]
    found = list(planner.iter_shards())
    assert [shard.num_read for shard in found] == [2, 2, 1], "of 100 bytes each"
    assert all(len(request.image_files) == 1 for shard in found for request in shard.requests)
    assert {request.num_image_chars for shard in found for request in shard.requests} == {136}
