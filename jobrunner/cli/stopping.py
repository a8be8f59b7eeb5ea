"""SIGTERM, SIGINT and SIGHUP: once asks to stop, twice means now, and the third ends the process without a farewell."""

import os
import signal
import threading
from collections.abc import Callable

_UNANSWERED = 2


def on_stop_signals(asked: Callable[[], None]) -> None:
    """Calls `asked` at each signal that asks to stop, in a thread of its own. To be called by the main thread."""
    stop_signals = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asked that the terminal's end be nothing
        stop_signals.append(signal.SIGHUP)
    # Python runs a handler in the main thread. That may hold the very lock the handler needs; and when the signal comes
    # just before it begins to wait for a lock, the handler runs only when something else wakes it. The wake-up
    # descriptor is written by the signal itself (signal.set_wakeup_fd).
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    for number in stop_signals:
        signal.signal(number, lambda *_: None)

    def listen() -> None:
        while numbers := os.read(ours, 64):
            for number in numbers:
                if number in stop_signals:
                    asked()

    threading.Thread(target=listen, name="jobrunner-signals", daemon=True).start()


def ask_at_stop_signals(ask_to_stop: Callable[[], None]) -> None:
    """Calls `ask_to_stop` at each of the first two signals; the third ends the process."""
    asked: list[None] = []

    def ask() -> None:
        asked.append(None)
        if len(asked) > _UNANSWERED:
            os._exit(1)
        ask_to_stop()

    on_stop_signals(ask)


def ask_at_end_of(lifeline: int, ask_to_stop: Callable[[], None]) -> None:
    """Calls `ask_to_stop` when the other end of the pipe `lifeline` closes: the supervisor is no more."""
    os.set_inheritable(lifeline, False)

    def wait() -> None:
        while os.read(lifeline, 1):
            pass
        ask_to_stop()

    threading.Thread(target=wait, name="jobrunner-lifeline", daemon=True).start()
