"""Handles SIGTERM and SIGINT: the first asks to stop, the second stops at once, the third kills the process.

SIGHUP asks for a restart with new code; when it reports that the terminal is gone, it asks to stop. A worker without a
supervisor restarts by ending gracefully and executing its command line in the same process (`Restart`).
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from jobrunner.client.client import Client, close_clients, endpoint_of
from jobrunner.errors import UsageError
from jobrunner.logs import SafeLogger
from jobrunner.settings import working_folder
from jobrunner.worker.process_guard import answer_signals, ignore_signals, watch_descriptor

SERVES = "serves"
"""The report of a worker that precedes the URL and the prefix of its client."""
USES, STARTED = "uses", "started"
"""The reports of a worker that precede the folder of its embedded server."""
_UNANSWERED = 2
_SIGNALLED = 128
"""Exit codes of shells: this number plus that of the signal."""
_log = SafeLogger("jobrunner.worker")
_farewells: list[float] = []
_survived: list[int] = []
"""Signals that should have ended this process, for `on_signals` to handle. Their SystemExit may get lost: Python drops
errors in callbacks of weak references, and a module that tries an import may catch everything."""


def leave_at_signals() -> None:
    """Ends this process by SystemExit at SIGTERM and SIGHUP, as Ctrl-C does by KeyboardInterrupt, so that it releases
    its resources, such as the embedded server. The second signal ends it at once. Signals that are ignored (nohup) stay
    ignored.

    For commands without their own signal handling. Call it in the main thread."""
    owner = os.getpid()

    def leave(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:  # a fork: its resources belong to the parent
            os.kill(os.getpid(), number)
            return
        _survived.append(number)
        raise SystemExit(_SIGNALLED + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)


@contextmanager
def handling(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Installs these signal handlers until the block ends. Call it in the main thread."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Ignores each Ctrl-C after the first until the block ends: it would interrupt the clean-up that the first one
    began, which ends processes and deletes their files. Call it in the main thread."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with handling({signal.SIGINT: interrupt} if is_heard else {}):
        yield


def exit_within(seconds: float) -> None:
    """Limits the time that this process takes to end after its command, even with threads left."""
    _farewells.append(seconds)


def exit_with(code: int) -> NoReturn:
    """Ends the process, whose command is over, with this exit code."""
    if _farewells:
        end = threading.Timer(min(_farewells), os._exit, (code,))
        end.daemon = True
        try:
            end.start()
        except RuntimeError:  # the command ended for want of threads; a handler has to wait for calls into C
            signal.signal(signal.SIGALRM, lambda *_: os._exit(code))
            signal.setitimer(signal.ITIMER_REAL, max(min(_farewells), 0.001))
    sys.exit(code)


def on_signals(stop: Callable[[], object], renew: Callable[[], object]) -> None:
    """Calls `stop` at each signal that asks to stop and `renew` at each that asks for a restart, in a thread of its
    own; also for an earlier signal that should have ended the process (`leave_at_signals`). Call it in the main thread.
    An ignored SIGHUP (nohup) stays ignored."""
    known = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        known.append(signal.SIGHUP)
    had_terminal = _has_terminal()
    on_terminal = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]
    # Python runs a handler in the main thread. That may hold the very lock the handler needs; and when the signal comes
    # just before it begins to wait for a lock, the handler runs only when something else wakes it. The wake-up
    # descriptor is written by the signal itself (signal.set_wakeup_fd).
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    for end in (ours, theirs):
        watch_descriptor(end, "how it hears signals")
    answer_signals(known, lambda *_: None, written_to=theirs)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, known)

    def listen() -> None:
        while numbers := os.read(ours, 64):
            for number in numbers:
                if number == signal.SIGHUP:
                    if not had_terminal or _has_terminal():
                        renew()
                        continue
                    _write_nowhere(on_terminal)
                if number in known:
                    stop()

    threading.Thread(target=listen, name="jobrunner-signals", daemon=True).start()
    os.write(theirs, bytes(_survived))


def ask_at_signals(ask_to_stop: Callable[[], object], renew: Callable[[], object]) -> None:
    """Calls `ask_to_stop` at each of the first two signals to stop, and `renew`; the third ends the process."""
    asked: list[None] = []

    def ask() -> None:
        asked.append(None)
        if len(asked) > _UNANSWERED:
            os._exit(1)
        ask_to_stop()

    on_signals(ask, renew)


def report_to_service_manager(is_ready: Callable[[], bool], is_alive: Callable[[], bool]) -> None:
    """Reports to systemd that this process is ready and alive, if NOTIFY_SOCKET asks for it."""
    if os.environ.get("NOTIFY_SOCKET", "").startswith(("/", "@")):
        from jobrunner.cli.service_manager import ServiceReports  # other processes need none of it

        ServiceReports(is_ready, is_alive).start()


def folder_of_start() -> Path:
    """The working folder by its name in the shell. If the name is a symbolic link to the current release, a restart
    finds the release of that time. Call it when the process starts. Raises UsageError."""
    here, named = working_folder(), Path(os.environ.get("PWD", ""))
    if here is None:
        raise UsageError(
            "the working directory was deleted, so the modules of jobs cannot be found; run this in the folder of the "
            "project"
        )
    with suppress(OSError):
        if named.is_absolute() and named.samefile(here):
            return named
    return here


class Restart:
    """Restarts this process on request under the same process id, so systemd and containers do not see it end.

    Create it before modules are loaded, so that their exit handlers run before the restart. The restart closes clients,
    which sends their buffered tasks. A process that ends without a restart ignores signals from then on.
    """

    def __init__(self) -> None:
        self._folder = folder_of_start()
        self._is_wanted = self._is_stopping = False
        atexit.register(self._exit)

    def ask(self, ask_to_stop: Callable[[], object]) -> None:
        """Requests a restart, once; does nothing when the worker was asked to stop before."""
        if self._is_wanted or self._is_stopping:
            return
        self._is_wanted = True
        _log.info("worker exits to restart")
        ask_to_stop()

    def stop(self, ask_to_stop: Callable[[], object]) -> None:
        """Requests a stop without restart: gracefully the first time, also when the process is already ending for a
        restart."""
        was_wanted, self._is_wanted = self._is_wanted, False
        self._is_stopping = True
        if not was_wanted:
            ask_to_stop()

    def leave(self) -> None:
        """Ends the process at once with exit code 0, or restarts it."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed by a job, or a full disk
                stream.flush()
        self._begin_anew()
        os._exit(0)

    def _exit(self) -> None:
        close_clients()
        self._begin_anew()
        ignore_signals()

    def _begin_anew(self) -> None:
        if self._is_wanted:
            if not _has_terminal():  # a SIGHUP waits until the new code listens, see `on_signals`
                signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
            with suppress(OSError):  # the folder is gone, and so is the code: the new process reports it
                os.chdir(self._folder)
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this very command line


