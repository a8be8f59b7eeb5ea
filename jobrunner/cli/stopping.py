"""SIGTERM, SIGINT and SIGHUP: once asks to stop, twice means now, and the third ends the process without a farewell."""

import os
import queue
import signal
import threading
from collections.abc import Callable

_UNANSWERED = 2


def on_stop_signals(put: Callable[[int], None]) -> None:
    """Calls `put` with the number of each signal that asks to stop. `put` must be safe in a signal handler."""
    stop_signals = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asked that the terminal's end be nothing
        stop_signals.append(signal.SIGHUP)
    for number in stop_signals:
        signal.signal(number, lambda number, _: put(number))


def ask_at_stop_signals(ask_to_stop: Callable[[], None]) -> None:
    """Calls `ask_to_stop` at each of the first two signals, in a thread of its own."""
    # A handler runs between two bytecodes of the main thread, which may hold the very lock that it needs.
    # SimpleQueue.put alone is promised to be safe there.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    on_stop_signals(signals.put)

    def listen() -> None:
        for _ in range(_UNANSWERED):
            signals.get()
            ask_to_stop()
        os._exit(128 + signals.get())

    threading.Thread(target=listen, name="jobrunner-signals", daemon=True).start()


def ask_at_end_of(lifeline: int, ask_to_stop: Callable[[], None]) -> None:
    """Calls `ask_to_stop` when the other end of the pipe `lifeline` closes: the supervisor is no more."""
    os.set_inheritable(lifeline, False)

    def wait() -> None:
        while os.read(lifeline, 1):
            pass
        ask_to_stop()

    threading.Thread(target=wait, name="jobrunner-lifeline", daemon=True).start()
