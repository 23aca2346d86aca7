"""Wakes an engine whose own process of vLLM was killed. Does not import vLLM."""

import os
import threading
import time
from typing import Any

_EVERY_S = 1.0


def watch_engine_process(engine_core: Any, error: type[Exception]) -> None:  # noqa: ANN401 - vLLM's object
    """Raise `error` in the step that waits for a process that is dead: it would wait for ever (0.26 to 0.33).

    There is none where the model runs in this one.
    """
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") == "1":
        threading.Thread(target=_watch, args=(engine_core, error), daemon=True).start()


def _watch(engine_core: Any, error: type[Exception]) -> None:  # noqa: ANN401
    while not engine_core.resources.engine_dead:
        time.sleep(_EVERY_S)
    engine_core.outputs_queue.put_nowait(error())
