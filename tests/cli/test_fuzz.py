"""Hypothesis on the whole command line: job files, rows, arguments. Never a traceback, never another exit code.

`make fuzz` runs many more cases than `make test`; see `tests/conftest.py` for the profiles.
"""

import csv
import gzip
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bulkinfer.sources import find_source_files, open_source
from tests.cli_support import Called
from tests.cli_support import call as call_cli
from tests.conftest import JobFolder

EXIT_CODES = {0, 2, 3, 4, 5}
few = settings(max_examples=settings().max_examples // 8)
"""For what runs whole jobs: an example takes a second."""


def call(*arguments: str) -> Called:
    """Run a command, and see that it keeps to the contract."""
    called = call_cli(*arguments)
    assert called.exit_code in EXIT_CODES, called
    assert "Traceback" not in called.stderr
    assert "\x1b" not in called.stderr
    return called


@contextmanager
def new_folder() -> Iterator[JobFolder]:
    """A job folder for one example."""
    path = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        yield JobFolder(path)
    finally:
        shutil.rmtree(path)


def count_outcomes(folder: JobFolder) -> dict[str, int]:
    """What stands in the database, by name."""
    sql = """select
        (select count(*) from documents) as documents,
        (select count(*) from answers) as answers,
        (select count(*) from open_failures) as failures,
        (select count(*) from results) as results,
        (select count(*) from failures) as failed
    """
    called = call("query", str(folder.database), sql, "--format", "json")
    assert called.exit_code == 0, called
    counts: dict[str, int] = json.loads(called.stdout)[0]
    return counts


def check_whole_runs(folder: JobFolder, num_rows: int) -> dict[str, int]:
    """Run twice: each row has exactly one outcome, the second run adds nothing."""
    first = json.loads(call("run", str(folder.job_path), "--json", "--max-failures", "100%").stdout)
    if first["exit_code"] == 2:
        assert num_rows == 0 or first["error"], first
        return {}
    counts = count_outcomes(folder)
    assert counts["documents"] == first["documents"]["read"] == num_rows
    assert counts["answers"] + counts["failures"] == num_rows
    documents = first["documents"]
    assert documents["succeeded"] + documents["failed"] + documents["duplicates"] == num_rows
    second = json.loads(call("run", str(folder.job_path), "--json", "--max-failures", "100%").stdout)
    assert second["documents"]["succeeded"] == second["documents"]["failed"] == 0
    assert count_outcomes(folder) == counts
    return counts


# Job files


KEYS = st.sampled_from([
    "name", "input", "path", "id", "model", "revision", "chat_template", "prompt", "system", "user", "sampling",
    "temperature", "max_tokens", "stop", "seed", "limits", "max_concurrency", "max_failures", "engine", "kind",
    "simulated", "faults", "replicas", "output", "database", "<<", "", "a b", "\u202e", "x" * 300,
])  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**40, 1e308, 5e-324, float("inf"), float("nan"), -0.0])
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(
        [
            "",
            " ",
            "~",
            "~nosuchuser/x.duckdb",
            "/",
            ".",
            "..",
            "/dev/null",
            "/proc/self/mem",
            "a\0b",
            "x" * 5000,
            "%s{}",
            "${HOME}",
            "${NOT_SET_AT_ALL}",
            "$${X}",
            "{{ body }}",
            "{% for",
            "{{ body | nothing }}",
            "*",
            "[a",
            "in.jsonl",
            "out.duckdb",
            "model",
            "5%",
            "101%",
            "-1%",
            "1e3",
            "0x10",
            "no",
            "\ud800",
            "\x1b[31m",
            "[bold][/]",
            "\u202e",
            "a?b.duckdb",
            "a\\b.duckdb",
            "vllm",
            "simulated",
            "virtual",
            "die",
            "body",
            "'); drop table results; --",
        ]
    )
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
PATHS = st.sampled_from([
    ("name",), ("input",), ("input", "path"), ("input", "id"), ("model",), ("model", "path"), ("model", "revision"),
    ("model", "chat_template"), ("prompt",), ("prompt", "system"), ("prompt", "user"), ("sampling",),
    ("sampling", "max_tokens"), ("sampling", "temperature"), ("sampling", "stop"), ("sampling", "seed"), ("limits",),
    ("limits", "max_concurrency"), ("limits", "max_queue_size"), ("limits", "max_context_tokens"),
    ("limits", "max_failures"), ("engine",), ("engine", "kind"), ("engine", "replicas"), ("engine", "simulated"),
    ("engine", "simulated", "clock"), ("engine", "simulated", "faults"), ("engine", "max_restarts"),
    ("engine", "simulated", "output_tokens"), ("engine", "vllm"), ("output",), ("output", "database"), ("extra",),
])  # fmt: skip


