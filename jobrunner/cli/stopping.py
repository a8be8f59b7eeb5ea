"""SIGTERM and SIGINT: once asks to stop, twice means now, and the third ends the process without a farewell."""

import os
import queue
import signal
import threading
from collections.abc import Callable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_UNANSWERED = 2


def on_stop_signals(ask_to_stop: Callable[[], None]) -> None:
    """Calls `ask_to_stop` at each of the first two signals, in a thread of its own."""
    # A handler runs between two bytecodes of the main thread, which may hold the very lock that it needs.
    # SimpleQueue.put alone is promised to be safe there.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, _: signals.put(number))
    threading.Thread(target=_listen, args=(signals, ask_to_stop), name="jobrunner-signals", daemon=True).start()


def _listen(signals: "queue.SimpleQueue[int]", ask_to_stop: Callable[[], None]) -> None:
    for _ in range(_UNANSWERED):
        signals.get()
        ask_to_stop()
    os._exit(128 + signals.get())
