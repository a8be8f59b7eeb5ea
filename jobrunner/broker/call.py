"""A call is a value: bound keys and arguments plus a reader for the reply.

`Broker.run(call)` executes it and `await AsyncBroker.run(call)` does the same, so the two drivers hold no logic of
their own and a batch is a list of calls. This module packs calls into bytes, and turns replies into values or into
errors of this package.

Text in replies is UTF-8; invalid bytes become replacement characters. Many items for one script are sent in slices,
because a script blocks the server, which also copies every payload.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from math import inf
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from jobrunner.broker.keys import QueueKeys
from jobrunner.broker.redis_errors import (
    AuthenticationError,
    BusyLoadingError,
    RedisConnectionError,
    RedisError,
    RedisTimeoutError,
    server_error,
)
from jobrunner.broker.resp import Arg, PackedHead, pack, pack_behind
from jobrunner.broker.scripts import Script, load
from jobrunner.errors import DamagedData, JobrunnerError

NOTED_S = 9.0
"""Seconds for which the server certainly keeps the note of an enqueue: one less than SENT_KEEP_MS of its scripts."""
UNKNOWN = b"unknown"
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
BROKEN = (RedisConnectionError, RedisTimeoutError, OSError)
"""Errors after which a connection cannot be used any more."""
_ANSWERED = (AuthenticationError, BusyLoadingError)
"""Errors among BROKEN that are replies of the server: the connection can still be used."""
_KEYLESS = frozenset(("ACL", "CLIENT", "CONFIG", "ECHO", "INFO", "PING", "SCAN", "SCRIPT", "TIME", "WAIT", "WAITAOF"))


class Call(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """One command for the server. `words` follow the script's digest, its keys and the clock on the wire.

    The words of a plain command include its keys; its `keys` only route it on a cluster.
    A `repeatable` call leaves the same state when it is applied twice, so a driver may send it again after a
    connection broke; other calls raise OutcomeUnknown then.
    """

    read: Callable[[Any], T_co]
    words: Sequence[Arg]
    script: Script | None = None
    keys: tuple[bytes, ...] = ()
    repeatable: bool = True
    repeat_s: float = inf
    """Seconds after its first sending within which a `repeatable` call may be sent again: later the server may have
    forgotten that it applied the call."""
    unsure: tuple[bytes, ...] = ()
    """Replies that are ambiguous for a call that was sent again: it found nothing to do, or its first sending has done
    it. The reader gets UNKNOWN instead."""
    found_nothing: Callable[[Any], bool] | None = None
    """Whether a reply means that the call found nothing to do. When earlier calls of its exchange had no effect, it is
    then sent again after them."""
    may_fail: bool = False
    """Whether a refusal by the server is ignored: the reader gets None then."""
    everywhere: bool = False
    """Whether a cluster sends it to every primary; the reader then gets a list with the replies of those that answer.
    """
    needs_all: bool = False
    """For an `everywhere` call: whether it is sent again while a primary does not answer, and fails in the end."""
    divisible: bool = False
    """Whether its reply is a list with an item for each key, so that the keys may be divided among several calls."""
    head: PackedHead | None = None
    """All but the last words, packed in advance; used while scripts take the server's clock."""

    @property
    def must_be_answered(self) -> bool:
        """Whether the caller has to know if it was applied: a second call in its place would do more, or report less.
        False for calls whose effect and reply are the same however often they are made."""
        return bool(self.unsure) or self.repeat_s < inf