def mutate(spec: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    """Put a value somewhere, or take the key away for `...`."""
    section = spec
    for key in path[:-1]:
        if not isinstance(section.get(key), dict):
            return
        section = section[key]
    if value is ...:
        section.pop(path[-1], None)
    else:
        section[path[-1]] = value


def is_cheap(spec: dict[str, Any]) -> bool:
    """Whether the example neither loads a model, nor starts a process, nor waits on purpose."""
    engine = spec.get("engine")
    if not isinstance(engine, dict) or engine.get("kind") != "simulated":
        return False
    simulated = engine.get("simulated")
    return isinstance(simulated, dict) and simulated.get("clock") == "virtual"


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.lists(st.tuples(PATHS, VALUES | st.just(...)), min_size=1, max_size=3))
def test_a_job_file_with_wrong_values(mutations: list[tuple[tuple[str, ...], object]]) -> None:
    with new_folder() as folder:
        folder.write_documents([{"id": "a", "body": "x"}, {"id": "b"}])
        spec = json.loads(json.dumps(folder.spec))
        for path, value in mutations:
            mutate(spec, path, value)
        text = yaml.dump(spec, allow_unicode=True)
        folder.job_path.write_bytes(text.encode("utf-8", "surrogatepass"))
        called = call("run" if is_cheap(spec) else "status", str(folder.job_path), "--json")
        assert len(called.stdout.splitlines()) == 1
        json.loads(called.stdout)


LINES = st.sampled_from([
    "name: a", "name: b", "input: {path: in.jsonl}", "prompt:", "  user: x", "  user: |", "   {{ body }}", "a: &a [1]",
    "b: *a", "c: *none", "d: !!python/object/apply:os.system [ls]", "e: !x y", "<<: *a", "- x", "? k", ": v", "---",
    "...", "%YAML 1.1", "%TAG ! x", "'", '"', "{", "}", "[", "]", "\t", "#", "x: 1: 2",
    'y: "\\UFFFFFFFF"', "z: 0x" + "f" * 400,
    "z: 1e999999", "z: " + "9" * 5000, "z: " + "[" * 300, "\ufeff", "\x00", "\x85", "\u2028", "k: {" + "a: {" * 200,
])  # fmt: skip
BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@given(st.lists(LINES | st.text(max_size=20), max_size=12).map("\n".join) | st.text(max_size=200))
@example(BOMB)
@example("a: &a [*a]")
@example("&a a: *a")
def test_a_job_file_of_odd_lines(text: str) -> None:
    with new_folder() as folder:
        folder.job_path.write_bytes(text.encode("utf-8", "surrogatepass"))
        assert call("status", str(folder.job_path), "--json").exit_code == 2


@given(st.binary(max_size=200))
def test_a_job_file_of_bytes(content: bytes) -> None:
    with new_folder() as folder:
        folder.job_path.write_bytes(content)
        assert call("run", str(folder.job_path)).exit_code == 2


# Command lines


