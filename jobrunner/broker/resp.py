"""The server's protocol (RESP 2): packs commands into bytes, and reads replies from a socket, one after the other. Both
use hiredis when it is installed."""

import socket
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from jobrunner.broker.redis_errors import InvalidResponse, error_of_reply

Arg = bytes | str | int | float
CLOSED = "Connection closed by server"
_AT_ONCE = 1 << 16
"""Bytes taken from the socket at a time."""
_PIECE = 1 << 18
_PARTIAL = object()
"""Returned by hiredis while a reply is incomplete, as any Python value could be a reply."""


def pack_in_python(words: Sequence[Arg]) -> bytes:
    """Packs one command in the server's protocol (RESP)."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


try:
    from hiredis import pack_command as _pack_in_c
except ImportError:
    pack = pack_in_python
else:

    _NUMBERS = {int, float, bool}

    def pack(words: Sequence[Arg]) -> bytes:
        """Packs one command in the server's protocol (RESP)."""
        # hiredis takes the repr of a number, in which Python runs signal handlers; when a handler raises, as at Ctrl-C,
        # hiredis reads a missing value, and the process dies of SIGSEGV.
        if not _NUMBERS.isdisjoint(map(type, words)):
            words = [str(word) if type(word) in _NUMBERS else word for word in words]
        packed: bytes = _pack_in_c(tuple(words))  # type: ignore[arg-type]
        return packed


def pieces(packed: bytes) -> Sequence[bytes | memoryview]:
    """Packed commands in the pieces in which they are sent. The time for a write is for each of them, so a large
    request on a slow link goes on for as long as the server takes any of it."""
    if len(packed) <= _PIECE:
        return (packed,)
    whole = memoryview(packed)
    return [whole[at : at + _PIECE] for at in range(0, len(packed), _PIECE)]


class PackedHead(msgspec.Struct, frozen=True):
    """The packed first words of a command, for commands that differ only in their last words."""

    raw: bytes
    tail: int
    """The number of words that follow: one to nine."""


_COUNT = len(b"*1\r\n")


def packed_head(words: Sequence[Arg], tail: int) -> PackedHead:
    """Packs all but the last `tail` words of a command."""
    _, _, rest = pack(words[:-tail]).partition(b"\n")
    return PackedHead(b"*%d\r\n%b" % (len(words), rest), tail)


def pack_behind(head: PackedHead, words: Sequence[Arg]) -> bytes:
    """Packs the command that begins with `head`; only the last `head.tail` of `words` are read."""
    return head.raw + pack(words[-head.tail :])[_COUNT:]


class Replies(Protocol):
    """The replies on one connection. An error reply is a value here."""

    @property
    def has_data(self) -> bool:
        """Whether data was read from the socket that `next` has not returned."""

    def next(self) -> Any:
        """The next reply. Raises OSError, also when the server has closed the connection, and InvalidResponse."""


class HiredisReplies:
    """Replies parsed by hiredis."""

    def __init__(self, source: socket.socket, parser: Any) -> None:
        self._fill_from = source.recv_into
        self._buffer = bytearray(_AT_ONCE)
        self._feed = parser.feed
        self._gets = parser.gets
        self._parser = parser

    @property
    def has_data(self) -> bool:
        """See Replies."""
        return bool(self._parser.has_data())

    def next(self) -> Any:
        """See Replies."""
        reply = self._gets()
        while reply is _PARTIAL:
            size = self._fill_from(self._buffer)
            if size == 0:
                raise ConnectionError(CLOSED)
            self._feed(self._buffer, 0, size)
            reply = self._gets()
        return reply


class PythonReplies:
    """Replies parsed without hiredis."""

    def __init__(self, source: socket.socket) -> None:
        self._take = source.recv
        self._held = b""
        self._at = 0

    @property
    def has_data(self) -> bool:
        """See Replies."""
        return self._at < len(self._held)

    def next(self) -> Any:
        """See Replies."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            return error_of_reply(rest.decode("utf-8", "replace"))
        try:
            number = int(rest) if kind in (b"$", b":", b"*") else None
        except ValueError:
            number = None
        if number is None:
            raise InvalidResponse(f"a reply begins with {line[:20]!r}")
        if kind == b":":
            return number
        if number < 0:
            return None
        return self._bytes(number) if kind == b"$" else [self.next() for _ in range(number)]

    def _line(self) -> bytes:
        while (end := self._held.find(b"\r\n", self._at)) < 0:
            self._held, self._at = self._held[self._at :] + self._more(), 0
        line, self._at = self._held[self._at : end], end + 2
        return line

    def _bytes(self, size: int) -> bytes:
        """Reads `size` bytes, and skips the end of the line."""
        parts, missing = [self._held[self._at :]], size + 2 - (len(self._held) - self._at)
        while missing > 0:
            parts.append(self._more())
            missing -= len(parts[-1])
        if len(parts) > 1:
            self._held, self._at = b"".join(parts), 0
        start, self._at = self._at, self._at + size + 2
        return self._held[start : start + size]

    def _more(self) -> bytes:
        taken = self._take(_AT_ONCE)
        if not taken:
            raise ConnectionError(CLOSED)
        return taken


def replies_of(source: socket.socket) -> Replies:
    """The reader of replies from a socket, with hiredis when it is installed."""
    try:
        from hiredis import Reader
    except ImportError:
        return PythonReplies(source)
    return HiredisReplies(
        source, Reader(protocolError=InvalidResponse, replyError=error_of_reply, notEnoughData=_PARTIAL)
    )
