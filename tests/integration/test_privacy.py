"""Markers in prompts, documents and answers: they are found in the database, and nowhere else that a run writes to."""

import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import duckdb
import orjson
import psutil
import pytest
import yaml

from tests.cli_support import call
from tests.conftest import JobFolder
from tests.otlp_support import run_collector

LIMIT_S = 90.0
SYSTEM, USER, DOCUMENT = "zqsystemmarker", "zqusermarker", "zqdocumentmarker"
PROMPT = {
    "system": f"{SYSTEM}: be brief",
    "user": f"{{% if kind != 'empty' %}}{USER} {{{{ body }}}} {{{{ number + 1 }}}} {{{{ 7 // divisor }}}}{{% endif %}}",
}
FAULTS = ("reject", "error", "truncate", "die")
CODES = {
    "unreadable_row",
    "missing_field",
    "template_error",
    "empty_prompt",
    "prompt_too_long",
    "engine_rejected",
    "engine_error",
    "engine_killer",
    "truncated",
}


def make_lines() -> Iterator[bytes]:
    """Rows of every kind of outcome, each with the marker in it."""
    rows: list[dict[str, Any]] = [{"body": f"{DOCUMENT} {number}"} for number in range(40)]
    rows += [{"body": f"{DOCUMENT} fault-{kind}"} for kind in FAULTS]
    rows += [
        {"body": None, "other": DOCUMENT},
        {"body": DOCUMENT, "number": DOCUMENT},
        {"body": DOCUMENT, "divisor": 0},
        {"body": DOCUMENT, "divisor": {DOCUMENT: DOCUMENT}},
        {"body": DOCUMENT, "kind": "empty"},
        {"body": f"{DOCUMENT} " * 2000},
    ]
    for number, row in enumerate(rows):
        yield orjson.dumps({"id": f"d{number}", "kind": "", "number": 1, "divisor": 1, **row})
    yield f'{{"id": "bad", "body": "{DOCUMENT}'.encode()
    yield f'{{"id": "bad", "body": "{DOCUMENT}" {DOCUMENT}}}'.encode()
    yield f'["{DOCUMENT}"]'.encode()
    yield f'{{"body": "{DOCUMENT}'.encode() + b'\xff"}'
    yield f'{{"body": "{DOCUMENT} \\ud800"}}'.encode()


def prepare(folder: JobFolder, *, in_child: bool) -> None:
    folder.input.write_bytes(b"\n".join(make_lines()))
    faults = [{"match": f"fault-{kind}", "kind": kind} for kind in FAULTS]
    simulated: dict[str, Any] = {"faults": faults, "output_tokens": 16}
    if in_child:
        simulated |= {"in_child": True, "clock": "real", "seconds_per_output_token": 0.002}
    limits = {"max_context_tokens": 512, "max_failures": "90%"}
    simulated = {**folder.spec["engine"]["simulated"], **simulated}
    folder.write_job(engine={"simulated": simulated}, prompt=PROMPT, limits=limits)


def read_answers(folder: JobFolder) -> set[str]:
    """The beginning of each answer, cut ones too; long enough to be nobody else's words."""
    with duckdb.connect(folder.database, read_only=True) as database:
        texts = database.execute("select output from results union select raw_output from failures").fetchall()
        codes = database.execute("select distinct code from failures").fetchall()
        assert {code for (code,) in codes} == CODES
    answers = {" ".join(text.split()[:4]) for (text,) in texts if text}
    assert len(answers) > 20
    return answers


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    """The job, run once. An answer depends on the document alone, so every run gets these."""
    folder = JobFolder(tmp_path_factory.mktemp("done"))
    prepare(folder, in_child=False)
    folder.run_as_written()
    return folder


@pytest.fixture(scope="module")
def answers(done: JobFolder) -> set[str]:
    """What the simulated engine answers to these documents, whoever asks."""
    return read_answers(done)