ARGUMENTS = st.sampled_from([
    "run", "status", "failures", "query", "export", "schema", "JOB", "JOB", "JOB", "DATABASE", "--json",
    "--quiet", "--limit", "0", "1", "-1", "9" * 30, "--only", "new", "failed", "--set", "name=x", "--set", "=",
    "a.b.c=1", "limits={}", "limits.max_failures=0", "prompt.user=[", "prompt=!x", "input.path=*",
    "output.database=~no/x",
    "--max-failures", "5%", "-5%", "nan%", "1e9", "--grace", "nan", "inf", "-1", "--to", "o.csv", "o.jsonl",
    "o.parquet", "o.txt", "/", "/dev/full.csv", "nowhere/o.csv", "--format", "json", "csv", "table", "select 1",
    "select * from answers", "select 'a' || chr(27) || '[31m' as x", "select 2::hugeint ** 100 as x",
    "select 170141183460469231731687303715884105727::hugeint as x", "select 'nan'::float as x",
    "select 'infinity'::timestamp as x", "select '290000-01-01'::date as x", "select interval 300 years as x",
    "select '\\xff'::blob as x", "select map {1: 2}", "select map {[1]: 2}", "select union_value(a := 1)",
    "select '15:30:00+15'::timetz", "select '1 year'::interval", "select [{'a': [1, null]}]", "select '101'::bit",
    "select 'x'::json", "select 1e400", "select null", "select chr(0)", 'select * from range(3) t("\x1b[31m")', "--",
    "--help", "--version", "-h", "--bogus", "\x1b]52;c;aGk=\x07", "--\x1b[31m", "\udcff", "\udcff.yaml", "", " ",
])  # fmt: skip


@few
@given(st.lists(ARGUMENTS, max_size=6))
@example(["query", "JOB", "select 170141183460469231731687303715884105727::hugeint as x", "--format", "json"])
def test_a_command_line_of_odd_arguments(words: list[str]) -> None:
    with new_folder() as folder:
        folder.write_documents([{"id": "a", "body": "x"}, {"id": "b\x1b[31m"}])
        folder.write_job()
        if words[:1] != ["run"]:
            call("run", str(folder.job_path), "--quiet")
        names = {"JOB": str(folder.job_path), "DATABASE": str(folder.database)}
        arguments = [names.get(word, word if not word.startswith("o.") else str(folder.path / word)) for word in words]
        called = call(*arguments)
        if "--json" in words and called.stdout and not {"-h", "--help", "--version"} & set(words):
            json.loads(called.stdout)


# Rows


ROW_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
GOOD_ROWS = st.fixed_dictionaries({}, optional={"id": ROW_VALUES, "body": ROW_VALUES, "x": ROW_VALUES}).map(
    lambda row: json.dumps(row).encode("utf-8", "surrogatepass")
)
BAD_ROWS = st.binary(max_size=30) | st.sampled_from([
    b"{", b"[]", b"null", b'{"body": "\\ud800"}', b'{"body": 1e999}', b'{"body": NaN}', b'{"a": 1} {"b": 2}', b"\xff",
    b'{"body": "x", "body": "y"}', b"[" * 5000, b'{"body": ' + b"[" * 2000 + b"]" * 2000 + b"}", b"\xef\xbb\xbf{}",
    b" ", b'{"body": ' + b"9" * 5000 + b"}", b'{"body": 123456789012345678901234567890}', b'\x00{"body": 1}',
    b'{"body": ""}',
    b'{"id": 12345678901234567890123, "body": [1.5]}', b'{"id": "\\u0000\\u001b[31m", "body": "x"}', b"\r",
    b'{"body":"\x1b"}',
])  # fmt: skip
JSONL = st.lists(GOOD_ROWS | BAD_ROWS.map(lambda row: row.replace(b"\n", b"")), max_size=12)


def count_rows(lines: list[bytes]) -> int:
    """The lines that count as rows: all but those of white space."""
    text = b"\n".join(lines)
    return sum(1 for number, line in enumerate(text.split(b"\n")) if _strip_mark(number, line).strip())


def _strip_mark(number: int, line: bytes) -> bytes:
    return line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line


@few
@given(JSONL, st.randoms(use_true_random=False))
def test_jsonl_of_any_lines_ends_with_one_outcome_a_row(lines: list[bytes], random: Random) -> None:
    with new_folder() as folder, new_folder() as other:
        for job in (folder, other):
            job.input.write_bytes(b"\n".join(lines))
            job.write_job()
            random.shuffle(lines)
        counts = check_whole_runs(folder, count_rows(folder.input.read_bytes().split(b"\n")))
        mixed = check_whole_runs(other, count_rows(other.input.read_bytes().split(b"\n")))
        if counts and mixed and b"\xef\xbb\xbf" not in folder.input.read_bytes():
            assert counts == mixed


