"""Replies as text. Bytes that are not UTF-8 are damage: they are read as replacement characters."""

from collections.abc import Iterable, Sequence


def text(reply: bytes) -> str:
    """One word."""
    return reply.decode("utf-8", "replace")


def texts(reply: Iterable[bytes]) -> list[str]:
    """A list of words."""
    return [raw.decode("utf-8", "replace") for raw in reply]


def whole(raw: bytes | None) -> int:
    """A whole number; 0 for what is missing or damaged."""
    return int(raw) if raw is not None and raw.isdigit() else 0


def fields(reply: Sequence[bytes]) -> dict[str, bytes]:
    """A hash: names as text, values as they are."""
    return {raw.decode("utf-8", "replace"): value for raw, value in zip(reply[::2], reply[1::2], strict=True)}


def text_fields(reply: Sequence[bytes]) -> dict[str, str]:
    """A hash: names and values as text."""
    words = texts(reply)
    return dict(zip(words[::2], words[1::2], strict=True))
