"""Reads everything below a prefix, to prove that nothing changed.

DUMP would not do: its bytes follow the order of the server's hash tables, which reading changes.
"""

from typing import Any

import redis


def contents(raw: redis.Redis, prefix: str) -> dict[bytes, Any]:
    """Every key below the prefix with its value."""
    return {key: content(raw, key) for key in raw.scan_iter(match=f"{prefix}:*", count=1000)}


def content(raw: redis.Redis, key: bytes) -> Any:
    match raw.type(key):
        case b"string":
            return raw.get(key)
        case b"hash":
            return raw.hgetall(key)
        case b"zset":
            return raw.zrange(key, 0, -1, withscores=True)
        case b"set":
            return raw.smembers(key)
        case b"list":
            return raw.lrange(key, 0, -1)
        case b"stream":
            return raw.xrange(key)
        case b"none":
            return None
        case other:
            raise NotImplementedError(f"{key!r} is a {other!r}")