@dataclass
class Watch:
    """Everything of a running command that others can see: its files, its processes, what they write."""

    folder: JobFolder
    temporary: Path
    seen: set[bytes] = field(default_factory=set)
    num_children: int = 0

    def look(self, pid: int) -> None:
        with suppress(psutil.NoSuchProcess):
            pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
            self.num_children = max(self.num_children, len(pids) - 1)
            for each in pids:
                # A log that has no name is held by the engine as its stderr.
                names = ("cmdline", "environ", "comm", *(("fd/1", "fd/2") if each != pid else ()))
                self._read([Path(f"/proc/{each}/{name}") for name in names])
        kept = {self.folder.database, Path(f"{self.folder.database}.wal"), self.folder.input, self.folder.job_path}
        self._read(path for top in (self.folder.path, self.temporary) for path in top.rglob("*") if path not in kept)

    def _read(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self.seen.add(str(path).encode())
            with suppress(OSError):
                if path.is_file():  # a process that has just been forked still holds the terminal: it reads for ever
                    self.seen.add(path.read_bytes())


def run_watched(folder: JobFolder, temporary: Path, *arguments: str, on_terminal: bool) -> tuple[Watch, bytes]:
    """Run the command line to its end; what was seen, and what it printed."""
    temporary.mkdir()
    watch = Watch(folder, temporary)
    command = [sys.executable, "-m", "bulkinfer", *arguments]
    environment = {**os.environ, "TMPDIR": str(temporary), "TERM": "xterm-256color"}
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        printed: list[bytes] = []
        reader = threading.Thread(target=_read_to_end, args=(ours, printed))
        reader.start()
        until_s = time.monotonic() + LIMIT_S
        while process.poll() is None:
            assert time.monotonic() < until_s, "the run did not end"
            watch.look(process.pid)
        reader.join(LIMIT_S)
    os.close(ours)
    watch.look(process.pid)
    return watch, b"".join(printed)


def _read_to_end(descriptor: int, printed: list[bytes]) -> None:
    with suppress(OSError):  # the end of a terminal
        while piece := os.read(descriptor, 65536):
            printed.append(piece)


def find_markers(content: bytes, answers: set[str]) -> list[str]:
    text = content.decode(errors="replace")
    return [marker for marker in (SYSTEM, USER, DOCUMENT, *sorted(answers)) if marker in text]


@pytest.mark.parametrize(
    ("arguments", "on_terminal", "in_child"),
    [
        (["--json"], False, False),
        (["--quiet"], False, False),
        ([], False, False),
        ([], True, True),
        (["--log-format", "json", "--metrics-file", "{folder}/job.prom"], False, False),
    ],
    ids=["json", "quiet", "plain", "terminal and child", "log and metrics"],
)
def test_a_run_shows_no_prompt_no_document_and_no_answer(
    folder: JobFolder, tmp_path: Path, answers: set[str], arguments: list[str], on_terminal: bool, in_child: bool
) -> None:
    prepare(folder, in_child=in_child)
    temporary = tmp_path.parent / f"{tmp_path.name}-tmp"
    named = [argument.format(folder=folder.path) for argument in arguments]
    watch, printed = run_watched(folder, temporary, "run", str(folder.job_path), *named, on_terminal=on_terminal)
    assert read_answers(folder) == answers
    assert find_markers(printed, answers) == []
    assert (watch.num_children > 0) == in_child
    assert any(name.endswith(b"out.duckdb.status.json") for name in watch.seen)
    assert any(name.endswith(b"job.prom") for name in watch.seen) == ("--metrics-file" in arguments)
    for content in watch.seen:
        assert find_markers(content, answers) == [], content[:2000]


def test_what_is_sent_to_a_collector_holds_none(
    folder: JobFolder, answers: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(folder, in_child=False)
    with run_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        call("run", str(folder.job_path), "--json")
    assert collector.traces
    assert collector.metrics
    sent = [request.SerializeToString() for request in collector.traces]
    sent += [request.SerializeToString() for request in collector.metrics]
    assert find_markers(b"".join(sent), answers) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", "--json"],
        ["failures"],
        ["failures", "--json"],
        ["run", "--json"],
        ["run", "--only", "failed"],
    ],
    ids=" ".join,
)
def test_looking_at_a_run_shows_none_either(done: JobFolder, answers: set[str], arguments: list[str]) -> None:
    command, *options = arguments
    called = call(command, str(done.job_path), *options)
    assert called.stdout + called.stderr
    assert find_markers((called.stdout + called.stderr).encode(), answers) == []


