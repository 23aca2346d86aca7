"""The thread in which an engine's process renders requests, the most urgent first. It knows no engine."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import heappop, heappush

from bulkinfer.engines.base import EngineRequest, Prepared
from bulkinfer.records import Rejection

Prepare = Callable[[EngineRequest], Prepared | Rejection]


class Renderer:
    """Calls `prepare` for one request after the other, in a thread of its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "renderer")
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, EngineRequest, Future[Prepared | Rejection]]] = []
        """A heap: the priority, the order in which they came, the request, and where the result goes."""
        self._num_come = 0

    def submit(self, prepare: Prepare, request: EngineRequest, priority: int) -> Future[Prepared | Rejection]:
        """Have a request rendered before those that wait with a higher number. The future may be cancelled."""
        rendering: Future[Prepared | Rejection] = Future()
        with self._lock:
            self._num_come += 1
            heappush(self._waiting, (priority, self._num_come, request, rendering))
        self._thread.submit(self._render_next, prepare)
        return rendering

    def shutdown(self) -> None:
        """Render what waits, then end the thread."""
        self._thread.shutdown()

    def _render_next(self, prepare: Prepare) -> None:
        with self._lock:
            _, _, request, rendering = heappop(self._waiting)
        if not rendering.set_running_or_notify_cancel():
            return
        try:
            rendering.set_result(prepare(request))
        except BaseException as error:  # noqa: BLE001 - raised where the result is wanted, as executors do
            rendering.set_exception(error)
