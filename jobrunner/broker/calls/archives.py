"""Calls about archives of history: an archive's writer, its open window, and the instant up to which each queue is in
it.

The keys of an archive have the digest of its location. Its hash has `open`, the window that is being written (JSON),
and `done`, the instant up to which each queue is archived (JSON: queue → Unix ms).
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from jobrunner.broker.call import Call, ScriptCommand, command
from jobrunner.broker.keys import Keys

_note = ScriptCommand("archive_note", bool)
"""A write, also on a server at its maxmemory. Reply: whether it was made, where it has a condition."""


def hold(keys: Keys, digest: str, holder: str, *, ttl_ms: int) -> Call[bool]:
    """Makes `holder` the writer of this archive unless it has a writer. Reply: whether `holder` became the writer."""
    key = keys.archive(digest) + b":holder"
    return replace(_note.with_keys((key,), verb="SET", rest=(holder, "NX", "PX", ttl_ms)), repeatable=False)


def holder(keys: Keys, digest: str) -> Call[str]:
    """The writer of this archive; empty for none."""
    return command("GET", keys.archive(digest) + b":holder", read=lambda raw: (raw or b"").decode("utf-8", "replace"))


def keep(keys: Keys, digest: str, *, ttl_ms: int) -> Call[bool]:
    """Extends the writer's hold to `ttl_ms` from now. Reply: False when the hold had expired."""
    return command("PEXPIRE", keys.archive(digest) + b":holder", ttl_ms, read=bool)


def let_go(keys: Keys, digest: str) -> Call[int]:
    """Ends the writer's hold, so another process can become the writer."""
    return command("DEL", keys.archive(digest) + b":holder", read=int)


def state(keys: Keys, digest: str) -> Call[tuple[bytes | None, dict[str, float]]]:
    """The open window (None: no window is open), and the instant up to which each queue is archived, Unix ms."""
    return command("HMGET", keys.archive(digest), "open", "done", read=_state)


def open_window(keys: Keys, digest: str, window: bytes) -> Call[bool]:
    """Records a window before its files are written. Reply: False when a window is open already."""
    return replace(_note.with_keys((keys.archive(digest),), verb="HSETNX", rest=("open", window)), repeatable=False)


def close_window(keys: Keys, digest: str, done: Mapping[str, float]) -> list[Call[bool]]:
    """Records that the window is in the archive, and the instants up to which queues are archived."""
    key = keys.archive(digest)
    return [
        _note.with_keys((key,), verb="HSET", rest=("done", msgspec.json.encode(dict(done)))),
        command("HDEL", key, "open", read=bool),
    ]


def _state(reply: list[bytes | None]) -> tuple[bytes | None, dict[str, float]]:
    opened, done = reply
    return opened, msgspec.json.decode(done, type=dict[str, float]) if done else {}
