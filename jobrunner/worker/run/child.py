"""The child process of a slot, which runs attempts and replies with their outcomes, and the protocol to it.

Usage: ``python -m jobrunner.worker.run.child SOCKET LIFELINE`` (descriptors by number). The lifeline carries tokens of
attempts that should stop. The process ends when the socket or the lifeline closes, so a killed worker leaves no child
running.

The socket carries frames of a length and that many bytes of msgpack. First comes the greeting (never in the arguments
of the child, which `ps` shows), answered with nothing or an error; then attempts and their outcomes in turn. An outcome
names the lease of its attempt: a process that a job forked has the same socket, and its frames are no reply to the
current attempt.
"""

import ctypes
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.client.client import Client, endpoint_of, middleware_of
from jobrunner.client.current import configure, within
from jobrunner.errors import AttemptCrashed, JobrunnerError, UsageError
from jobrunner.jobs.registry import definition_for, load_modules
from jobrunner.log_output import log_to_stderr
from jobrunner.logs import IDENTITY, SafeLogger
from jobrunner.observers import OBSERVERS
from jobrunner.outcome import Outcome
from jobrunner.redaction import Redaction, hide_in_errors
from jobrunner.worker.process_guard import answer_signals
from jobrunner.worker.run.error_outcome import cancelled_by_a_job
from jobrunner.worker.run.runner import Runner

PIECE = 16 * 1024
"""The smallest read from the socket, in bytes: most frames arrive in one piece."""
_log = SafeLogger("jobrunner.executor")
_HEAD = struct.Struct("!I")
_outcomes = msgspec.msgpack.Decoder(tuple[str, Outcome])
_attempts = msgspec.msgpack.Decoder(tuple[Attempt, str, tuple[str, ...] | None])


class Greeting(msgspec.Struct, frozen=True):
    """The set-up of a child: the server, the prefix, and the modules that declare the jobs."""

    url: str
    prefix: str
    modules: tuple[str, ...]
    worker: str = ""
    log_format: str = ""
    """The log format of the worker; '' when no command set up logging."""
    log_level: str = "info"
    options: dict[str, Any] = {}
    """Further options of the child's client; keys may be among them."""
    middleware: bytes = b""
    """The middleware of that client, pickled by the worker; never read from the server."""
    declaring: tuple[str, ...] = ()
    """The modules of the worker's jobs, for a worker without configured modules. A failed import does not keep the
    others from being imported."""


def write_greeting(
    url: str,
    prefix: str,
    modules: Sequence[str],
    worker: str = "",
    log_format: str = "",
    log_level: str = "info",
    options: Mapping[str, Any] | None = None,
    middleware: bytes = b"",
    declaring: Sequence[str] = (),
) -> bytes:
    """The first message to a child."""
    greeting = Greeting(
        url, prefix, tuple(modules), worker, log_format, log_level, dict(options or {}), middleware, tuple(declaring)
    )
    return msgspec.msgpack.encode(greeting)


def read_greeting(raw: bytes) -> Greeting:
    """The first message, in the child."""
    return msgspec.msgpack.decode(raw, type=Greeting)


def write_attempt(attempt: Attempt, traceparent: str = "", hidden: Sequence[str] | None = None) -> bytes:
    """The message with an attempt for a child, and with its span, if it is traced. `hidden` are the names that its
    errors hide from now on; None: as before."""
    return msgspec.msgpack.encode((attempt, traceparent, hidden))


def read_attempt(raw: bytes) -> tuple[Attempt, str, tuple[str, ...] | None]:
    """The attempt, its span, and the names to hide, in the child."""
    return _attempts.decode(raw)


def write_outcome(outcome: Outcome, token: str) -> bytes:
    """A child's reply to the attempt with this lease token."""
    return msgspec.msgpack.encode((token, outcome))


def read_outcome(raw: bytes, token: str) -> Outcome | None:
    """The outcome in a child's reply; None for a reply to another attempt, or an invalid reply."""
    try:
        answered, outcome = _outcomes.decode(raw)
    except msgspec.MsgspecError:
        return None
    return outcome if answered == token else None


