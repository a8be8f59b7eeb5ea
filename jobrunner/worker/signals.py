"""Signal handlers of this process that its forks do not keep.

A forked process inherits handlers and the descriptor that signals are written to. A pool of `multiprocessing` ends its
processes by SIGTERM: they would ignore it, and their parent would take it for its own.
"""

import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

_before: dict[int, Any] = {}


def answer_signals(numbers: Iterable[int], handler: Callable[..., object], *, written_to: int | None = None) -> None:
    """Calls `handler` at these signals, and writes them to a descriptor. To be called by the main thread."""
    if written_to is not None:
        signal.set_wakeup_fd(written_to, warn_on_full_buffer=False)
    for number in numbers:
        former = signal.signal(number, handler)
        _before.setdefault(number, signal.SIG_DFL if former is None else former)


def answer_signals_as_before() -> None:
    """Takes back what `answer_signals` did. To be called by the main thread."""
    if not _before:
        return
    signal.set_wakeup_fd(-1)
    for number, former in _before.items():
        signal.signal(number, former)
    _before.clear()


os.register_at_fork(after_in_child=answer_signals_as_before)  # whose only thread is its main thread