@few
@given(JSONL, st.sampled_from(["gz", "zst"]), st.floats(0, 1, exclude_max=True), st.booleans())
def test_packed_jsonl_that_is_cut_anywhere_keeps_what_was_before(
    lines: list[bytes], kind: str, share: float, is_cut: bool
) -> None:
    content = b"\n".join(lines)
    packed = gzip.compress(content) if kind == "gz" else zstandard.compress(content)
    packed = packed[: math.floor(share * len(packed))] if is_cut else packed
    with new_folder() as folder:
        (folder.path / f"in.jsonl.{kind}").write_bytes(packed)
        folder.write_job(input={"path": f"in.jsonl.{kind}"})
        if not is_cut:
            check_whole_runs(folder, count_rows(content.split(b"\n")))
            return
        first = json.loads(call("run", str(folder.job_path), "--json", "--max-failures", "100%").stdout)
        assert first["exit_code"] == 2
        if folder.database.exists():
            counts = count_outcomes(folder)
            assert counts["answers"] + counts["failures"] == counts["documents"] <= count_rows(content.split(b"\n"))
            call("run", str(folder.job_path), "--json", "--max-failures", "100%")
            assert count_outcomes(folder) == counts


CONDITIONS = st.lists(
    st.sampled_from(
        [
            "body",
            "id",
            "x",
            "n",
            "input",
            "_",
            "(",
            ")",
            "=",
            "<>",
            ">",
            "<",
            "+",
            "-",
            "*",
            "/",
            "%",
            ",",
            ".",
            "::",
            ";",
            "--",
            "/*",
            "''",
            "'a'",
            '"',
            "and",
            "or",
            "not",
            "is",
            "null",
            "true",
            "1",
            "2.5",
            "int",
            "varchar",
            "in",
            "like",
            "case",
            "when",
            "then",
            "end",
            "length(",
            "random()",
            "now()",
            "select",
            "from",
            "where",
            "[",
            "]",
            "{",
            "}",
            "->",
            "->>",
            "$1",
            "?",
            "@",
            "!",
        ]
    ),
    max_size=8,
).map(" ".join)


@few
@given(CONDITIONS | st.text(max_size=20), st.sampled_from(["in.jsonl", "in.parquet", "in.csv"]))
def test_a_condition_of_any_words_ends_with_one_outcome_a_row(where: str, name: str) -> None:
    rows = [{"id": str(number), "body": f"text {number}", "x": "y" * number} for number in range(6)]
    with new_folder() as folder:
        folder.write_documents(rows)
        pq.write_table(pa.Table.from_pylist(rows), folder.path / "in.parquet")
        lines = "".join(",".join(row.values()) + "\n" for row in rows)
        (folder.path / "in.csv").write_text("id,body,x\n" + lines, encoding="utf-8")
        folder.write_job(input={"path": name, "where": where})
        first = json.loads(call("run", str(folder.job_path), "--json", "--max-failures", "100%").stdout)
        if first["exit_code"] == 2:
            assert first["error"], first
            return
        counts = count_outcomes(folder)
        assert counts["answers"] + counts["failures"] == counts["documents"] == first["documents"]["read"] <= 6


CSV_LINES = st.lists(
    st.sampled_from(["a", "b", "", " ", '"', '""', ",", ";", "\t", "ü", "\0", "x" * 40]), max_size=8
).map("".join)


@few
@given(
    st.lists(CSV_LINES, max_size=10),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["utf-8", "cp1252", "utf-16"]),
)
def test_csv_of_any_lines_ends_with_one_outcome_a_row(lines: list[str], end: str, encoding: str) -> None:
    with new_folder() as folder:
        path = folder.path / "in.csv"
        path.write_bytes(end.join(["id,body", *lines]).encode(encoding))
        folder.write_job(input={"path": path.name})
        (file,) = find_source_files([path.name], folder.path)
        check_whole_runs(folder, len(list(open_source(file, None, None).iter_rows())))