class ScriptCommand(Generic[T]):
    """A script as a function from keys and named arguments to a Call. The file is read at the first use."""

    def __init__(
        self, name: str, read: Callable[[Any], T], *, repeatable: bool = True, repeat_s: float = inf,
        unsure: tuple[bytes, ...] = (), found_nothing: Callable[[Any], bool] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self._read = read
        self._repeatable = repeatable
        self._repeat_s = repeat_s
        self._unsure = unsure
        self._found_nothing = found_nothing

    @cached_property
    def script(self) -> Script:
        """The script, read from its file."""
        return load(self.name)

    @cached_property
    def _arrange(self) -> Callable[[dict[str, Arg]], Sequence[Arg]]:
        names = self.script.args[1:]
        return itemgetter(*names) if len(names) > 1 else lambda args: [args[name] for name in names]

    @cached_property
    def _pick(self) -> Callable[[QueueKeys], tuple[bytes, ...]]:
        pick: Callable[[QueueKeys], Any] = attrgetter(*self.script.keys)
        return pick if len(self.script.keys) > 1 else lambda queue: (pick(queue),)

    def on(
        self, queue: QueueKeys, /, *, rest: Iterable[Arg] = (), read: Callable[[Any], T] | None = None, **args: Arg
    ) -> Call[T]:
        """The call on the keys of one queue; `args` are the script's fixed arguments without the clock, `rest` the
        variable ones. `read` replaces the reader of this command."""
        return self._call(self._pick(queue), rest, args, read or self._read)

    def with_keys(self, keys: tuple[bytes, ...], /, *, rest: Iterable[Arg] = (), **args: Arg) -> Call[T]:
        """The call on these keys, in the order of the script's signature."""
        return self._call(keys, rest, args, self._read)

    def for_each(self, keys: tuple[bytes, ...], /, *, rest: Iterable[Arg] = (), **args: Arg) -> Call[T]:
        """The call of a script that replies with a list of one item for each key: see `Call.divisible`."""
        return replace(self._call(keys, rest, args, self._read), divisible=True)

    def _call(
        self, keys: tuple[bytes, ...], rest: Iterable[Arg], args: dict[str, Arg], read: Callable[[Any], T]
    ) -> Call[T]:
        script = self.script
        if len(args) >= len(script.args):
            raise TypeError(f"lua/{script.name}.lua takes no argument {sorted(args.keys() - script.args)}")
        return Call(
            read=read,
            words=[*self._arrange(args), *rest],
            script=script,
            keys=keys,
            repeatable=self._repeatable,
            repeat_s=self._repeat_s,
            unsure=self._unsure,
            found_nothing=self._found_nothing,
        )


def command(
    *words: Arg,
    read: Callable[[Any], T],
    repeatable: bool = True,
    may_fail: bool = False,
    everywhere: bool = False,
    needs_all: bool = False,
) -> Call[T]:
    """A plain command of the server."""
    return Call(
        read=read, words=words, repeatable=repeatable, may_fail=may_fail, everywhere=everywhere, needs_all=needs_all
    )


def resp_args(call: Call[Any], now_ms: bytes, *, with_source: bool = False) -> tuple[Arg, ...]:
    """The command as it is sent: EVALSHA, or EVAL when the server does not know the script yet."""
    script = call.script
    if script is None:
        return tuple(call.words)
    verb, text = (b"EVAL", script.source) if with_source else (b"EVALSHA", script.sha)
    return verb, text, len(call.keys), *call.keys, now_ms, *call.words


def key_of(call: Call[Any]) -> bytes | None:
    """The first key of a call, which determines its slot; None for a command without a key."""
    if call.keys:
        return call.keys[0]
    verb, *rest = call.words
    if verb in _KEYLESS or not rest:
        return None
    key = rest[rest.index("STREAMS") + 1] if verb == "XREAD" else rest[0]
    return key if isinstance(key, bytes) else str(key).encode()


def read_reply(connection: Any) -> Any:
    """The next reply; an error reply is a value. Raises the errors in BROKEN when the connection cannot be used."""
    try:
        return connection.read_response()
    except (RedisError, OSError) as error:
        return _answered(error)


async def read_reply_async(connection: Any) -> Any:
    """As read_reply, for a connection of asyncio."""
    try:
        return await connection.read_response()
    except (RedisError, OSError) as error:
        return _answered(error)


def _answered(error: Exception) -> Exception:
    if isinstance(error, BROKEN) and not isinstance(error, _ANSWERED):
        raise error
    return error


def has_errors(replies: Sequence[object]) -> bool:
    """Whether the server refused a call."""
    for reply in replies:  # noqa: SIM110  each exchange asks, and a generator takes four times as long
        if isinstance(reply, Exception):
            return True
    return False


def pack_calls(calls: Iterable[Call[Any]], now_ms: bytes) -> bytes:
    """Packs calls into one piece: each further piece would be a further packet, and a further turn of the server."""
    if now_ms:
        return b"".join([pack(resp_args(call, now_ms)) for call in calls])
    return b"".join(
        [pack(resp_args(call, b"")) if call.head is None else pack_behind(call.head, call.words) for call in calls]
    )


def pack_unknown(calls: Sequence[Call[Any]], now_ms: bytes) -> bytes:
    """Packs calls whose scripts the server does not know into one piece; the first of each script has its source."""
    known: set[bytes] = set()
    parts = []
    for call in calls:
        sha = call.script.sha if call.script is not None else b""
        parts.append(pack(resp_args(call, now_ms, with_source=sha not in known)))
        known.add(sha)
    return b"".join(parts)


def may_repeat(calls: Sequence[Call[Any]]) -> bool:
    """Whether all calls are repeatable, so that they may be sent again when their outcome is unknown."""
    for call in calls:  # noqa: SIM110  each exchange asks, and a generator takes four times as long
        if not call.repeatable:
            return False
    return True


def needs_live_connection(calls: Sequence[Call[Any]], *, is_patient: bool) -> bool:
    """Whether an idle connection is checked before these calls are sent on it: for calls that may not be repeated, and
    in a driver that retries for longer (`is_patient`) for those that may be repeated for some time."""
    return not may_repeat(calls) or (is_patient and any(call.repeat_s < inf for call in calls))


def waits_for_disk(calls: Sequence[Call[Any]]) -> bool:
    """Whether the last call, a plain command, is WAITAOF."""
    return calls[-1].words[0] == "WAITAOF"


def told_again(call: Call[Any], reply: Any) -> Any:
    """The reply to a call that was sent again, with UNKNOWN for its `unsure` words."""
    if isinstance(reply, list):
        return [UNKNOWN if word in call.unsure else word for word in reply]
    return UNKNOWN if reply in call.unsure else reply


def interpret(call: Call[T], reply: object) -> T:
    """The value of a reply. Raises the error of this package for an error reply, and for one that cannot be read."""
    if isinstance(reply, Exception):
        if call.may_fail:
            return call.read(None)
        raise server_error(reply, call.script, asked=lambda: _described(call)) from reply
    try:
        return call.read(reply)
    except JobrunnerError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise _damage(call, error) from error


def _damage(call: Call[Any], error: Exception) -> DamagedData:
    key = (key_of(call) or b"?")[:200].decode("utf-8", "replace")
    what = f"{type(error).__name__}: {error}"[:200]
    return DamagedData(f"what is stored at {key!r}, or beside it, cannot be read ({what}); mend or delete it")


def attempt_to_interpret(call: Call[T], reply: object) -> T | JobrunnerError:
    """The value of a reply, or its error as a value."""
    try:
        return interpret(call, reply)
    except JobrunnerError as error:
        return error


def _described(call: Call[Any]) -> str:
    """The command and its first key, for an administrator: a server that denies a key does not name it."""
    keys = call.keys if call.script is not None else tuple(filter(None, [key_of(call)]))
    name = str(call.words[0]) if call.script is None else f"{call.script.name}.lua"
    on = f" on {keys[0][:200].decode('utf-8', 'replace')}" if keys else ""
    more = len(keys) - 1
    return f"{name}{on}" + (f" and {more} more key{'s' if more > 1 else ''}" if more > 0 else "")


SLICE_BYTES = 1_048_576
"""Most bytes of payloads in one call: a script copies them several times, one to three milliseconds for one MiB."""


def sliced(items: Iterable[T], size: Callable[[T], int], *, most: int) -> Iterator[list[T]]:
    """Slices of up to `most` items whose sizes come to SLICE_BYTES at most; a larger item is a slice of its own."""
    some: list[T] = []
    total = 0
    for item in items:
        length = size(item)
        if some and (len(some) == most or total + length > SLICE_BYTES):
            yield some
            some, total = [], 0
        some.append(item)
        total += length
    if some:
        yield some


def in_slices(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Slices of up to `most` items."""
    for first in range(0, len(items), most):
        yield items[first : first + most]


def text(reply: bytes) -> str:
    """Decodes one reply."""
    return reply.decode("utf-8", "replace")


def texts(reply: Iterable[bytes]) -> list[str]:
    """Decodes a list of replies."""
    return [raw.decode("utf-8", "replace") for raw in reply]


def whole(raw: bytes | None) -> int:
    """A whole number; 0 for a missing or damaged value."""
    return int(raw) if raw is not None and raw.isdigit() else 0


def fields(reply: Sequence[bytes]) -> dict[str, bytes]:
    """The reply to HGETALL as a dict: names as text, values as bytes."""
    return {raw.decode("utf-8", "replace"): value for raw, value in zip(reply[::2], reply[1::2], strict=True)}


def text_fields(reply: Sequence[bytes]) -> dict[str, str]:
    """The reply to HGETALL as a dict of text."""
    words = texts(reply)
    return dict(zip(words[::2], words[1::2], strict=True))
