"""The writes of an attacker without a key: fields of tasks, values for them, tasks under other ids."""

from collections.abc import Mapping

import redis

from jobrunner.broker.keys import QueueKeys

FIELDS = (
    "id", "type", "queue", "payload", "encoding", "headers", "then", "results", "outcomes", "lock", "retry_count",
    "max_attempts", "max_stalled", "keepalive_ms", "expires_in_ms", "priority", "key", "place", "enqueue_time", "more",
    "hops", "error", "result", "outcome", "cancel_requested", "shade",
)  # fmt: skip
NASTY = (b"", b"0", b"1", b"json", b"{}", b"[]", b'["x"]', b"vault.refund", b"\xff\x00", b"a" * 300, b'{"to":"eve"}',
         b'{"x":"y"}', b'[["vault","j",0]]', b"json aes:00000000 lock:1", b"sealed", b"sealed ", b"sealed x y z",
         b"-1", b"9e99", b"never")  # fmt: skip
Fields = Mapping[bytes, bytes]


def line_up(raw: redis.Redis, keys: QueueKeys, new: str, fields: Fields, changed: Fields | None = None) -> None:
    """Enqueues a task with the fields of another one under the id `new`, as a script of an attacker does."""
    raw.hset(keys.task(new), mapping={**fields, b"id": new.encode(), **(changed or {})})
    raw.zadd(keys.waiting, {new: 1})