UTF8 = st.characters(codec="utf-8")
ARROW_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(UTF8, max_size=10),
    pa.large_string(): st.text(UTF8, max_size=10),
    pa.binary(): st.binary(max_size=10),
    pa.binary(4): st.binary(min_size=4, max_size=4),
    pa.decimal128(38, 10): st.decimals(-(10**20), 10**20, allow_nan=False, places=5),
    pa.decimal256(76, -2): st.integers(-(10**30), 10**30).map(lambda number: Decimal(number * 100)),
    pa.date32(): st.dates() | st.sampled_from([date.min, date.max]),
    pa.time64("ns"): st.times(),
    pa.time32("s"): st.just(time(23, 59, 59)),
    pa.timestamp("s"): st.integers(-(2**62), 2**62),
    pa.timestamp("us", "Europe/Amsterdam"): st.datetimes(),
    pa.timestamp("ns", "+03:00"): st.integers(-(2**63), 2**63 - 1),
    pa.timestamp("ms"): st.datetimes(),
    pa.duration("us"): st.timedeltas(timedelta(-1000), timedelta(1000)),
    pa.list_(pa.int32()): st.lists(st.none() | st.integers(-5, 5), max_size=3),
    pa.list_(pa.binary()): st.lists(st.binary(max_size=3), max_size=3),
    pa.list_(pa.float32(), 2): st.lists(st.floats(width=32), min_size=2, max_size=2),
    pa.struct([("a", pa.string()), ("b", pa.timestamp("s"))]): st.fixed_dictionaries(
        {"a": st.text(UTF8, max_size=3), "b": st.integers(-(2**62), 2**62)}
    ),
    pa.map_(pa.string(), pa.binary()): st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=3)), max_size=3),
    pa.map_(pa.int32(), pa.float64()): st.lists(st.tuples(st.integers(0, 3), st.floats()), max_size=3),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["a", "b\x1b", ""]),
    pa.uuid(): st.binary(min_size=16, max_size=16),
    pa.json_(): st.sampled_from(["{}", "1", "not json"]),
}


@st.composite
def arrow_columns(draw: st.DrawFn, num_rows: int) -> pa.Array:
    """A column of any type; values that Arrow does not take become null."""
    arrow_type = draw(st.sampled_from(list(ARROW_VALUES)))
    values = draw(st.lists(st.none() | ARROW_VALUES[arrow_type], min_size=num_rows, max_size=num_rows))
    storage = arrow_type.storage_type if isinstance(arrow_type, pa.BaseExtensionType) else arrow_type
    try:
        array = pa.array(values, storage)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        array = pa.nulls(num_rows, storage)
    return array if storage is arrow_type else pa.ExtensionArray.from_storage(arrow_type, array)


@few
@given(st.data())
def test_parquet_of_any_types_ends_with_one_outcome_a_row(data: st.DataObject) -> None:
    num_rows = data.draw(st.integers(0, 6))
    columns = {name: data.draw(arrow_columns(num_rows)) for name in ("id", "body", "x")}
    with new_folder() as folder:
        try:
            pq.write_table(pa.table(columns), folder.path / "in.parquet", row_group_size=3)
        except (pa.ArrowException, OSError):  # not every type can be written
            return
        prompt = {"user": data.draw(st.sampled_from(["{{ body }}", "{{ body | tojson }}{{ x | default('-') }}"]))}
        folder.write_job(input={"path": "in.parquet"}, prompt=prompt)
        check_whole_runs(folder, num_rows)
        for target in ("o.csv", "o.jsonl", "o.parquet"):
            if folder.database.exists():
                called = call("export", str(folder.job_path), "--to", str(folder.path / target))
                assert called.exit_code == 0, called


def test_exports_hold_the_ids_as_they_are() -> None:
    ids = ["a\x1b[31m", "[bold][/]", "\u202ex", "q\"',;", "line\nbreak", "=1+1", "", " ", "🐙", "x" * 300, "-x", "%s"]
    with new_folder() as folder:
        folder.write_documents([{"id": name, "body": f"text {number}"} for number, name in enumerate(ids)])
        folder.write_job()
        assert call("run", str(folder.job_path), "--quiet").exit_code == 0
        for target in ("o.csv", "o.jsonl", "o.parquet"):
            assert call("export", str(folder.job_path), "--to", str(folder.path / target)).exit_code == 0
        with (folder.path / "o.csv").open(newline="") as file:
            assert [row["document_id"] for row in csv.DictReader(file)] == ids
        lines = (folder.path / "o.jsonl").read_bytes().splitlines()
        assert [orjson.loads(line)["document_id"] for line in lines] == ids
        assert pq.read_table(folder.path / "o.parquet").column("document_id").to_pylist() == ids
