"""The loop of a run: shard -> queue -> engine -> outcome -> store.

One thread decides everything here. A planner thread prepares one shard ahead; the store has its own writer thread.
"""

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from uuid import uuid4

from bulkinfer.engines import EngineGroup
from bulkinfer.errors import (
    BulkinferError,
    InputError,
    Interrupted,
    StoreError,
    TooManyFailures,
)
from bulkinfer.events import Cancelled, Committed, Draining, EventSink, RunEnded, RunStarted, Warned
from bulkinfer.job import FailureLimit
from bulkinfer.outcome import describe_excess, is_over_limit
from bulkinfer.records import Commit, JsonValue, Only, Request, RunStatus
from bulkinfer.runner.assemblies import Assemblies
from bulkinfer.runner.fleet import Fleet
from bulkinfer.runner.garbage import collect_seldom
from bulkinfer.runner.ledger import InputCounts, Ledger
from bulkinfer.runner.parts import create_engines_of, create_planner, open_store
from bulkinfer.runner.plan import RunPlan, refuse_empty_input
from bulkinfer.runner.receiving import Receiving
from bulkinfer.runner.recorded import write_spec
from bulkinfer.runner.report import RunOptions, RunReport, describe_end, exit_code_of, status_of
from bulkinfer.runner.sampling import take_sample
from bulkinfer.runner.selection import iter_selection_warnings, select_documents
from bulkinfer.runner.signals import StopFlag, watch_signals
from bulkinfer.runner.standing import Standing
from bulkinfer.runner.telling import FinishedDocuments
from bulkinfer.runner.unsettled import check_unsettled_beside
from bulkinfer.shards import Shard, ShardPlanner, prepare_next
from bulkinfer.store import RunRecord, RunSelection, Store, TaskRecord

PLANNER_END_LIMIT_S = 5.0
"""How long the end of a run waits for a shard that is being read: on a dead disk a read never ends."""
MAX_QUEUE_CHARS = 64 * 1024 * 1024
"""What the queue holds of very long documents and of images in them, whatever `limits.max_queue_size` allows."""
TICK_S = 0.25
"""How long the loop waits for something to happen before it looks at signals and tells its progress."""


def run_job(plan: RunPlan, options: RunOptions, emit: EventSink, *, ends_process: bool = False) -> RunReport:
    """Run a job to its end, or to a clean stop. Everything finished is on disk when this returns.

    Raises JobError for engine arguments and for a selection of nothing, StoreLocked and StoreError when the database
    cannot be had; later errors come back in the report. Must be called from the main thread: signals are only caught
    there, and an engine's child dies with the thread that made it. `ends_process`: signals stay ignored afterwards.
    """
    engines = create_engines_of(plan, options.priority)
    with ExitStack() as stack:
        stop = stack.enter_context(watch_signals(ends_process=ends_process))
        stack.enter_context(collect_seldom())
        committed: SimpleQueue[Commit] = SimpleQueue()
        store = open_store(plan, stop, committed.put)
        stack.callback(store.close)
        selection = select_documents(plan, options.only, store)
        run = Run(plan, selection, options, emit, store, engines, stop, committed)
        stack.callback(run.close)
        return run.report(run.work())


