"""Commands in the server's protocol (RESP), by hiredis where that is installed."""

from collections.abc import Sequence

import msgspec

Arg = bytes | str | int | float


def pack_in_python(words: Sequence[Arg]) -> bytes:
    """One command in the server's protocol."""
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
        """One command in the server's protocol (RESP)."""
        # hiredis takes the repr of a number, in which Python runs handlers of signals; when one raises, as at Ctrl-C,
        # hiredis reads what is not there, and the process dies of SIGSEGV.
        if not _NUMBERS.isdisjoint(map(type, words)):
            words = [str(word) if type(word) in _NUMBERS else word for word in words]
        packed: bytes = _pack_in_c(tuple(words))  # type: ignore[arg-type]
        return packed


class PackedHead(msgspec.Struct, frozen=True):
    """The packed first words of a command, for commands that differ in their last words only."""

    raw: bytes
    tail: int
    """How many words follow: one to nine."""


_COUNT = len(b"*1\r\n")


def packed_head(words: Sequence[Arg], tail: int) -> PackedHead:
    """All but the last `tail` words of a command."""
    _, _, rest = pack(words[:-tail]).partition(b"\n")
    return PackedHead(b"*%d\r\n%b" % (len(words), rest), tail)


def pack_behind(head: PackedHead, words: Sequence[Arg]) -> bytes:
    """The command whose first words are those of `head`; only the last of `words` are read."""
    return head.raw + pack(words[-head.tail :])[_COUNT:]
