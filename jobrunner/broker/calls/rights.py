"""Which rights of a worker the user of a client lacks.

A script that is denied a command in its middle leaves its work half done, and Redis has no transaction that takes it
back. So a worker asks before its first task, and `jobrunner doctor` for whoever runs it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from jobrunner.broker.call import Call, ScriptCommand
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.resp import Arg

READS = (
    "EXISTS", "GET", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HRANDFIELD", "HSTRLEN", "LINDEX",
    "LLEN", "LPOS", "LRANGE", "PTTL", "SISMEMBER", "SMEMBERS", "STRLEN", "ZCARD", "ZCOUNT", "ZMSCORE", "ZRANGE",
    "ZRANGEBYSCORE", "ZRANK", "ZREVRANGE", "ZREVRANGEBYSCORE", "ZREVRANK", "ZSCORE",
)  # fmt: skip
WRITES = (
    "DEL", "EXPIRE", "HDEL", "HINCRBY", "HSET", "HSETNX", "INCR", "LTRIM", "PERSIST", "PEXPIRE", "RPUSH", "SADD",
    "SET", "SETNX", "SPOP", "UNLINK", "ZADD", "ZREM", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE",
)  # fmt: skip
"""With READS all commands of scripts whose key is their first argument. XADD is for events, which a worker can lack."""
OTHERS = ("BZPOPMIN", "PUBLISH", "RENAME", "TIME")
"""The other commands of scripts, and BZPOPMIN, by which workers wait."""
_MOST = 6
"""Commands and keys that a message names."""
_rights: ScriptCommand[Any] = ScriptCommand("rights", read=list)


class Denied(msgspec.Struct, frozen=True):
    """What a user may not do of what a worker does: commands, and keys with the first command that is denied there."""

    commands: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.commands or self.keys)

    @property
    def only_reads(self) -> bool:
        """Whether the user may write nothing, as a viewer."""
        return set(WRITES) <= set(self.commands)

    def __str__(self) -> str:
        found = [*self.commands, *self.keys]
        more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
        return ", ".join(found[:_MOST]) + more


def denied(keys: Keys, queue: QueueKeys) -> Call[Denied]:
    """What the user may not do on the keys of a queue and on those that all workers share. Nothing from a server before
    Redis 7, which cannot be asked. Raises ServerRefused, with the key, for a user without this queue."""
    own, shared = _on_queue(queue), _on_shared_keys(keys)

    def read(places: Sequence[int]) -> Denied:
        found = [(own + shared)[place - 1] for place in places]
        commands = tuple(str(words[0]) for words in found if words in own)
        elsewhere = (words for words in found if words in shared and words[0] not in commands)
        return Denied(commands, tuple(f"{_shown(verb)} on {_shown(key)}" for verb, key in elsewhere))

    rest = [word for words in own + shared for word in (len(words), *words)]
    return _rights.on(queue, rest=rest, read=read)


def may_use(queue: QueueKeys) -> Call[None]:
    """Raises ServerRefused, with the key, for a user without the keys of this queue."""
    return _rights.on(queue, read=lambda _: None)


def _on_queue(queue: QueueKeys) -> list[tuple[Arg, ...]]:
    key = queue.waiting
    with_key: list[tuple[Arg, ...]] = [(verb, key) for verb in (*READS, *WRITES)]
    return [*with_key, ("BZPOPMIN", key, 0), ("PUBLISH", queue.finished, ""), ("RENAME", key, key), ("TIME",)]


def _on_shared_keys(keys: Keys) -> list[tuple[Arg, ...]]:
    return [
        ("HSET", keys.leader), ("ZADD", keys.workers), ("SADD", keys.queues), ("GET", keys.format),
        ("SETNX", keys.format), ("HINCRBY", keys.stats_total), ("ZADD", keys.releases),
        ("HGET", keys.pipelines), ("ZADD", keys.flows), ("HSET", keys.job("x")),
    ]  # fmt: skip


def _shown(key: Arg) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
