"""Writes confirmed by a later command on the same connection: WAITAOF when they are on disk, WAIT when a replica has
them. See docs/durability.md."""

import re
from collections.abc import Generator, Sequence
from typing import Any, Final

from jobrunner.broker.call import Call, command, key_of
from jobrunner.broker.redis_errors import BusyLoadingError, BusyScriptError, NoScriptError
from jobrunner.clock import since_boot
from jobrunner.errors import JobrunnerError, OutcomeUnknown, ServerRefused, ServerUnavailable

Steps = Generator[float | Sequence[Call[Any]], list[Any], Any]
"""Yields seconds to wait, or calls to send on the same connection, and receives their replies; returns a reply."""

_CONFIRMATIONS = ("WAIT", "WAITAOF")
_DID_NOTHING = frozenset({NoScriptError, BusyLoadingError, BusyScriptError})
_BUSY_PAUSE_S: Final = 0.05
_MARK_MS = 1000
_MARK_ENDS = b":sent:confirmed"
_SYNC_EVERY_S: Final = 1.01
"""The interval of syncs with everysec, and 10 ms more, as the server counts in whole milliseconds."""
_MOST_ROUNDS = 3
OF_SOME: Final = (
    "This is of some of the tasks; others of the same call may have been added; with ids of your own you may send all "
    "again"
)
_HOW_IT_SYNCS: Final[Sequence[Call[Any]]] = (
    command("HELLO", read=lambda reply: reply),
    command("CONFIG", "GET", "appendfsync", read=lambda reply: reply),
    command("INFO", "persistence", read=lambda reply: reply),
)


def confirmation_marks(calls: Sequence[Call[Any]], *, everywhere: bool) -> list[Call[Any]]:
    """Writes to send between calls and their confirmation, which covers only writes of its own connection. Calls that
    are sent again on another connection, or find their task stored, write nothing, and would be confirmed at once.

    One server needs a single key; `everywhere`, for a cluster, writes a key for each hash tag. The keys expire.
    """
    tags = dict.fromkeys(key.partition(b"}")[0] for call in calls if (key := key_of(call)) and b"}" in key)
    names = [tag + b"}" + _MARK_ENDS for tag in tags]
    return [command("SET", name, "", "PX", _MARK_MS, read=bool) for name in (names if everywhere else names[:1])]


def ends_with_confirmation(calls: Sequence[Call[Any]]) -> bool:
    """Whether the last call confirms the calls before it."""
    return bool(calls) and calls[-1].script is None and calls[-1].words[0] in _CONFIRMATIONS


def outlast_sync(calls: Sequence[Call[Any]], reply: Any) -> Steps:
    """Waits until the writes of the calls are on disk, on a server whose WAITAOF replies too early; returns the reply.

    With `appendfsync everysec`, Valkey from 8 on and some versions of Redis 7.4 confirm writes before their sync
    (https://github.com/redis/redis/pull/13793, seen in Valkey 9.1.2). They report no other sign of a sync, so this
    wait relies on their behaviour: a write begins a sync if no sync began within the second before; during a sync,
    writes are postponed and not confirmed. So at a mark written a second later, a sync has begun since the calls or
    begins now, and a second mark is confirmed when that sync is over. A third mark is needed after a sync longer than a
    second: the next sync, which has the calls, began with the second mark. A rewrite of the file counts as a sync
    before it is a sync, and after two seconds of a sync the server writes all the same. The server counts both cases;
    if either happened, the wait starts again.

    All marks have to be on one connection: a restart of the server breaks it, and the calls are sent again.
    """
    mark = next((call for call in calls if call.words and call.words[0] == "SET" and _is_mark(call)), None)
    if mark is None or not _is_confirmed(reply):
        return reply
    server, policy, before = yield _HOW_IT_SYNCS
    if _word_of(policy, b"appendfsync") == b"always" or _is_right(server):
        return reply
    for _ in range(_MOST_ROUNDS):
        yield _SYNC_EVERY_S
        for step in ((mark,), (mark, calls[-1]), (mark, calls[-1])):
            written, *others = yield step
            if isinstance(written, Exception):
                return written
            if others and not _is_confirmed(others[0]):
                return others[0]
        (after,) = yield _HOW_IT_SYNCS[2:]
        if _disturbances(before) == _disturbances(after):
            return reply
        before = after
    return [0, 0]


