"""Damage to what is stored: of every kind of key that the package's own table names, and of every field of a task.

A kind is a line of the table in jobrunner/broker/keys.py, so a key that is added there is damaged here from then on.
"""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import redis

from jobrunner.broker import keys as table

WORDS = (
    b"", b"\xff\xfe\x00\x80", b"nan", b"inf", b"-inf", b"-1", b"0", b"1e400", b"1e308", b"-1e308", b"9" * 40, b"0x10",
    b"{bad json", b"null", b"[]", b'{"a":1}', b'"\xff"', b"true", b"1,5", b" 7 ", b"\x00" * 64, b"z" * 20_000,
    "\N{SNOWMAN}".encode(), b"a\tb\nc", b"*", b"{/}", b"1.5",
)  # fmt: skip
"""Values that no field, or only another field, should hold."""
TASK_FIELDS = (
    "id", "type", "queue", "payload", "encoding", "headers", "enqueue_time", "retry_count", "expiries", "max_attempts",
    "max_stalled", "keepalive_ms", "priority", "expires_in_ms", "key", "place", "error", "died_at", "failures",
    "unknown_since", "started_at", "run_ms", "finished_at", "outcome", "result", "attempts", "total_attempts", "hops",
    "cancel_requested", "then", "results", "outcomes", "more",
)  # fmt: skip
_FABRICATED = {"tag": "t", "Q": "t"}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of key: its pattern in the table, its type, and the form of its names."""

    name: str
    type: str
    names: re.Pattern[bytes]

    def made_up(self, prefix: str) -> bytes:
        """A key of this kind that is not there."""
        shown = self.name.replace("{tag}", "{t}").replace(":Q:", ":t:")
        return (prefix + re.sub(r"<[^>]+>", "1", shown[1:])).encode()


def kinds(prefix: str) -> list[Kind]:
    """Every kind in the table but the channel, which stores nothing, and the format, of which damage is refused."""
    lines = re.findall(r"^``(P:[^`]+)`` +(\w+)", table.__doc__ or "", re.MULTILINE)
    stored = [line for line in lines if line[1] != "pubsub" and line[0] != "P:format"]
    return [Kind(name, type_, _names(name, prefix)) for name, type_ in stored]


def _names(name: str, prefix: str) -> re.Pattern[bytes]:
    said = re.escape(name).replace(r"\{tag\}", r"\{[^}/]+\}").replace(":Q:", r":[^:]+:")
    return re.compile((prefix + re.sub(r"<[^>]+>", "[^:]+", said)[1:]).encode())


@dataclass(frozen=True, slots=True)
class Damage:
    """One mutation: its key, its kind, and the way back (None: the damage stays)."""

    kind: str
    how: str
    key: bytes
    repair: Callable[[], None] | None = None


class Damager:
    """Damages one kind of key after the other, by chance that is seeded."""

    def __init__(self, raw: redis.Redis, prefix: str, seed: int) -> None:
        self._raw = raw
        self._prefix = prefix
        self._chance = random.Random(seed)
        self._turns = self._kinds_in_turn()

    def _kinds_in_turn(self) -> Iterator[Kind]:
        """A third is for tasks, the rest for all kinds evenly."""
        every = kinds(self._prefix)
        task = next(kind for kind in every if kind.name.endswith(":task:<id>"))
        while True:
            shuffled = self._chance.sample(every, len(every))
            for number, kind in enumerate(shuffled):
                yield kind
                if number % 2:
                    yield task

    def mutate(self, victims: list[bytes]) -> Damage:
        """One mutation. `victims` are hashes of tasks that may be damaged for good."""
        kind = next(self._turns)
        if kind.name.endswith(":task:<id>"):
            return self._damage_task(kind, self._chance.choice(victims))
        key = self._key_of(kind)
        if self._chance.random() < 0.4 or not self._raw.exists(key):
            return self._replace(kind, key)
        return self._spoil(kind, key)

    def _key_of(self, kind: Kind) -> bytes:
        match = kind.names
        found = sorted(key for key in self._raw.scan_iter(count=1000) if match.fullmatch(key) and b"{calm}" not in key)
        return self._chance.choice(found) if found else kind.made_up(self._prefix)

    def _damage_task(self, kind: Kind, key: bytes) -> Damage:
        how = self._chance.choice(("field", "field", "field", "field", "missing", "gone", "type"))
        field = self._chance.choice(TASK_FIELDS)
        if how == "gone" or not self._is_hash(key):
            how = "gone"
            self._raw.delete(key)
        elif how == "missing":
            present = sorted(self._raw.hkeys(key)) if self._is_hash(key) else []
            field = self._chance.choice(present or [b"type"]).decode(errors="replace")
            self._raw.hdel(key, field)
        elif how == "type":
            self._set_type(key, self._chance.choice(("string", "list", "set", "zset")))
        else:
            word = self._chance.choice(WORDS)
            how = repr(word[:20])
            self._raw.hset(key, field, word)
        return Damage(kind.name, f"{field} {how}", key)

    def _is_hash(self, key: bytes) -> bool:
        return bool(self._raw.type(key) == b"hash")

    def _replace(self, kind: Kind, key: bytes) -> Damage:
        """The whole key becomes one of another type."""
        kept, lives_ms = self._raw.dump(key), self._raw.pttl(key)
        other = self._chance.choice([one for one in ("string", "list", "set", "zset", "hash") if one != kind.type])
        self._set_type(key, other)

        def repair() -> None:
            if self._raw.type(key).decode() not in (other, "none"):
                return  # a process that needs the key has created it again
            pipeline = self._raw.pipeline(transaction=True)
            pipeline.delete(key)
            if kept is not None:
                pipeline.restore(key, max(lives_ms, 0), kept)
            pipeline.execute()

        return Damage(kind.name, f"{kind.type} -> {other}", key, repair)

    def _set_type(self, key: bytes, type_: str) -> None:
        pipeline = self._raw.pipeline(transaction=True)
        pipeline.delete(key)
        word = self._chance.choice([word for word in WORDS if word])
        match type_:
            case "string":
                pipeline.set(key, word)
            case "list":
                pipeline.rpush(key, word)
            case "set":
                pipeline.sadd(key, word)
            case "zset":
                pipeline.zadd(key, {word: 1})
            case "hash":
                pipeline.hset(key, word, word)
        pipeline.execute()

    def _spoil(self, kind: Kind, key: bytes) -> Damage:
        """Something in the key becomes wrong."""
        word = self._chance.choice(WORDS)
        match self._raw.type(key).decode():
            case "hash":
                return self._spoil_field(kind, key, word)
            case "zset":
                return self._spoil_member(kind, key, word)
            case "set":
                self._raw.sadd(key, word)
                return Damage(kind.name, f"member {word[:20]!r}", key, lambda: _ignore(self._raw.srem(key, word)))
            case "list":
                self._raw.rpush(key, word)
                return Damage(kind.name, f"entry {word[:20]!r}", key, lambda: _ignore(self._raw.lrem(key, 0, word)))
            case "stream":
                entry = self._raw.xadd(key, {word: word})
                return Damage(kind.name, f"entry {word[:20]!r}", key, lambda: _ignore(self._raw.xdel(key, entry)))
            case _:
                kept, lives_ms = self._raw.get(key), self._raw.pttl(key)
                self._raw.set(key, word, keepttl=True)

                def repair() -> None:
                    if self._raw.get(key) == word and kept is not None:
                        self._raw.set(key, kept, px=lives_ms if lives_ms > 0 else None)

                return Damage(kind.name, f"value {word[:20]!r}", key, repair)

    def _spoil_field(self, kind: Kind, key: bytes, word: bytes) -> Damage:
        field = self._chance.choice(sorted(self._raw.hkeys(key)))
        kept = self._raw.hget(key, field)
        if self._chance.random() < 0.2:
            self._raw.hdel(key, field)
            how = "missing"
        else:
            self._raw.hset(key, field, word)
            how = repr(word[:20])

        def repair() -> None:
            if self._raw.hget(key, field) in (None, word) and kept is not None and self._raw.exists(key):
                self._raw.hset(key, field, kept)

        return Damage(kind.name, f"{field!r} {how}", key, repair)

    def _spoil_member(self, kind: Kind, key: bytes, word: bytes) -> Damage:
        score = self._chance.choice((float("-inf"), float("inf"), -1.0, 0.0, 1e308, 1.7e12))
        self._raw.zadd(key, {word: score})
        return Damage(kind.name, f"member {word[:20]!r} {score:g}", key, lambda: _ignore(self._raw.zrem(key, word)))


def _ignore(_: object) -> None:
    """Ignores errors of a repair."""
