"""`bulkinfer sweep` as a command: what it prints and writes, its exit codes, what it says about bad input."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bulkinfer.errors import JobError
from bulkinfer.sweep import save_result
from tests.cli_support import Called, call
from tests.conftest import JobFolder, make_documents

VIRTUAL = {"clock": "virtual", "seconds_per_output_token": 0.02, "seconds_per_prompt_token": 0.0005}


@pytest.fixture
def job(folder: JobFolder) -> Path:
    """A job with documents of different lengths, on a simulated engine that takes its time, but not ours."""
    folder.write_documents(make_documents(100))
    return folder.write_job(engine={"kind": "simulated", "simulated": VIRTUAL})


def sweep(job: Path, *arguments: str | Path) -> Called:
    return call("sweep", str(job), "--duration", "30", *map(str, arguments))


def sweep_json(job: Path, *arguments: str | Path) -> dict[str, Any]:
    found = sweep(job, *arguments, "--json")
    assert found.exit_code == 0, found.stderr
    assert len(found.stdout.splitlines()) == 1
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


def test_json_is_one_object_with_a_point_for_each_load(job: Path) -> None:
    found = sweep_json(job, "--concurrency", "1,2,4")
    assert (found["sweep"], found["status"], found["exit_code"]) == (1, "completed", 0)
    assert [point["concurrency"] for point in found["points"]] == [1, 2, 4]
    for point in found["points"]:
        assert set(point["latency_s"]) == {"queue", "first_token", "total"}
        assert set(point["latency_s"]["total"]) == {"p50", "p95", "p99"}
        assert point["requests"]["completed"] > 0
        assert point["engine"]["at_rest"]["num_active"] == 0
    assert found["recommendation"]["limits"]["max_concurrency"] in {1, 2, 4}
    assert found["load"]["kinds"]["short"]["prompts"] > 0


def test_the_same_seed_gives_the_same_sweep(job: Path) -> None:
    arguments = ("--concurrency", "3", "--arrivals", "poisson:4", "--cancel", "10%", "--seed", "5")
    one, other = sweep_json(job, *arguments), sweep_json(job, *arguments)
    assert one["points"] == other["points"]
    assert one["points"] != sweep_json(job, *arguments[:-1], "6")["points"]


def test_no_document_text_is_in_the_result(folder: JobFolder) -> None:
    folder.write_documents([{"id": f"d{number}", "body": f"secretword {number} " * 9} for number in range(40)])
    job = folder.write_job(engine={"kind": "simulated", "simulated": VIRTUAL})
    found = sweep(job, "--json")
    assert "secretword" not in found.stdout + found.stderr


def test_people_get_a_table_and_a_block_to_paste(job: Path) -> None:
    found = sweep(job, "--concurrency", "1,4")
    lines = found.stdout.splitlines()
    assert any(line.split()[:1] == ["seqs"] for line in lines)
    assert "limits:" in lines
    rows = [line for line in lines if line[:7].strip(" *").isdigit()]
    assert len(rows) == 4  # two points, and again by kind
    assert all(len(line) <= 80 for line in rows)
    assert "concurrency 4: " in found.stderr


def test_a_saved_sweep_can_be_compared_and_drawn(job: Path, tmp_path: Path) -> None:
    saved, page = tmp_path / "one.json", tmp_path / "two.html"
    assert sweep(job, "--concurrency", "1,2", "--save", saved).exit_code == 0
    found = sweep(job, "--concurrency", "2,4", "--compare", saved, "--to", page)
    assert found.exit_code == 0, found.stderr
    assert "compared: this" in found.stdout
    drawn = page.read_text(encoding="utf-8")
    assert drawn.count("<svg") == 4
    assert "http" not in drawn.replace("http://www.w3.org/", "")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_file_that_cannot_be_written_in_the_end_loses_no_figure(job: Path, tmp_path: Path) -> None:
    """The folder is there when the sweep begins, and gone when it ends."""
    folder = tmp_path / "gone"
    folder.mkdir()
    simulated = {"clock": "real", "seconds_per_output_token": 0.002, "seconds_per_prompt_token": 0}
    settings = [f"engine.simulated.{name}={value}" for name, value in simulated.items()]
    command = [sys.executable, "-m", "bulkinfer", "sweep", str(job), "--concurrency", "1,2", "--json"]
    command += ["--duration", "1", "--warmup", "0", "--save", str(folder / "a.json"), "--to", str(folder / "a.svg")]
    for setting in settings:
        command += ["--set", setting]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        assert "concurrency 1: " in child.stderr.readline()
        folder.rmdir()
        stdout, stderr = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert len(json.loads(stdout)["points"]) == 2
    assert child.returncode == 2
    assert "--save: " in stderr
    assert "--to: " in stderr


@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize(("reader", "exit_code"), [("gone", 0), ("full", 2)])
def test_a_sweep_that_nobody_reads_is_saved_all_the_same(
    job: Path, tmp_path: Path, reader: str, exit_code: int, more: tuple[str, ...]
) -> None:
    saved = tmp_path / "a.json"
    command = [sys.executable, "-m", "bulkinfer", "sweep", str(job), "--concurrency", "1", "--duration", "30"]
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as gone, Path("/dev/full").open("w") as full:
        gone.wait()
        found = subprocess.run(
            [*command, "--save", str(saved), *more],
            stdout=gone.stdin if reader == "gone" else full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
    assert found.returncode == exit_code, found.stderr
    assert "Traceback" not in found.stderr
    assert len(json.loads(saved.read_text(encoding="utf-8"))["points"]) == 1


@pytest.mark.parametrize(("option", "name"), [("--save", "a.json"), ("--to", "a.html")])
def test_what_is_no_file_is_not_replaced_by_one(job: Path, tmp_path: Path, option: str, name: str) -> None:
    os.mkfifo(tmp_path / name)
    found = sweep(job, "--concurrency", "1", option, tmp_path / name)
    assert (found.exit_code, found.stdout) == (2, "")
    assert f"{option}: expected a file" in found.stderr
    assert (tmp_path / name).is_fifo()
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_a_link_stays_where_a_sweep_is_saved(job: Path, tmp_path: Path) -> None:
    saved, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(saved)
    assert sweep(job, "--concurrency", "1", "--save", link).exit_code == 0
    assert link.is_symlink()
    assert len(json.loads(saved.read_text(encoding="utf-8"))["points"]) == 1


def test_a_file_that_finds_no_room_leaves_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(JobError, match=r"--save: .* No space left"):
        save_result({"sweep": 1}, tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "lost",
    [
        *("points.0.throughput", "points.0.p95_s", "recommendation", "series", "options"),
        *("measured_at", "points.0.engine.memory_bytes", "points.0.requests.errors"),  # of the page alone
    ],
)
def test_a_damaged_sweep_is_refused_before_anything_is_measured(job: Path, tmp_path: Path, lost: str) -> None:
    saved = tmp_path / "one.json"
    assert sweep(job, "--concurrency", "1", "--save", saved).exit_code == 0
    found = json.loads(saved.read_text(encoding="utf-8"))
    *steps, last = lost.split(".")
    holder = found
    for step in steps:
        holder = holder[int(step)] if step.isdigit() else holder[step]
    del holder[last]
    saved.write_text(json.dumps(found), encoding="utf-8")
    again = sweep(job, "--concurrency", "1", "--compare", saved)
    assert (again.exit_code, again.stdout) == (2, "")
    assert "one.json: the sweep in it is damaged" in again.stderr
    assert "concurrency 1: " not in again.stderr


@pytest.mark.parametrize("name", ["concurrency", "rate_per_s", "reserve"])
def test_a_foreign_sweep_whose_points_cannot_stand_beside_ours_is_refused(job: Path, tmp_path: Path, name: str) -> None:
    saved = tmp_path / "one.json"
    assert sweep(job, "--concurrency", "1", "--save", saved).exit_code == 0
    found = json.loads(saved.read_text(encoding="utf-8"))
    found["points"][0][name] = "text"
    saved.write_text(json.dumps(found), encoding="utf-8")
    again = sweep(job, "--concurrency", "1", "--compare", saved)
    assert (again.exit_code, again.stdout) == (2, "")
    assert "damaged or from another version" in again.stderr


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_a_picture_is_of_its_ending(job: Path, tmp_path: Path, ending: str, magic: bytes) -> None:
    path = tmp_path / f"sweep.{ending}"
    assert sweep(job, "--concurrency", "1,2", "--to", path).exit_code == 0
    assert magic in path.read_bytes()[:400]


def test_a_reserve_makes_short_requests_faster_and_low_ones_wait(job: Path) -> None:
    arguments = ["--concurrency", "4", "--arrivals", "poisson:6", "--mix", "short:0.5,long:0.5", "--low", "long"]
    found = sweep_json(job, *arguments, "--reserve", "0%,50%", "--duration", "600")
    without, reserved = found["points"]
    assert (without["reserve"], reserved["reserve"]) == (0.0, 0.5)
    assert (
        reserved["latency_by_kind_s"]["short"]["total"]["p95"] < without["latency_by_kind_s"]["short"]["total"]["p95"]
    )
    assert reserved["latency_by_kind_s"]["long"]["queue"]["p95"] > without["latency_by_kind_s"]["long"]["queue"]["p95"]
    assert reserved["p95_s"] == reserved["latency_by_kind_s"]["short"]["total"]["p95"]


def test_a_job_that_rejects_needs_no_flag(job: Path) -> None:
    arguments = ["--concurrency", "1", "--arrivals", "poisson:50", "--queue", "3"]
    assert sweep_json(job, *arguments)["points"][0]["requests"]["refused"] == 0
    found = sweep_json(job, *arguments, "--set", "limits.reject_when_queue_full=true")
    assert found["options"]["reject"] is True
    assert found["points"][0]["requests"]["refused"] > 0


def test_a_job_with_a_reserve_is_told_that_it_was_measured_whole(job: Path) -> None:
    reserve = ("--concurrency", "1", "--set", "limits.reserve=25%")
    assert any("measured whole, and a run has 75 %" in note for note in sweep_json(job, *reserve)["notes"])
    found = sweep_json(job, *reserve, "--low", "long")
    assert not any("measured whole" in note for note in found["notes"])
    assert found["recommendation"]["limits"]["reserve"] == 0.25


def test_a_reserve_that_keeps_nothing_free_is_told(job: Path) -> None:
    found = sweep_json(job, "--concurrency", "1,4", "--low", "long", "--reserve", "25%")
    notes = [note for note in found["notes"] if "keeps no sequence free" in note]
    assert notes == ["concurrency 1: a reserve of 25% keeps no sequence free of so few"]


def test_a_simulated_job_is_not_told_a_setting_of_vllm(job: Path) -> None:
    found = sweep_json(job, "--concurrency", "1,2", "--set", "engine.simulated.max_num_batched_tokens=4096")
    assert {point["max_num_batched_tokens"] for point in found["points"]} == {None}
    assert "vllm" not in found["recommendation"]["yaml"]


def test_what_if_is_said_beside_what_was_measured(job: Path) -> None:
    found = sweep(job, "--concurrency", "1,4", "--what-if", "16", "--duration", "60")
    assert found.exit_code == 0, found.stderr
    _, _, told = found.stdout.partition("what if: simulated")
    rows = [line for line in told.splitlines() if line[1:7].strip().isdigit()]
    assert [row.split()[0] for row in rows] == ["1", "4", "16"]
    assert rows[2].endswith("not measured")


def test_a_rate_that_can_never_be_served_ends_and_says_so(job: Path) -> None:
    for extra in ([], ["--reject"]):
        found = sweep(job, "--concurrency", "1", "--arrivals", "poisson:50", *extra)
        assert found.exit_code == 0
        assert "this rate can never be served" in found.stdout
        assert "no recommendation" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "0"], "--concurrency: expected whole numbers from 1"),
        (["--concurrency", "100000"], "--concurrency: expected whole numbers from 1 to 65,536"),
        (["--mix", "short:0.7,long:0.7"], "--mix: expected shares that sum to 1, found 1.4"),
        (["--mix", "medium:1"], "--mix: unknown kind 'medium'"),
        (["--arrivals", "poisson:0"], "--arrivals: expected closed or poisson:RATE"),
        (["--cancel", "101%"], "--cancel: expected a share from 0 to 1"),
        (["--duration", "0"], "--duration: expected more than 0 seconds"),
        (["--queue", "0", "--reject"], "--queue: expected 1 or more with --reject"),
        (["--per-user", "2"], "--per-user: says nothing with --arrivals closed"),
        (["--batched-tokens", "4096"], "--batched-tokens: only vLLM has max_num_batched_tokens"),
        (["--low", "short,long"], "--low: expected at least one kind of the mix at normal priority"),
        (["--reserve", "25%"], "--reserve: expected --low as well"),
        (["--low", "long", "--reserve", "100%"], "--reserve: expected less than 100 %"),
        (["--headroom", "100%"], "--headroom: expected less than 100 %"),
        (["--to", "sweep.pdf"], "--to: expected a file that ends in .png, .svg, .html"),
        (["--to", "nowhere/sweep.png"], "--to: nowhere/sweep.png cannot be written"),
        (["--save", "."], "--save: expected a file, found the folder"),
        (["--compare", "nowhere.json"], "nowhere.json: cannot be read"),
    ],
)
def test_bad_input_is_exit_code_2_and_says_what_is_wrong(job: Path, arguments: list[str], message: str) -> None:
    found = sweep(job, *arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr
    as_json = sweep(job, *arguments, "--json")
    assert message in json.loads(as_json.stdout)["error"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"sweep": 99, "points": []}'])
def test_a_file_that_is_no_sweep_is_not_compared(job: Path, tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    found = sweep(job, "--compare", path)
    assert found.exit_code == 2
    assert "other.json: expected" in found.stderr


def test_an_engine_without_a_cost_cannot_be_measured(folder: JobFolder) -> None:
    folder.write_documents(make_documents(3))
    found = sweep(folder.write_job())
    assert found.exit_code == 2
    assert "seconds_per_output_token: expected more than 0" in found.stderr


def test_an_input_without_a_prompt_is_refused(folder: JobFolder) -> None:
    folder.write_documents([{"id": "a", "body": ""}])
    found = sweep(folder.write_job(engine={"kind": "simulated", "simulated": VIRTUAL}))
    assert found.exit_code == 2
    assert "none of the input's first 5,000 rows gives a prompt" in found.stderr


def test_an_engine_that_dies_is_exit_code_3_with_what_was_measured(folder: JobFolder) -> None:
    documents = [*make_documents(60), {"id": "bad", "body": "BAD " * 200}]
    folder.write_documents(documents)
    faults = [{"match": "BAD", "kind": "raise"}]
    job = folder.write_job(engine={"kind": "simulated", "simulated": {**VIRTUAL, "faults": faults}})
    found = sweep(job, "--json", "--mix", "short:0,long:1")
    assert found.exit_code == 3
    parsed = json.loads(found.stdout)
    assert (parsed["status"], parsed["exit_code"]) == ("failed", 3)
    assert "the engine raised" in parsed["error"]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_what_was_measured(folder: JobFolder, number: signal.Signals, exit_code: int) -> None:
    folder.write_documents(make_documents(50))
    simulated = {"clock": "real", "seconds_per_output_token": 0.002, "seconds_per_prompt_token": 0}
    job = folder.write_job(engine={"kind": "simulated", "simulated": simulated})
    command = [sys.executable, "-m", "bulkinfer", "sweep", str(job), "--concurrency", "1,2"]
    command += ["--duration", "2", "--warmup", "0", "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        assert "concurrency 1: " in child.stderr.readline()
        child.send_signal(number)
        stdout, _ = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    parsed = json.loads(stdout)
    assert (child.returncode, parsed["exit_code"], parsed["status"]) == (exit_code, exit_code, "interrupted")
    assert len(parsed["points"]) >= 1
    assert parsed["points"][0]["requests"]["completed"] > 0


def test_a_sweep_is_saved_over_a_sweep_and_over_nothing_else(job: Path, tmp_path: Path) -> None:
    before = job.read_bytes()
    found = sweep(job, "--concurrency", "1", "--save", job)
    assert found.exit_code == 2
    assert "is there and holds no sweep; name another file" in found.stderr
    assert job.read_bytes() == before
    saved = tmp_path / "saved.json"
    for _ in range(2):
        assert sweep(job, "--concurrency", "1", "--save", saved).exit_code == 0