def _is_mark(call: Call[Any]) -> bool:
    name = call.words[1]
    return isinstance(name, bytes) and name.endswith(_MARK_ENDS)


def _is_confirmed(reply: Any) -> bool:
    return isinstance(reply, list) and reply[0] >= 1


def _is_right(server: Any) -> bool:
    """Whether WAITAOF of this server waits for the sync."""
    found = re.match(rb"(\d+)\.(\d+)", _word_of(server, b"version"))
    if found is None or _word_of(server, b"server") != b"redis":
        return False
    version = int(found[1]), int(found[2])
    return (7, 2) <= version < (7, 4) or version >= (8, 0)


def _word_of(reply: Any, name: bytes) -> bytes:
    """The value of `name` in a reply of names and values; empty for a refused command."""
    if isinstance(reply, list):
        reply = dict(zip(reply[::2], reply[1::2], strict=False))
    found: bytes = reply.get(name, b"") if isinstance(reply, dict) else b""
    return found


def _disturbances(reply: Any) -> list[bytes]:
    """The counts of file rewrites and of syncs delayed by two seconds; empty for a user without the right to INFO."""
    info = reply if isinstance(reply, bytes) else b""
    return re.findall(rb"^aof_(?:rewrites|delayed_fsync):(\d+)", info, re.MULTILINE)


def to_send_again(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[int]:
    """Positions of calls without effect: scripts that the server does not know, calls that it read while it loaded its
    data or ran a long script of another client (it reads a long exchange in pieces), and later calls whose replies
    depend on these."""
    if _DID_NOTHING.isdisjoint(map(type, replies)):  # the case of nearly all exchanges
        return []
    positions: list[int] = []
    for position, (call, reply) in enumerate(zip(calls, replies, strict=True)):
        if type(reply) in _DID_NOTHING or (positions and _came_too_early(call, reply)):
            positions.append(position)
    return positions


def _came_too_early(call: Call[Any], reply: Any) -> bool:
    """Whether calls before this call would have changed its reply: a confirmation, or a reserve without tasks, maybe
    because the commits before it had not freed capacity yet."""
    if call.found_nothing is not None:
        return call.found_nothing(reply)
    return call.script is None and call.words[0] in _CONFIRMATIONS


def send_again(calls: Sequence[Call[Any]], replies: list[Any], patience_s: float) -> Steps:
    """Repeats the calls without effect, and puts their replies in place. While the server runs a long script, the calls
    are repeated for `patience_s` seconds. A second LOADING reply ends the repetition: the server loads its data again.
    """
    ends, before = since_boot() + patience_s, list[int]()
    while undone := to_send_again(calls, replies):
        if undone == before:
            if since_boot() >= ends or not any(isinstance(replies[at], BusyScriptError) for at in undone):
                return
            yield _BUSY_PAUSE_S
        again = yield [calls[at] for at in undone]
        for at, reply in zip(undone, again, strict=True):
            replies[at] = reply
        before = undone


def written(values: list[Any]) -> list[Any]:
    """The values of calls that write tasks, if none is an error. Raises the first error: OutcomeUnknown in place of
    ServerUnavailable when other calls were applied, and a refusal with words about these calls."""
    refused = next((value for value in values if isinstance(value, JobrunnerError)), None)
    if refused is None:
        return values
    if isinstance(refused, ServerUnavailable | ServerRefused) and not all(
        isinstance(value, ServerUnavailable | ServerRefused) for value in values
    ):
        kind = OutcomeUnknown if isinstance(refused, ServerUnavailable) else type(refused)
        raise kind(f"{refused}. {OF_SOME}") from refused
    raise refused


def confirmed(values: Sequence[Any], count: int) -> list[Any]:
    """The values of the first `count` calls, which the other calls confirm. Raises the error of a refused call, and
    OutcomeUnknown when only a confirmation was refused."""
    found = written(list(values[:count]))
    for confirmation in values[count:]:
        if isinstance(confirmation, ServerRefused):
            needs = "; that needs Redis 7.2 or Valkey" if "unknown command" in str(confirmation).lower() else ""
            problem = f"written, but the server cannot say how safely: {confirmation}{needs}"
            raise OutcomeUnknown(problem) from confirmation
        if isinstance(confirmation, JobrunnerError):
            raise confirmation
    return found