def frame(message: bytes) -> bytes:
    """The message as a frame for the socket."""
    return _HEAD.pack(len(message)) + message


def lacks(received: bytearray) -> int:
    """The least number of bytes of a frame still to come; 0 or less when the frame is complete."""
    if len(received) < _HEAD.size:
        return _HEAD.size - len(received)
    return int(_HEAD.unpack_from(received)[0]) + _HEAD.size - len(received)


def unframed(received: bytearray) -> bytes:
    """Removes the first frame and returns its message."""
    ends = int(_HEAD.unpack_from(received)[0]) + _HEAD.size
    message = bytes(received[_HEAD.size : ends])
    del received[:ends]
    return message


_PR_SET_PDEATHSIG = 1


def main(descriptor: str, lifeline: str) -> None:
    """Serves one slot until it closes."""
    # A handler, not SIG_IGN: processes that a job starts would inherit SIG_IGN.
    answer_signals((signal.SIGINT, signal.SIGTERM), lambda *_: None)
    stopped: set[str] = set()
    threading.Thread(target=_listen, args=(int(lifeline), stopped), daemon=True).start()
    _die_with_parent()
    with socket.socket(fileno=int(descriptor)) as channel:
        client = _greet(channel)
        if client is None:
            return
        hasty = Broker(endpoint_of(client), retry_timeout_s=0)
        runner = Runner(client, stopped.__contains__, middleware=middleware_of(client), hasty=hasty)
        with within(client):
            serve(channel, runner, stopped)


def serve(channel: socket.socket, runner: Runner, stopped: set[str]) -> None:
    """Answers attempts until the other side closes the channel. `stopped`: tokens of attempts that should stop."""
    own = os.getpid()
    while (message := _receive(channel)) is not None:
        attempt, traceparent, hidden = read_attempt(message)
        if hidden is not None:
            hide_in_errors(Redaction(hidden))
        answer = frame(write_outcome(_run_traced(runner, attempt, traceparent), attempt.token))
        if os.getpid() != own:  # this is a copy that a job forked without Python noticing
            os._exit(0)
        stopped.clear()  # before the reply: after it the token of the next attempt may come
        channel.sendall(answer)


def _greet(channel: socket.socket) -> Client | None:
    message = _receive(channel)
    if message is None:
        return None
    greeting = read_greeting(message)
    if greeting.log_format:
        log_to_stderr(greeting.log_format, greeting.log_level)
        IDENTITY.worker = greeting.worker
    configure(greeting.url, greeting.prefix, **greeting.options)  # for code that the modules run at import
    try:
        load_modules(greeting.modules)
        _load_others(greeting.declaring)
        middleware = pickle.loads(greeting.middleware) if greeting.middleware else ()  # noqa: S301
        # Not the client above: a module that calls `configure` closed it, and may name another server.
        client = Client(greeting.url, greeting.prefix, **greeting.options, middleware=middleware)
    except Exception as error:
        what = str(error) if isinstance(error, JobrunnerError) else f"its middleware: {type(error).__name__}: {error}"
        channel.sendall(frame(what.encode("utf-8", "backslashreplace")))
        return None
    channel.sendall(frame(b""))
    hide_in_errors(Redaction(client.settings.redact))
    return client


def _load_others(modules: Sequence[str]) -> None:
    for name in modules:
        try:
            load_modules([name])
        except UsageError as error:
            _log.warning("a child process does not know the jobs of a module", module=name, error=str(error))


def _run_traced(runner: Runner, attempt: Attempt, traceparent: str) -> Outcome:
    with ExitStack() as ends:
        for observer in OBSERVERS if traceparent else ():
            # The worker has the span, as this process may be killed.
            ends.enter_context(observer.within(traceparent, attempt.headers))
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
    except BaseException as error:  # the job stopped the loop, or a task that it started raised SystemExit
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
