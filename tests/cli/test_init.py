"""`bulkinfer init`: the job that it writes runs as it is, for every format, and it takes nobody's file away."""

import gzip
import json
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from bulkinfer.draft import draft_job
from bulkinfer.job import load_job
from tests.cli_support import call
from tests.conftest import JobFolder
from tests.http_support import Served, serve_files

ENGINE = ["--set", "engine.kind=simulated", "--set", "engine.simulated={clock: virtual}"]
ROWS: list[dict[str, Any]] = [
    {
        "nr": number % 3,
        "ticket_id": f"T-{number:03}",
        "subject": f"Subject {number}",
        "body": f"The text of ticket {number}. " * 5,
        "url": f"https://example.com/tickets/{number}/" + "x" * 80,
    }
    for number in range(30)
]


@pytest.fixture
def place(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, in which commands run."""
    monkeypatch.chdir(folder.path)
    return folder.path


def write_rows(path: Path) -> None:
    """Write the rows in the format of the ending."""
    table = pa.Table.from_pylist(ROWS)
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path)
        case ".arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
        case ".feather":
            feather.write_feather(table, path)
        case ".arrows":
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table)
        case ".csv" | ".tsv":
            sign = "," if path.suffix == ".csv" else "\t"
            lines = [sign.join(ROWS[0]), *(sign.join(map(str, row.values())) for row in ROWS)]
            path.write_text("\n".join(lines) + "\n")
        case ".gz":
            path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
        case _:
            path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


@pytest.mark.parametrize(
    "name",
    ["in.parquet", "in.jsonl", "in.jsonl.gz", "in.csv", "in.tsv", "in.arrow", "in.arrows", "in.feather"],
)
def test_the_job_runs_as_it_is(place: Path, name: str) -> None:
    write_rows(place / name)
    found = call("init", name, "--model", "model")
    assert (found.exit_code, found.stdout) == (0, ""), found.stderr
    assert "job.yaml: the text is body, named by ticket_id" in found.stderr
    assert load_job(place / "job.yaml").spec.name == "in"
    run = call("run", "job.yaml", "--json", *ENGINE)
    assert run.exit_code == 0, run.stderr
    assert json.loads(run.stdout)["documents"]["succeeded"] == 30
    assert json.loads(
        call("query", "in.duckdb", "select min(document_id) a from answers", "--format", "json").stdout
    ) == [{"a": "T-000"}]


def test_text_files_are_named_by_their_names(place: Path) -> None:
    (place / "notes").mkdir()
    for name in ("a", "b", "c"):
        (place / "notes" / f"{name}.txt").write_text(f"A note, {name}.")
    assert call("init", "notes", "--model", "model", "--to", "sub.yaml").exit_code == 0
    assert call("run", "sub.yaml", "--quiet", *ENGINE).exit_code == 0


def test_a_folder_of_a_dataset(place: Path) -> None:
    folder = place / "tickets/train"
    folder.mkdir(parents=True)
    write_rows(folder / "part.arrows")
    (folder / "part.arrows").rename(folder / "data-00000-of-00001.arrow")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")
    check_runs(place, "tickets", 30)


def check_runs(place: Path, given: str, num_documents: int, *overrides: str) -> None:
    """The job that is written of an input runs as it stands, on the simulated engine."""
    found = call("init", given, "--model", "model")
    assert found.exit_code == 0, found.stderr
    run = call("run", "job.yaml", "--json", *ENGINE, *overrides)
    assert run.exit_code == 0, run.stderr
    assert json.loads(run.stdout)["documents"]["succeeded"] == num_documents


def test_a_place_in_memory(place: Path) -> None:
    memory = fsspec.filesystem("memory")
    write_rows(place / "in.csv")
    memory.pipe("/far/in.csv", (place / "in.csv").read_bytes())
    check_runs(place, "memory://far", 30)
    assert load_job(place / "job.yaml").spec.input.path == ("memory://far",)
    memory.rm("/far", recursive=True)


def test_a_url_over_http_whose_secrets_stay_out_of_the_names(place: Path) -> None:
    with serve_files() as server:
        server.files["/tickets.csv?sig=zqsecret"] = Served("".join(f"{n},text {n}\n" for n in ("id", *"abc")).encode())
        url = server.address.replace("//", "//me:zqsecret@") + "/tickets.csv?sig=zqsecret"
        check_runs(place, url, 3)
        job = load_job(place / "job.yaml")
        assert (job.spec.name, job.spec.input.path) == ("tickets", (url,))
        assert "environment variable" in job.path.read_text()
        found = call("init", url, "--model", "model", "--force", "--json")
        assert "zqsecret" not in found.stdout + found.stderr
        server.files["/empty.csv?sig=zqsecret"] = Served(b"")
        found = call("init", server.address + "/empty.csv?sig=zqsecret")
        assert (found.exit_code, "zqsecret" in found.stderr) == (2, False)


CHAT = {"messages": [{"role": "user", "content": "Say yes."}]}


@pytest.mark.parametrize(
    ("url", "body", "expected"),
    [
        ("/v1/chat/completions", CHAT, "messages"),
        ("/v1/completions", {"prompt": "Once upon a time"}, "prompt"),
        ("/v1/embeddings", {"input": "A text."}, "input"),
    ],
)
def test_requests_of_a_batch_get_a_job_that_answers_them(
    place: Path, url: str, body: dict[str, object], expected: str
) -> None:
    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": url, "body": {"model": model, **body, "user": str(number)}}
        for number, model in enumerate(("gpt-4o-mini", "a: b", "${HOME}"))
    ]
    (place / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    check_runs(place, "batch.jsonl", 1)  # they ask for the same
    section = load_job(place / "job.yaml").spec.input
    assert (section.format, section.openai_url, section.openai_model) == (
        "openai",
        url,
        ("gpt-4o-mini", "a: b", "${HOME}"),
    )
    ids = call("query", "batch.duckdb", "select document_id a from answers order by 1", "--format", "json").stdout
    assert [row["a"] for row in json.loads(ids)] == ["r0", "r1", "r2"]
    told = json.loads(call("init", "batch.jsonl", "--force", "--json").stdout)
    assert (told["id"], told["text"], told["endpoint"]) == ("custom_id", expected, url)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_conversations_are_sent_as_they_are(place: Path, ending: str) -> None:
    rows = [
        {"id": f"c{number}", "messages": [{"role": "user", "content": f"Question {number}?"}], "note": "n" * 90}
        for number in range(3)
    ]
    if ending == "jsonl":
        (place / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), place / "in.parquet")
    check_runs(place, f"in.{ending}", 3)
    spec = load_job(place / "job.yaml").spec
    assert (spec.prompt.messages, spec.input.id) == ("messages", "id")


def test_requests_for_two_endpoints_are_told(place: Path) -> None:
    lines = [
        {"custom_id": str(number), "url": f"/v1/{kind}", "body": {"model": "m", **CHAT, "prompt": "x"}}
        for number, kind in enumerate(("completions", "chat/completions", "chat/completions"))
    ]
    (place / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = draft_job("batch.jsonl", Path("job.yaml")).text
    assert "openai_url: /v1/chat/completions" in text
    assert "There are requests for /v1/completions, too" in text


def test_a_table_that_only_looks_like_requests_is_none(place: Path) -> None:
    rows = [{"custom_id": "a", "url": "https://example.com", "body": "A text that is long."}] * 3
    (place / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    draft = draft_job("in.jsonl", Path("job.yaml"))
    assert (draft.text_field, draft.endpoint) == ("body", None)


def test_paths_are_relative_to_the_job_file(place: Path) -> None:
    write_rows(place / "in.jsonl")
    (place / "jobs").mkdir()
    assert call("init", "in.jsonl", "--model", "model", "--to", "jobs/tickets.yaml").exit_code == 0
    job = load_job(place / "jobs/tickets.yaml")
    assert (job.spec.input.path, job.spec.model.path) == (("../in.jsonl",), "../model")
    assert call("run", "jobs/tickets.yaml", "--quiet", *ENGINE).exit_code == 0


def test_a_file_that_is_there_stays_without_force(place: Path) -> None:
    write_rows(place / "in.jsonl")
    (place / "job.yaml").write_text("mine")
    found = call("init", "in.jsonl")
    assert (found.exit_code, (place / "job.yaml").read_text()) == (2, "mine")
    assert "--force" in found.stderr
    assert call("init", "in.jsonl", "--force").exit_code == 0
    assert "SmolLM2" in (place / "job.yaml").read_text()


def test_for_scripts(place: Path) -> None:
    write_rows(place / "in.jsonl")
    found = json.loads(call("init", "in.jsonl", "--json").stdout)
    assert (found["job"], found["id"], found["text"], found["files"]) == ("job.yaml", "ticket_id", "body", 1)
    assert [column["name"] for column in found["columns"]] == list(ROWS[0])
    assert "The text of ticket" not in json.dumps(found)
    printed = call("init", "in.jsonl", "--to", "-").stdout
    assert printed.replace("SmolLM2", "") != printed
    assert not (place / "-").exists()


@pytest.mark.parametrize(
    ("rows", "text", "id_field"),
    [
        ([{"text": "a b c", "n": 1}, {"text": "d e f", "n": 2}], "text", None),
        ([{"a": "same", "key": "k1", "b": "longer text"}, {"a": "same", "key": "k2", "b": "other text"}], "b", "key"),
        ([{"text": "short", "html": "<p>" * 9}, {"text": "text", "html": "<b>" * 9}], "html", None),
        (
            [{"text": "nearly as long", "blob": "a little longer text"}, {"text": "x" * 14, "blob": "y" * 20}],
            "text",
            None,
        ),
        ([{"id": 7, "value": 1.5}, {"id": 8, "value": 2.5}], "value", "id"),
        ([{"code": f"k{number}", "words": f"a b {number}", "t": "x" * 50} for number in range(10)], "t", "code"),
        ([{"full name": "x" * 99, "b": "text"}], "b", None),
        ([{"self": "x" * 99, "not": "x" * 98, "none": "x" * 97, "b": "text"}], "b", None),
        ([{"id": "x", "t": "long text"}, {"id": "x", "t": "long texts"}], "t", None),
    ],
)
def test_which_columns_are_chosen(place: Path, rows: list[dict[str, Any]], text: str, id_field: str | None) -> None:
    (place / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    draft = draft_job("in.jsonl", Path("job.yaml"))
    assert (draft.text_field, draft.id_field) == (text, id_field)


@pytest.mark.parametrize(
    "name", ["a: b #c.jsonl", "ÜBUNG 東京.jsonl", "${HOME}.jsonl", "'\"\\.jsonl", "on.jsonl", "123.jsonl"]
)
def test_any_file_name_becomes_a_job(place: Path, name: str) -> None:
    write_rows(place / name)
    assert call("init", f"./{name}", "--model", "model").exit_code == 0
    assert call("run", "job.yaml", "--quiet", *ENGINE).exit_code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "no column has values"), ('{"a b": "x"}\n', "columns: a b"), ("broken\n", "no column has values")],
)
def test_inputs_that_no_job_can_be_made_of(place: Path, content: str, message: str) -> None:
    (place / "in.jsonl").write_text(content)
    found = call("init", "in.jsonl")
    assert found.exit_code == 2
    assert message in found.stderr
    assert not (place / "job.yaml").exists()
    assert call("init", "nowhere.parquet").exit_code == 2
