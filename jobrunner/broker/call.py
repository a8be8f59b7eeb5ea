"""A call is a value: bound keys and arguments plus a reader for the reply.

`Broker.run(call)` executes it and `await AsyncBroker.run(call)` does the same, so the two drivers hold no logic of
their own and a batch is a list of calls. Everything about talking to the server that does not wait is here: packing
calls into bytes and reading replies into values or into the errors of this package.

Text of a reply is UTF-8; other bytes are read as replacement characters. A script that takes many items is sent them in
slices: it blocks the server, which also copies every payload.
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
"""For how long the server surely has the note of an enqueue: a second less than SENT_KEEP_MS of its scripts."""
UNKNOWN = b"unknown"
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
BROKEN = (RedisConnectionError, RedisTimeoutError, OSError)
"""Errors after which a connection cannot be used any more."""
_ANSWERED = (AuthenticationError, BusyLoadingError)
"""Errors that are BROKEN ones although the server has answered."""
_KEYLESS = frozenset(("ACL", "CLIENT", "CONFIG", "ECHO", "INFO", "PING", "SCAN", "SCRIPT", "TIME", "WAIT", "WAITAOF"))


class Call(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """One command for the server. `words` go to the wire after the script's digest, its keys and the clock.

    A plain command has its keys among its words; those in `keys` tell a cluster only where it goes.
    `repeatable` calls leave the same state when they are applied twice, so a driver may send them again after a
    connection broke; the others raise OutcomeUnknown then.
    """

    read: Callable[[Any], T_co]
    words: Sequence[Arg]
    script: Script | None = None
    keys: tuple[bytes, ...] = ()
    repeatable: bool = True
    repeat_s: float = inf
    """For how many seconds since it was first sent a `repeatable` call may be sent again: after that, the server may
    have forgotten that it was applied."""
    unsure: tuple[bytes, ...] = ()
    """Words that say of a call that was sent again either that it found nothing to do, or that its first sending had
    done it. Its reader gets UNKNOWN in their place."""
    found_nothing: Callable[[Any], bool] | None = None
    """Whether a reply says that it found nothing to do, where that may be for want of what calls before it do."""
    may_fail: bool = False
    """Whether a refusal by the server is ignored: the reader gets None then."""
    everywhere: bool = False
    """Whether a cluster sends it to every primary; the reader gets a list of the replies of those that answer then."""
    needs_all: bool = False
    """Of a call that goes everywhere: whether it is sent again, and fails in the end, while a primary does not answer.
    """
    divisible: bool = False
    """Whether its reply is a list with an item for each key, so that the keys may be divided among several calls."""
    head: PackedHead | None = None
    """All but the last words, packed before, for a server that uses its own clock."""

    @property
    def must_be_answered(self) -> bool:
        """Whether its caller has to know whether it was applied: made once more as a new call, it would do more, or
        tell less. Of a `repeatable` call that is not so where its effect is the same however often it is made."""
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
        """The call on the keys of one queue; `args` are the script's fixed arguments but the clock, `rest` its tail.
        `read` is what reads its reply, when not the one of all such calls."""
        return self._call(self._pick(queue), rest, args, read or self._read)

    def with_keys(self, keys: tuple[bytes, ...], /, *, rest: Iterable[Arg] = (), **args: Arg) -> Call[T]:
        """The call on keys given in the order of the script's signature."""
        return self._call(keys, rest, args, self._read)

    def for_each(self, keys: tuple[bytes, ...], /, *, rest: Iterable[Arg] = (), **args: Arg) -> Call[T]:
        """The same of a script whose reply is a list with an item for each key: see `Call.divisible`."""
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
    """The next reply, an error of the server as a value. Raises BROKEN when the connection is."""
    try:
        return connection.read_response()
    except (RedisError, OSError) as error:
        return _answered(error)


async def read_reply_async(connection: Any) -> Any:
    """The same of a connection of asyncio."""
    try:
        return await connection.read_response()
    except (RedisError, OSError) as error:
        return _answered(error)


def _answered(error: Exception) -> Exception:
    if isinstance(error, BROKEN) and not isinstance(error, _ANSWERED):
        raise error
    return error


def has_errors(replies: Sequence[object]) -> bool:
    """Whether the server refused a call. Few exchanges have more to do than to ask this."""
    for reply in replies:  # noqa: SIM110  each exchange asks, and a generator takes four times as long
        if isinstance(reply, Exception):
            return True
    return False


def pack_calls(calls: Iterable[Call[Any]], now_ms: bytes) -> bytes:
    """Calls in one piece: each piece would be a packet of its own, and a turn of its own for the server."""
    if now_ms:
        return b"".join([pack(resp_args(call, now_ms)) for call in calls])
    return b"".join(
        [pack(resp_args(call, b"")) if call.head is None else pack_behind(call.head, call.words) for call in calls]
    )


def pack_unknown(calls: Sequence[Call[Any]], now_ms: bytes) -> bytes:
    """Calls whose scripts the server does not know, in one piece: the first of each script brings its source along."""
    known: set[bytes] = set()
    parts = []
    for call in calls:
        sha = call.script.sha if call.script is not None else b""
        parts.append(pack(resp_args(call, now_ms, with_source=sha not in known)))
        known.add(sha)
    return b"".join(parts)


def may_repeat(calls: Sequence[Call[Any]]) -> bool:
    """Whether the calls may be sent again when it is not known if they were applied."""
    for call in calls:  # noqa: SIM110  each exchange asks, and a generator takes four times as long
        if not call.repeatable:
            return False
    return True


def needs_live_connection(calls: Sequence[Call[Any]], *, is_patient: bool) -> bool:
    """Whether a connection that rested is to be looked at before these are sent: those that may not be repeated, and,
    for a driver that tries for longer than that, those that may be repeated for some time."""
    return not may_repeat(calls) or (is_patient and any(call.repeat_s < inf for call in calls))


def waits_for_disk(calls: Sequence[Call[Any]]) -> bool:
    """Whether the last of them is WAITAOF. It is no script."""
    return calls[-1].words[0] == "WAITAOF"


def told_again(call: Call[Any], reply: Any) -> Any:
    """The reply to a call that was sent again, as its reader gets it."""
    if isinstance(reply, list):
        return [UNKNOWN if word in call.unsure else word for word in reply]
    return UNKNOWN if reply in call.unsure else reply


def interpret(call: Call[T], reply: object) -> T:
    """The value of a reply, or the error of this package that it stands for."""
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
    """A call in the words in which an administrator knows it: a server that denies a key does not say which."""
    keys = call.keys if call.script is not None else tuple(filter(None, [key_of(call)]))
    name = str(call.words[0]) if call.script is None else f"{call.script.name}.lua"
    on = f" on {keys[0][:200].decode('utf-8', 'replace')}" if keys else ""
    more = len(keys) - 1
    return f"{name}{on}" + (f" and {more} more key{'s' if more > 1 else ''}" if more > 0 else "")


SLICE_BYTES = 1_048_576
"""Of payloads in one call. One MiB costs the server one to three milliseconds, as a script copies it several times."""


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
