"""The benchmarks of scale at tiny sizes: that they still run, and count what they say. They judge no timing."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from benchmarks import make_documents, scale, settings, start
from benchmarks.make_documents import RARE, make_tables, write_documents, write_folder

NUM_DOCUMENTS = 2_000


def test_documents_are_the_same_for_a_seed_differ_and_hold_the_rare_word(tmp_path: Path) -> None:
    assert write_documents(make_tables(NUM_DOCUMENTS, 1, 0.0), tmp_path / "a.parquet") == NUM_DOCUMENTS
    write_documents(make_tables(NUM_DOCUMENTS, 1, 0.0), tmp_path / "b.jsonl")
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()] == rows
    assert len({row["body"] for row in rows}) == NUM_DOCUMENTS
    assert [number for number, row in enumerate(rows) if RARE in row["body"]] == [999, 1999]
    assert 450 < sum(len(row["body"]) for row in rows) / NUM_DOCUMENTS < 600
    [other] = make_tables(10, 2, 0.0)
    assert other["body"][0].as_py() != rows[0]["body"]


def test_a_share_of_documents_is_equal() -> None:
    [table] = make_tables(NUM_DOCUMENTS, 1, 0.25)
    assert len(set(table["body"].to_pylist())) == pytest.approx(0.75 * NUM_DOCUMENTS, rel=0.05)


def test_a_folder_holds_all_documents_in_so_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_documents, "ROWS", 300)
    assert write_folder(1_000, 1, 0.0, tmp_path / "a", 7) == 1_000
    files = sorted((tmp_path / "a").iterdir())
    assert len(files) == 7
    ids = [name for file in files for name in pq.read_table(file)["id"].to_pylist()]
    assert ids == [f"d{number}" for number in range(1_000)]
    monkeypatch.setattr(sys, "argv", ["make_documents", "10", str(tmp_path / "new" / "b.parquet")])
    make_documents.main()
    assert capsys.readouterr().out.startswith("10 documents in")


def test_scale_runs_and_counts_what_it_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scale.duckdb.tmp").mkdir()  # as a run that was killed leaves it
    (tmp_path / "scale.duckdb.tmp" / "spilled").write_bytes(b"x")
    (tmp_path / "scale.duckdb").write_bytes(b"old")
    arguments = ["--documents", str(NUM_DOCUMENTS), "--to", str(tmp_path), "--no-picture"]
    monkeypatch.setattr(sys, "argv", ["scale", *arguments])
    documents = tmp_path / f"documents-{NUM_DOCUMENTS}.parquet"
    write_documents(make_tables(NUM_DOCUMENTS, 1, 0.0), documents)  # or it would wait until the file is settled
    scale.main()
    found = json.loads((tmp_path / "scale.json").read_text())
    assert found["runs"][0]["commits"]
    asked = [run["summary"]["documents"]["succeeded"] + run["summary"]["documents"]["failed"] for run in found["runs"]]
    assert asked == [NUM_DOCUMENTS, NUM_DOCUMENTS // 1_000, 0]
    assert [plan["documents"]["to_do"] for plan in found["plans"]] == [NUM_DOCUMENTS, 0]
    assert all(plan["peak_memory_bytes"] > 10_000_000 for plan in found["plans"])
    out = capsys.readouterr().out
    assert "| resume | 2,000 | 2 |" in out
    assert "| after | 2,000 | 0 |" in out


def test_scale_is_drawn(tmp_path: Path) -> None:
    sample = scale.Sample(0.5, 1, 2, 3, 4)
    run = scale.Measured("fresh", 1.0, {"documents": {"read": 3}}, 0.5, [(0.5, 3, 0.01)], [sample, sample])
    scale.plot([run, run], tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_settings_take_turns_and_are_shown_with_their_ratio(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []

    def answer(command: list[str], **_: object) -> SimpleNamespace:
        told = json.loads(command[-1])
        asked.append(told["block_size"])
        seconds = told["block_size"] / 16
        return SimpleNamespace(
            stdout="vLLM says something\n"
            + json.dumps({"wall_s": [seconds + 1, seconds], "load_wall_s": 3.0, "num_cached": 1_000})
        )

    monkeypatch.setattr("subprocess.run", answer)
    monkeypatch.setattr(sys, "argv", ["settings", "--only", "block_size", "--rounds", "2"])
    settings.main()
    assert asked == [32, 64, 128] * 2
    assert "| block_size | 64 | 4.00 s | 2.00 | 3.0 s, 3.0 s | 1,000 |" in capsys.readouterr().out


def test_prompts_of_the_settings_share_one_beginning() -> None:
    tokenizer = SimpleNamespace(encode=lambda text: [hash(word) for word in text.split()])
    prompts = settings.make_prompts(tokenizer, 64)
    assert len(prompts) == 64
    assert len({tuple(prompt[: settings.NUM_SHARED_TOKENS]) for prompt in prompts}) == 1
    assert len({tuple(prompt) for prompt in prompts}) == 64


def test_the_start_is_measured_to_the_first_committed_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = start.write_job(tmp_path, kind="simulated")
    seconds = start.measure(job)
    assert seconds.engine_start_s <= seconds.first_answer_s <= seconds.wall_s
    monkeypatch.setattr(sys, "argv", ["start", "--runs", "2", "--simulated"])
    start.main()
    assert "| first answer on disk |" in capsys.readouterr().out
