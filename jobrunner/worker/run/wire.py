"""The protocol between a slot and its child process: frames of a length and so many bytes of msgpack.

First the greeting (never in the arguments of the child: `ps` shows those), answered with nothing or an error; then an
attempt and its outcome in turn. An outcome names the lease of its attempt: a process that a job forked has the same
socket, and what it writes is no answer to the attempt at hand.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.outcome import OUTCOMES, FannedOut, Moved, Outcome

PIECE = 16 * 1024
"""The smallest read from the socket, in bytes: most frames arrive in one piece."""
_HEAD = struct.Struct("!I")
_KINDS: dict[str, Callable[..., Outcome]] = {kind.__name__: kind for kind in OUTCOMES}
_outcomes = msgspec.msgpack.Decoder(tuple[str, dict[str, Any]])
_attempts = msgspec.msgpack.Decoder(tuple[Attempt, str])


class Greeting(msgspec.Struct, frozen=True):
    """The set-up of a child: the server, the prefix, and the modules that declare the jobs."""

    url: str
    prefix: str
    modules: tuple[str, ...]
    worker: str = ""
    log_format: str = ""
    """How the worker logs; '' when it is no command that set that up."""
    options: dict[str, Any] = {}
    """Further options of its client; keys may be among them."""
    middleware: bytes = b""
    """The middleware of that client, pickled by the worker; never read from the server."""


def write_greeting(
    url: str,
    prefix: str,
    modules: Sequence[str],
    worker: str = "",
    log_format: str = "",
    options: Mapping[str, Any] | None = None,
    middleware: bytes = b"",
) -> bytes:
    """The first message to a child."""
    greeting = Greeting(url, prefix, tuple(modules), worker, log_format, dict(options or {}), middleware)
    return msgspec.msgpack.encode(greeting)


def read_greeting(raw: bytes) -> Greeting:
    """The first message, in the child."""
    return msgspec.msgpack.decode(raw, type=Greeting)


def write_attempt(attempt: Attempt, traceparent: str = "") -> bytes:
    """An attempt for a child, with the span it is part of, if it is traced."""
    return msgspec.msgpack.encode((attempt, traceparent))


def read_attempt(raw: bytes) -> tuple[Attempt, str]:
    """The attempt and its span, in the child."""
    return _attempts.decode(raw)


def write_outcome(outcome: Outcome, token: str) -> bytes:
    """A child's answer to the attempt with that lease token."""
    fields = {name: getattr(outcome, name) for name in outcome.__slots__}
    return msgspec.msgpack.encode((token, {"kind": type(outcome).__name__, **fields}))


def read_outcome(raw: bytes, token: str) -> Outcome | None:
    """The outcome in a child's answer; None in an answer to another attempt, or in what is no answer."""
    try:
        answered, fields = _outcomes.decode(raw)
    except msgspec.MsgspecError:
        return None
    if answered != token:
        return None
    kind = _KINDS[fields.pop("kind")]
    if kind is FannedOut:
        return FannedOut(children=tuple(Moved(**child) for child in fields["children"]))
    return kind(**fields)


def frame(message: bytes) -> bytes:
    """A message as it goes over the socket."""
    return _HEAD.pack(len(message)) + message


def lacks(received: bytearray) -> int:
    """How many bytes of a frame are still to come, at least; 0 or less when it is there."""
    if len(received) < _HEAD.size:
        return _HEAD.size - len(received)
    return int(_HEAD.unpack_from(received)[0]) + _HEAD.size - len(received)


def unframed(received: bytearray) -> bytes:
    """The message of the first frame, which is taken out."""
    ends = int(_HEAD.unpack_from(received)[0]) + _HEAD.size
    message = bytes(received[_HEAD.size : ends])
    del received[:ends]
    return message
