"""`python -m tests.crash.killable ORDERS run JOB ...`: bulkinfer's own command line, killed at a named point.

Its functions are wrapped from outside, then its `main` is called. Every commit that the store acknowledges goes into a
journal first, so that whoever started this knows all that was acknowledged when it died.
"""

import importlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bulkinfer import cli
from bulkinfer.records import Commit
from bulkinfer.runner import parts
from bulkinfer.store import CommitLimits, Store, database
from bulkinfer.store.queue import Pending
from tests.crash.points import Act, Orders, Point, When, decode_orders
from tests.crash.watched import watch_duckdb

_Function = Callable[..., object]


class Journal:
    """An append-only file, a line in one write. What is written stays when the process is killed."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, *words: object) -> None:
        """One line."""
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())

    def acknowledge(self, document_hashes: Iterable[bytes]) -> None:
        """Note documents whose outcome the store calls committed."""
        self.write("acknowledged", *(document_hash.hex() for document_hash in document_hashes))


class Script:
    """The points of a run, in their order."""

    def __init__(self, orders: Orders, journal: Journal) -> None:
        self._points = orders.points
        self._journal = journal
        self._files = (orders.database, orders.database.with_name(orders.database.name + ".wal"))
        self._lock = threading.RLock()  # a signal handler may come in while its own thread has it
        self._num_reached = 0
        self._num_calls = 0

    def install(self) -> None:
        """Wrap what the points name."""
        for index, point in enumerate(self._points):
            wrap(point.place.target, partial(self._around, index, point))

    def _around(self, index: int, point: Point, function: _Function) -> _Function:
        def call(*arguments: object, **named: object) -> object:
            if point.place.when is When.DURING and self._is_reached(index):
                return self._call_watched(function, point, *arguments, **named)
            if point.place.when is When.BEFORE and self._is_reached(index):
                self._act(point)
            returned = function(*arguments, **named)
            if point.place.when is When.AFTER and self._is_reached(index):
                self._act(point)
            return returned

        return call

    def _is_reached(self, index: int) -> bool:
        with self._lock:
            if index != self._num_reached:
                return False
            self._num_calls += 1
            if self._num_calls < self._points[index].call:
                return False
            self._num_reached += 1
            self._num_calls = 0
            return True

    def _call_watched(self, function: _Function, point: Point, *arguments: object, **named: object) -> object:
        """Call it, while a thread waits for the database's files to change."""
        has_ended = threading.Event()
        before = self._look_at_files()

        def watch() -> None:
            last, num_changes = before, 0
            while not has_ended.is_set():
                now = self._look_at_files()
                num_changes += now != last
                last = now
                if num_changes >= point.num_changes:
                    self._act(point)
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            return function(*arguments, **named)
        finally:
            has_ended.set()
            watcher.join()

    def _look_at_files(self) -> list[tuple[int, int] | None]:
        """Only from outside: to open the database here would drop DuckDB's lock."""
        found: list[tuple[int, int] | None] = []
        for path in self._files:
            try:
                status = path.stat()
            except FileNotFoundError:
                found.append(None)
            else:
                found.append((status.st_size, status.st_mtime_ns))
        return found

    def _act(self, point: Point) -> None:
        self._journal.write("reached", point.place.target)
        if point.act is Act.TERMINATE:
            os.kill(os.getpid(), signal.SIGTERM)
        if point.act in {Act.KILL_ENGINE, Act.KILL_BOTH}:
            for engine in psutil.Process().children():
                self._journal.write("killed", engine.pid)
                engine.kill()
        if point.act in {Act.KILL_RUNNER, Act.KILL_BOTH}:
            os.kill(os.getpid(), signal.SIGKILL)


def wrap(target: str, around: Callable[[_Function], _Function]) -> None:
    """Put what `around` makes of a function in the function's place."""
    module, _, name = target.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    found = inspect.getattr_static(owner, name)
    is_bound = isinstance(found, classmethod | staticmethod)
    setattr(owner, name, type(found)(around(found.__func__)) if is_bound else around(found))


def watch_store(orders: Orders, journal: Journal) -> None:
    """Put each acknowledgement into the journal before anybody else hears of it, and make commits small and many."""

    def around_open(open_store: _Function) -> _Function:
        def call(
            *arguments: object, on_commit: Callable[[Commit], None], limits: CommitLimits, **named: object
        ) -> object:
            def acknowledge(commit: Commit) -> None:
                journal.acknowledge(commit.document_hashes)
                on_commit(commit)

            small = replace(limits, max_outcomes=orders.commit_size, max_wait_s=orders.commit_wait_s)
            return open_store(*arguments, **named, on_commit=acknowledge, limits=small)

        return call

    def around_commit(commit: _Function) -> _Function:
        def call(store: Store, pending: Pending) -> None:
            journal.acknowledge(outcome.document_hash for outcome in pending.outcomes)
            commit(store, pending)

        return call

    wrap("bulkinfer.store.writer:Store.open", around_open)
    if orders.is_premature:
        wrap("bulkinfer.store.writer:Store._commit", around_commit)
    database._WRITE_SETTINGS["wal_autocheckpoint"] = orders.autocheckpoint


def main() -> None:
    """Wrap, then run."""
    orders = decode_orders(sys.argv[1])
    sys.argv = ["bulkinfer", *sys.argv[2:]]
    journal = Journal(orders.journal_path)
    setattr(parts, "MAX_SHARD_DOCUMENTS", orders.shard_size)  # noqa: B010 - mypy knows it as not exported
    watch_duckdb()
    watch_store(orders, journal)
    Script(orders, journal).install()
    cli.main()


if __name__ == "__main__":
    main()