class Run:
    """One execution of a job."""

    def __init__(
        self,
        plan: RunPlan,
        selection: RunSelection,
        options: RunOptions,
        emit: EventSink,
        store: Store,
        engines: EngineGroup,
        stop: StopFlag,
        committed: SimpleQueue[Commit],
    ) -> None:
        self.run_id = uuid4()
        self._plan = plan
        self._selection = selection
        self._options = options
        self._emit = emit
        self._store = store
        self._stop = stop
        self._committed = committed
        self._finished = FinishedDocuments(emit, is_wanted=options.tells_documents)
        self._limits = plan.job.spec.limits
        input_size_bytes = sum(file.size_bytes for file in plan.files)
        max_concurrency = plan.engine_spec.expected_concurrency
        max_tokens = plan.job.spec.max_tokens * plan.job.spec.sampling.num_answers
        self._ledger = Ledger(input_size_bytes, max_concurrency, len(engines.engines), max_tokens)
        self._fleet = Fleet(
            engines,
            plan.job.spec.model.path,
            max_concurrency=max_concurrency,
            max_restarts=plan.job.spec.engine.max_restarts,
            ledger=self._ledger,
            emit=emit,
        )
        find_parts = partial(store.find_parts, accepts_cut=plan.job.spec.output.accept_truncated)
        self._assemblies = Assemblies(plan.template.combine, find_parts)
        self._receiving = Receiving(plan, self._fleet, self._ledger, self._finished, self._assemblies, store.add_parts)
        self._standing = Standing(self._ledger, self._fleet, self._limits.max_queue_size)
        self._planner = self._begin()
        self._shards = self._planner.iter_shards()
        self._next_shard: Future[Shard | None] | None = prepare_next(self._shards)
        self._pending: deque[Request] = deque()
        """Of the shard that is being worked on; it stands before the queue."""
        self._ending: BulkinferError | None = None
        self._drain_until_s = 0.0
        self._input_error: InputError | None = None
        self._told_s = 0.0

    def work(self) -> BulkinferError | None:
        """Go through the whole input. Returns what ended the run before its end, or None."""
        try:
            while not self._is_finished():
                self._obey_signals()
                self._take_shard()
                self._feed()
                self._receive()
                self._store.check()
                self._note_commits()
                self._check_failures()
                self._tell()
            self._note_end()
            self._store.flush()
            self._check_end()
        except BulkinferError as error:
            self._note_end()
            return error
        return None

    def report(self, error: BulkinferError | None) -> RunReport:
        """Close the run in the store and say how it ended. That the store failed outweighs whatever ended the run."""
        if num_documents := self._fleet.num_documents:
            self._emit(Cancelled(num_documents))
        self._stop_helpers()
        try:
            self._store.flush()
            self._note_commits()
            summary = describe_end(self._plan, self.run_id, error, self._selection) | self._summarise()
            self._store.status_source = lambda: summary
            self._store.end_run(status_of(error), exit_code_of(error), summary)
            self._store.settle()
        except StoreError as store_error:
            error = store_error
            self._note_commits()
            summary = describe_end(self._plan, self.run_id, error, self._selection) | self._ledger.summary_of_commits()
            self._store.tell_end(summary)
        self._tell(is_last=True)
        self._emit(RunEnded(status_of(error), summary))
        return RunReport(exit_code_of(error), summary, error)

    def close(self) -> None:
        """End the engine and the planner, however the run ended."""
        self._stop_helpers()

    def _is_finished(self) -> bool:
        if self._ending is not None:
            return self._num_in_flight == 0 or self._stop.is_urgent or time.monotonic() >= self._drain_until_s
        return self._next_shard is None and self._num_waiting == 0 and self._num_in_flight == 0

    def _obey_signals(self) -> None:
        if self._stop.is_set and self._ending is None:
            self._drain(Interrupted(self._stop.received[0]))
            self._emit(Draining(self._stop.received[0], self._fleet.num_documents, self._grace_s))

    def _take_shard(self) -> None:
        """Take the prepared shard over once the last one has gone into the queue, and let the next be prepared."""
        if self._next_shard is None or self._pending or self._ending or not self._next_shard.done():
            return
        try:
            shard = self._next_shard.result()
        except InputError as error:  # what was read before is still worth answering
            self._input_error = error
            shard = None
        if shard is None:
            self._next_shard = None
            self._ledger.is_read_to_end = True
            return
        self._next_shard = prepare_next(self._shards)
        self._emit(self._ledger.note_shard(shard))
        self._finished.note_unasked(shard.failures)
        self._pending.extend(shard.requests)
        self._feed()
        self._store.add_rows(shard.rows, shard.ended_scans)
        self._store.add(shard.failures)

    def _note_end(self) -> None:
        self._ledger.listening.note_end(is_idle=self._num_in_flight == self._fleet.num_waiting == 0)

    def _note_commits(self) -> None:
        while not self._committed.empty():
            commit = self._committed.get()
            self._ledger.note_commit(commit)
            counts = commit.seq, commit.num_results, commit.num_failures
            self._emit(Committed(*counts, commit.commit_s, commit.database_bytes))
            self._planner.forget(commit.document_hashes)
            self._assemblies.forget(commit.part_hashes)

    def _feed(self) -> None:
        """Fill queue and engine. Before each wait for the store, too: while it is behind, the engine has work.

        Again while engines take more than the queue holds: its limit must not be one of what is in flight.
        """
        has_moved = True
        while has_moved:
            self._fill_queue()
            num_queued = len(self._fleet.queue)
            self._feed_engine()
            has_moved = self._has_more_to_queue and len(self._fleet.queue) < num_queued

    def _fill_queue(self) -> None:
        now_s, queue = self._fleet.now(), self._fleet.queue
        most = self._limits.max_queue_size
        while len(queue) < most and queue.held_chars < MAX_QUEUE_CHARS and self._has_more_to_queue:
            # Parts of documents that were begun go before new documents.
            if (part := self._assemblies.next_request()) is not None:
                queue.append(part)
            elif self._pending:
                queue.append(replace(self._pending.popleft(), queued_at_s=now_s))
        self._ledger.peak_queue_size = max(self._ledger.peak_queue_size, len(self._fleet.queue))

    def _feed_engine(self) -> None:
        if self._ending is None:
            may_grow = self._next_shard is not None or self._assemblies.has_questions
            self._fleet.feed(may_grow=may_grow, num_behind=len(self._pending))

    def _receive(self) -> None:
        """Wait for the engine, or for the planner while the engine has nothing to do."""
        is_engine_busy = self._fleet.is_busy
        outcomes = self._receiving.receive(TICK_S if is_engine_busy else 0.0)
        if outcomes:
            self._feed()
            self._finished.tell()
            self._store.add(outcomes)
        elif not is_engine_busy:
            self._wait_for_planner()

    def _check_failures(self) -> None:
        """Stop early when it is clear that the limit will not hold."""
        limit, ledger = self._failure_limit, self._ledger
        # What a run over failures asks has failed before: a share of it says nothing of the whole input.
        if self._ending is not None or (self._is_selective and limit.count is None):
            return
        num_failed = ledger.num_failed if limit.count is not None else ledger.expect_failures()
        if is_over_limit(limit, num_failed, ledger.num_to_do, is_final=False):
            self._emit(Draining(None, self._fleet.num_documents, self._grace_s))
            self._drain(self._too_many_failures(ledger.num_failed, ledger.num_outcomes))

    def _tell(self, *, is_last: bool = False) -> None:
        if is_last or time.monotonic() - self._told_s >= TICK_S:
            self._finished.tell()
            self._told_s = time.monotonic()
            self._emit(self._standing.look(is_stopping=self._ending is not None))

    def _check_end(self) -> None:
        """Everything is on disk: is it what the job wanted?"""
        if self._ending is not None:
            raise self._ending
        if self._ledger.num_outcomes != self._ledger.num_to_do:  # the last guard against a silent loss
            raise AssertionError(f"{self._ledger.num_to_do - self._ledger.num_outcomes} documents have no outcome")
        if self._input_error is not None:
            raise self._input_error
        if self._ledger.num_read == 0:
            raise refuse_empty_input(self._plan)
        num_failed = sum(self._store.count_open_failures(self._ledger.last_rows).values())
        # Rows, not documents: a thousand equal rows without a body are a thousand rows that nobody gets an answer for.
        num_rows = self._store.count_documents(self._ledger.last_rows).num_rows
        if is_over_limit(self._failure_limit, num_failed, num_rows, is_final=True):
            raise self._too_many_failures(num_failed, num_rows)

    def _begin(self) -> ShardPlanner:
        plan, store = self._plan, self._store
        name = plan.job.spec.name
        task = TaskRecord(plan.task_fingerprint, write_spec(plan.job))
        run = RunRecord(self.run_id, name, plan.job.shown, datetime.now(UTC))
        verdicts = check_unsettled_beside(plan, store, self._stop, PLANNER_END_LIMIT_S)
        scans = store.begin_run(run, task, plan.files, plan.layout, verdicts)
        self._ledger.outlook.tokens_per_s = store.find_speed(plan.job.spec.model.path, plan.job.spec.model.revision)
        planner = create_planner(plan, self._selection, self._options.limit, scans, store)
        store.status_source = self._describe_status
        store.samples.source = lambda: take_sample(self._ledger, len(self._fleet.queue), self._fleet.num_documents)
        warnings = [*plan.iter_warnings(), *iter_selection_warnings(plan, self._selection)]
        try:
            store.listen(plan.job.spec.output.client_timeout_s)
        except StoreError as error:
            warnings.append(f"{error}; `query`, `failures` and `export` work after the run")
        database, size = str(plan.job.database_path), (len(plan.files), self._ledger.input_size_bytes)
        self._emit(RunStarted(name, self.run_id, plan.task_fingerprint, database, *size))
        for warning in warnings:  # after the beginning, which names the run
            self._emit(Warned(warning))
        return planner

    def _stop_helpers(self) -> None:
        self._planner.stop()
        self._fleet.close()
        shard, self._next_shard = self._next_shard, None
        # Where the database hangs, a lookup may, and the planner with it.
        if shard is not None and not self._store.is_stalled:
            wait_for_futures([shard], timeout=PLANNER_END_LIMIT_S)

    def _drain(self, ending: BulkinferError) -> None:
        """Stop admitting; let what is in flight finish for a while."""
        self._ending = ending
        self._drain_until_s = time.monotonic() + self._grace_s

    def _wait_for_planner(self) -> None:
        if self._next_shard is not None and not self._pending:
            wait_for_futures([self._next_shard], timeout=TICK_S)
        else:  # a dead engine waits for its next start
            time.sleep(min(TICK_S, self._fleet.start_wait_s()))

    @property
    def _num_in_flight(self) -> int:
        return self._fleet.num_in_flight

    @property
    def _num_waiting(self) -> int:
        return len(self._pending) + self._fleet.num_waiting + len(self._assemblies)

    @property
    def _has_more_to_queue(self) -> bool:
        return bool(self._pending) or self._assemblies.has_questions

    @property
    def _is_selective(self) -> bool:
        return self._options.only is not Only.NEW

    @property
    def _grace_s(self) -> float:
        return self._plan.job.spec.engine.grace_s if self._options.grace_s is None else self._options.grace_s

    @property
    def _failure_limit(self) -> FailureLimit:
        return self._options.failure_limit or self._limits.max_failures

    def _too_many_failures(self, num_failed: int, num_documents: int) -> TooManyFailures:
        excess = describe_excess(self._failure_limit, num_failed, num_documents)
        return TooManyFailures(f"{excess}. `bulkinfer failures {self._plan.job.target}` lists them")

    def _summarise(self) -> dict[str, JsonValue]:
        """What is on disk now, of the rows that this run has read."""
        last_rows = self._ledger.last_rows
        # In a run over new documents, what has no outcome yet was asked and is not finished.
        counts = InputCounts(
            num_distinct=self._store.count_documents(last_rows).num_distinct,
            num_failed_rows=sum(self._store.count_open_failures(last_rows).values()),
            num_without_outcome=self._store.count_without_outcome(last_rows) if self._is_selective else None,
        )
        return self._ledger.summary(counts, self._store.latency())

    def _describe_status(self) -> Mapping[str, JsonValue]:
        """For the status file; called by the store's writer thread."""
        return {
            "job": self._plan.job.spec.name,
            "run_id": str(self.run_id),
            "task_fingerprint": str(self._plan.task_fingerprint),
            "status": RunStatus.RUNNING.value,
            **self._standing.describe(),
        }
