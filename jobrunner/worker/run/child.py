"""The process of a slot: runs attempts it is sent and answers with their outcomes.

Usage: ``python -m jobrunner.worker.run.child SOCKET LIFELINE`` (descriptors by number); see wire.py for what
goes over the socket. The lifeline brings tokens of attempts that should stop. The process ends when the socket or the
lifeline closes, so a worker that was killed leaves nothing running behind.
"""

import ctypes
import os
import pickle
import signal
import socket
import sys
import threading
from contextlib import ExitStack

from jobrunner.attempt import Attempt
from jobrunner.client.current import configure
from jobrunner.errors import AttemptCrashed, JobrunnerError
from jobrunner.jobs.registry import definition_for, load_modules
from jobrunner.log_setup import log_to_stderr
from jobrunner.logs import IDENTITY
from jobrunner.middleware import OBSERVERS, MiddlewareStack
from jobrunner.outcome import Outcome
from jobrunner.redaction import Redaction, hide_in_errors
from jobrunner.worker.process_guard import answer_signals
from jobrunner.worker.run.error_outcome import cancelled_by_a_job
from jobrunner.worker.run.runner import Runner
from jobrunner.worker.run.wire import (
    PIECE,
    frame,
    lacks,
    read_attempt,
    read_greeting,
    unframed,
    write_outcome,
)

_PR_SET_PDEATHSIG = 1


def main(descriptor: str, lifeline: str) -> None:
    """Serves one slot until it closes."""
    # A handler, not SIG_IGN: processes that a job starts would inherit SIG_IGN.
    answer_signals((signal.SIGINT, signal.SIGTERM), lambda *_: None)
    stopped: set[str] = set()
    threading.Thread(target=_listen, args=(int(lifeline), stopped), daemon=True).start()
    _die_with_parent()
    own = os.getpid()
    with socket.socket(fileno=int(descriptor)) as channel:
        runner = _greet(channel, stopped)
        while runner is not None and (message := _receive(channel)) is not None:
            attempt, traceparent = read_attempt(message)
            answer = frame(write_outcome(_run_traced(runner, attempt, traceparent), attempt.token))
            if os.getpid() != own:  # a job forked in a way that Python does not know of, and this is the copy
                os._exit(0)
            channel.sendall(answer)
            stopped.clear()


def _greet(channel: socket.socket, stopped: set[str]) -> Runner | None:
    message = _receive(channel)
    if message is None:
        return None
    greeting = read_greeting(message)
    if greeting.log_format:
        log_to_stderr(greeting.log_format)
        IDENTITY.worker = greeting.worker
    client = configure(greeting.url, greeting.prefix, **greeting.options)
    try:
        load_modules(greeting.modules)
        middleware = MiddlewareStack(pickle.loads(greeting.middleware)) if greeting.middleware else None  # noqa: S301
    except Exception as error:
        what = str(error) if isinstance(error, JobrunnerError) else f"its middleware: {type(error).__name__}: {error}"
        channel.sendall(frame(what.encode("utf-8", "backslashreplace")))
        return None
    channel.sendall(frame(b""))
    hide_in_errors(Redaction(client.settings.redact))
    return Runner(client, stopped.__contains__, middleware=middleware)


def _run_traced(runner: Runner, attempt: Attempt, traceparent: str) -> Outcome:
    with ExitStack() as ends:
        for observer in OBSERVERS if traceparent else ():
            ends.enter_context(observer.within(traceparent))  # the worker has the span: this process may be killed
        return _run(runner, attempt)


def _run(runner: Runner, attempt: Attempt) -> Outcome:
    definition = definition_for(attempt)
    if definition is not None and definition.is_async:
        return _run_coroutine(runner, attempt)
    return runner.run(attempt)


def _run_coroutine(runner: Runner, attempt: Attempt) -> Outcome:
    import asyncio

    try:
        return asyncio.run(runner.run_async(attempt, cancelled_by_a_job))
    except BaseException as error:  # the job stopped the loop, or SystemExit came from a task that it started
        what = f"{type(error).__name__}: {error}"
        return runner.timed_out(attempt, AttemptCrashed(f"the event loop of the attempt ended with {what}"))


def _receive(channel: socket.socket) -> bytes | None:
    received = bytearray()
    while (left := lacks(received)) > 0:
        piece = channel.recv(max(left, PIECE))
        if not piece:
            return None
        received += piece
    return unframed(received)


def _listen(lifeline: int, stopped: set[str]) -> None:
    with os.fdopen(lifeline) as lines:
        for line in lines:
            stopped.add(line.strip())
    os._exit(0)


def _die_with_parent() -> None:
    """On Linux the kernel ends this process with its worker, even while a job holds the interpreter lock."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