class Lifeline:
    """The socket between a worker and its supervisor, by its descriptor. When it closes, the worker is asked to
    stop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)
        watch_descriptor(descriptor, "the way to its supervisor")

    def report(self, word: str) -> None:
        """Writes a report to the supervisor, if there still is one."""
        with suppress(OSError):
            os.write(self._descriptor, f"{word}\n".encode())

    def report_client(self, client: Client) -> None:
        """Reports server and prefix of the client, which a module of the worker may have configured. If the client uses
        an embedded server, registers as its user and reports the folder, so that the supervisor registers, too."""
        self.report(f"{SERVES} {quote(client.settings.url)} {quote(client.settings.prefix)}")
        if (server := endpoint_of(client).embedded) is None:
            return
        found = server.status()
        server.acquire()
        self.report(f"{USES if found.running else STARTED} {quote(os.fspath(found.folder))}")

    def ask_at_end(self, ask_to_stop: Callable[[], object]) -> None:
        """Calls `ask_to_stop` when the supervisor has ended."""

        def wait() -> None:
            with suppress(OSError):
                while os.read(self._descriptor, 1):
                    pass
            ask_to_stop()

        threading.Thread(target=wait, name="jobrunner-lifeline", daemon=True).start()


def _write_nowhere(descriptors: list[int]) -> None:
    """Redirects output of a terminal that is gone: a failed flush at exit would change the exit code."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
