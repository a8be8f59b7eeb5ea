"""Commands in the server's protocol (RESP), by hiredis where that is installed."""

from collections.abc import Sequence

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

    def pack(words: Sequence[Arg]) -> bytes:
        """One command in the server's protocol (RESP)."""
        packed: bytes = _pack_in_c(tuple(words))  # type: ignore[arg-type]
        return packed
