"""Guards this process against damage by jobs: closed descriptors, forks, and signals that the forks inherit.

Descriptors: a job that calls os.closerange, as code that makes a daemon does, closes the files of its worker. Other
files get the numbers later, so an open descriptor may be another file: descriptors are identified by inode.

Signals: a forked process inherits handlers and the descriptor that signals are written to. A pool of `multiprocessing`
ends its processes by SIGTERM: they would ignore it, and the worker would take it for its own.

Forks: a forked copy of this process that returns from the job would go on as a second worker: it has the sockets, the
pipe of the lease keeper and the attempts of the first, and would report them again.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from jobrunner.logs import IDENTITY, SafeLogger

_log = SafeLogger("jobrunner.worker")
PID = os.getpid()
"""The id of this process; set again in each fork, so that a comparison needs no system call."""
_known: dict[int, tuple[int, int, str]] = {}
_before: dict[int, Any] = {}


def watch_descriptor(descriptor: int, what: str) -> None:
    """Watches a descriptor: `lost_descriptors` then reports it, under the purpose `what`, when it is closed."""
    found = os.fstat(descriptor)
    _known[descriptor] = (found.st_dev, found.st_ino, what)


def unwatch_descriptor(descriptor: int) -> None:
    """Stops watching a descriptor that its owner closes."""
    _known.pop(descriptor, None)


def lost_descriptors() -> list[str]:
    """The purposes of watched descriptors that are closed or refer to another file now."""
    return sorted({what for descriptor, (*identity, what) in list(_known.items()) if _identity(descriptor) != identity})


class Canary:
    """A watched descriptor opened only as a probe: whatever closes all descriptors closes it, too."""

    def __init__(self, what: str) -> None:
        self._descriptor, other = os.pipe()
        os.close(other)
        watch_descriptor(self._descriptor, what)

    def close(self) -> None:
        """Stops watching it, and closes it unless it was lost."""
        was_lost = _identity(self._descriptor) != list(_known.get(self._descriptor, (0, 0, ""))[:2])
        unwatch_descriptor(self._descriptor)
        if not was_lost:
            os.close(self._descriptor)


def _identity(descriptor: int) -> list[int]:
    with suppress(OSError):
        found = os.fstat(descriptor)
        return [found.st_dev, found.st_ino]
    return []


def answer_signals(numbers: Iterable[int], handler: Callable[..., object], *, written_to: int | None = None) -> None:
    """Calls `handler` at these signals, and writes them to a descriptor. Call it in the main thread."""
    if written_to is not None:
        signal.set_wakeup_fd(written_to, warn_on_full_buffer=False)
    for number in numbers:
        former = signal.signal(number, handler)
        _before.setdefault(number, signal.SIG_DFL if former is None else former)


def answer_signals_as_before() -> None:
    """Restores the handlers from before `answer_signals`. Call it in the main thread."""
    if not _before:
        return
    signal.set_wakeup_fd(-1)
    for number, former in _before.items():
        signal.signal(number, former)
    _before.clear()


def ignore_signals() -> None:
    """Ignores the signals that `answer_signals` handles, for the last exit handler of a process: Python removes its
    handlers before the process is gone, and a signal after that would change the exit code."""
    for number in _before:
        signal.signal(number, signal.SIG_IGN)


def leave_fork(owner: int, error: BaseException | None = None) -> None:
    """Ends this process as Python would, with the code of SystemExit, unless it is `owner`. Runs no exit handlers: they
    belong to the process that was forked."""
    if owner == PID:
        return
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            _tell(error, error.code)
    elif error is not None:
        code = 1
        _tell(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


def _tell(error: BaseException, text: str = "") -> None:
    """Writes an error, or the text of a sys.exit, to the log of a worker process; without a log to stderr as Python."""
    if IDENTITY.log_format:
        trace = {"error": text} if text else {"exc_info": error}
        _log.error("an error ended a forked process", pid=PID, **trace)
    elif text:
        print(text, file=sys.stderr)
    else:
        traceback.print_exception(error)


def _after_fork() -> None:
    global PID
    PID = os.getpid()
    answer_signals_as_before()  # a forked process has only its main thread


os.register_at_fork(after_in_child=_after_fork)