def test_a_report_shows_none(done: JobFolder, answers: set[str], tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert call("report", str(done.job_path), "--to", str(file)).exit_code == 0
    content = file.read_bytes()
    assert b"engine_killer" in content
    assert find_markers(content, answers) == []


def test_events_and_failure_messages_hold_none(done: JobFolder, answers: set[str]) -> None:
    assert done.events
    assert find_markers("\n".join(iter_texts(done.events)).encode(), answers) == []
    with duckdb.connect(done.database, read_only=True) as database:
        messages = database.execute("select distinct code, message from failures").fetchall()
    assert {code for code, _ in messages} == CODES
    for _, message in messages:
        assert find_markers(message.encode(), answers) == []


def iter_texts(value: object) -> Iterator[str]:
    """All texts in a value, however deep."""
    if is_dataclass(value):
        for part in fields(value):
            yield from iter_texts(getattr(value, part.name))
    elif isinstance(value, dict):
        yield from iter_texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from iter_texts(part)
    else:
        yield str(value)


@pytest.mark.parametrize(
    "sql",
    [
        "select error(output) from results",
        "select output::int from results",
        "select output::json from results",
        "select strptime(output, '%Y') from results",
        "select regexp_matches('a', '[' || output) from results",
        "select (select output from results)",
        "select date_part(output, now()) from results",
        "select output.nothing from results",
        "select map([output, output], [1, 2]) from results",
    ],
)
def test_sql_errors_quote_no_answer(done: JobFolder, answers: set[str], sql: str) -> None:
    called = call("query", str(done.database), sql)
    assert called.exit_code == 2
    assert find_markers((called.stdout + called.stderr).encode(), answers) == []


BAD_JOBS = {
    "wrong key beside": {"prompt": {"user": USER, "usr": USER}},
    "prompt is a list": {"prompt": {"user": [USER]}},
    "prompt is a mapping": {"prompt": {"user": {f"{USER} x": USER}}},
    "section is text": {"prompt": USER},
    "section is a list": {"prompt": [USER, SYSTEM]},
    "a line as key": {"prompt": {"user": "x", f"{USER} and more": "x"}},
    "a line as top key": {f"{USER} and more": "x"},
    "too long": {"prompt": {"user": USER * 100_000}},
    "does not parse": {"prompt": {"user": f"{{% if x %}} {USER}"}},
    "unclosed": {"prompt": {"user": f"{{{{ body {USER} }}}}"}},
    "a text in an expression": {"prompt": {"user": "{{ body \"it's " + USER + '" ' + USER + " }}"}},
    "a tag": {"prompt": {"user": f"{{% {USER} %}}"}},
    "no field": {"prompt": {"user": f"{USER} {{{{ boddy }}}}"}},
    "chat template": {"model": {"chat_template": [USER]}},
    "half a character": {"prompt": {"user": f"{USER} \ud800"}},
}


@pytest.mark.parametrize("sections", BAD_JOBS.values(), ids=BAD_JOBS)
def test_what_is_wrong_beside_a_prompt_does_not_show_it(folder: JobFolder, sections: dict[str, Any]) -> None:
    folder.write_documents([{"id": "a", "body": "x"}])
    text = yaml.safe_dump({**folder.spec, **sections}, width=10**9)
    folder.job_path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert find_markers(show_error(folder), set()) == []


BAD_YAML = {
    "alias": f"prompt: {{user: *{USER}}}",
    "anchor twice": f"a: &{USER} x\nb: &{USER} x",
    "tag": f"prompt: {{user: !{USER} x}}",
    "tag handle": f"prompt: {{user: !{USER}!x x}}",
    "given twice": f"prompt:\n  {USER} and: x\n  {USER} and: x",
    "unclosed": f'prompt: {{user: "{USER}',
    "escape": f'prompt: {{user: "{USER} \\q"}}',
    "no colon": f"prompt:\n  user: x\n  {USER}\n  {USER}",
    "indent": f"prompt:\n  user: |\n    x\n   {USER}: {USER}: x",
    "directive": f"%{USER} x\n---\na: b",
    "braces": f"prompt: {{user: {{{{ {USER} }}}}}}",
    "top": f"{USER}",
}


@pytest.mark.parametrize("text", BAD_YAML.values(), ids=BAD_YAML)
def test_yaml_that_does_not_parse_does_not_show_it(folder: JobFolder, text: str) -> None:
    folder.job_path.write_text(text)
    assert find_markers(show_error(folder), set()) == []


def show_error(folder: JobFolder) -> bytes:
    """What `run` says of a job that it refuses."""
    called = call("run", str(folder.job_path), "--json")
    assert called.exit_code == 2
    return (called.stdout + called.stderr).encode()
