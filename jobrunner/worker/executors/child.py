"""The process of a slot: runs attempts it is sent and answers with their outcomes.

Usage: ``python -m jobrunner.worker.executors.child SOCKET LIFELINE`` (descriptors by number); see wire.py for what goes
over the socket. The lifeline brings tokens of attempts that should stop. The process ends when the socket or the
lifeline closes, so a worker that was killed leaves nothing running behind.
"""

import ctypes
import os
import signal
import socket
import sys
import threading

from jobrunner.attempt import Attempt
from jobrunner.client.current import configure
from jobrunner.errors import JobrunnerError
from jobrunner.jobs.registry import definition_for, load_modules
from jobrunner.log_setup import log_to_stderr
from jobrunner.logs import IDENTITY
from jobrunner.outcome import Outcome
from jobrunner.own_signals import answer_signals
from jobrunner.tracepoint import TRACEPOINT
from jobrunner.worker.executors.wire import (
    PIECE,
    frame,
    lacks,
    read_attempt,
    read_greeting,
    unframed,
    write_outcome,
)
from jobrunner.worker.runner import Runner

_PR_SET_PDEATHSIG = 1


def main(descriptor: str, lifeline: str) -> None:
    """Serves one slot until it closes."""
    # Not ignored: what a job starts would inherit that.
    answer_signals((signal.SIGINT, signal.SIGTERM), lambda *_: None)
    stopped: set[str] = set()
    threading.Thread(target=_listen, args=(int(lifeline), stopped), daemon=True).start()
    _die_with_parent()
    with socket.socket(fileno=int(descriptor)) as channel:
        runner = _greet(channel, stopped)
        while runner is not None and (message := _receive(channel)) is not None:
            channel.sendall(frame(write_outcome(_run_traced(runner, *read_attempt(message)))))
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
    except JobrunnerError as error:
        channel.sendall(frame(str(error).encode("utf-8", "backslashreplace")))
        return None
    channel.sendall(frame(b""))
    return Runner(client.broker, client.keys, stopped.__contains__)


def _run_traced(runner: Runner, attempt: Attempt, traceparent: str) -> Outcome:
    tracer = TRACEPOINT.tracer
    if tracer is None or not traceparent:
        return _run(runner, attempt)
    with tracer.within(traceparent):  # the span of the attempt is the worker's: this process may be killed
        return _run(runner, attempt)


def _run(runner: Runner, attempt: Attempt) -> Outcome:
    definition = definition_for(attempt)
    if definition is not None and definition.is_async:
        import asyncio

        return asyncio.run(runner.run_async(attempt))
    return runner.run(attempt)


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
