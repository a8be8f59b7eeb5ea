"""The simulated server does what a real one does: the same random calls on both, every reply and every key compared."""

from time import monotonic
from typing import Any

import pytest
import redis

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, attempt_to_interpret, resp_args
from jobrunner.broker.keys import Keys
from jobrunner.broker.redis_errors import NoScriptError
from tests.simulation.random_calls import RandomCalls
from tests.simulation.server import SimulatedServer
from tests.support.clock import Clock
from tests.support.contents import contents

SLACK_MS = 60_000
"""Times to live run by the real server's clock, which does not stand still."""
SHORTEST_LIFE_S = 8
"""Less than any key lives that expires."""
UNORDERED = ("outbox_read", "queue_counts")
"""Scripts whose replies list what a hash holds."""


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_replies_and_keys_are_those_of_a_real_server(
    first: int, broker: Broker, raw: redis.Redis, keys: Keys, clock: Clock
) -> None:
    simulated = SimulatedServer()
    for seed in range(first, first + 10):
        began = monotonic()
        try:
            play(seed, broker, raw, keys, clock, simulated)
        except AssertionError:
            if monotonic() - began < SHORTEST_LIFE_S:
                raise
            play(seed, broker, raw, keys, clock, simulated)  # this process stood still, and keys of the server expired


def play(seed: int, broker: Broker, raw: redis.Redis, keys: Keys, clock: Clock, simulated: SimulatedServer) -> None:
    """Plays the calls of one seed on both servers."""
    raw.flushdb()
    started = clock.set()
    simulated.reset(started)
    calls = RandomCalls(keys, seed)
    for step in range(120):
        call = calls.next()
        (real,) = broker.replies([call])
        ours = ask(simulated, call, clock(), started)
        where = f"seed {seed}, step {step}: {call.script.name if call.script else call.words}{list(call.words)}"
        assert comparable(call, ours) == comparable(call, real), where
        value = attempt_to_interpret(call, real)
        if not isinstance(value, Exception):
            calls.note(value)
        clock.advance(calls.pause_ms())
    compare_keys(simulated, raw, keys, started, f"seed {seed}")


def test_the_names_of_a_hash_are_those_of_its_fields() -> None:
    """They are kept sorted until a field comes or goes."""
    simulated = SimulatedServer()
    for words in (("HSET", "h", "b", "1"), ("HSETNX", "h", "a", "1"), ("HINCRBY", "h", "c", "1"), ("HDEL", "h", "b")):
        simulated.ask("HKEYS", "h", now_ms=0)
        simulated.ask(*words, now_ms=0)
    assert simulated.ask("HKEYS", "h", now_ms=0) == [b"a", b"c"]
    assert simulated.ask("HGETALL", "h", now_ms=0) == [b"a", b"1", b"c", b"1"]
    simulated.ask("DEL", "h", now_ms=0)
    assert simulated.ask("HKEYS", "h", now_ms=0) == []


def ask(simulated: SimulatedServer, call: Call[Any], now_ms: bytes, started: float) -> Any:
    """The reply to a call; teaches the server the script if need be. Its own clock stands still."""
    reply = simulated.ask(*resp_args(call, now_ms), now_ms=started)
    if isinstance(reply, NoScriptError):
        return simulated.ask(*resp_args(call, now_ms, with_source=True), now_ms=started)
    return reply


def comparable(call: Call[Any], reply: Any) -> Any:
    """A reply in a form in which equal ones are equal: errors by their text, what has no order sorted."""
    if isinstance(reply, Exception):
        return f"error: {reply}"
    if isinstance(reply, list) and call.script is not None and call.script.name in UNORDERED:
        return sorted(map(as_number, reply), key=repr)
    return [comparable(call, one) for one in reply] if isinstance(reply, list) else as_number(reply)


def as_number(word: Any) -> Any:
    """A number for its text: servers before Redis 7.2 write a script's numbers with 17 digits, later ones with as few
    as say the same."""
    try:
        return float(word) if isinstance(word, bytes) else word
    except ValueError:
        return word


def compare_keys(simulated: SimulatedServer, raw: redis.Redis, keys: Keys, now_ms: float, where: str) -> None:
    """Fails unless both servers hold the same."""
    real, ours = contents(raw, keys.prefix), simulated.contents(now_ms)
    assert {key: ours[key] for key in ours.keys() - real.keys()} == {}, where
    assert ours.keys() == real.keys(), where
    for key, (kind, left_ms, held) in ours.items():
        assert as_read(kind, held) == numbers_of(real[key]), f"{where}: {key!r}"
        real_ms = raw.pttl(key)
        assert (left_ms == -1) == (real_ms == -1), f"{where}: {key!r} lives {left_ms} ms here and {real_ms} there"
        assert left_ms - SLACK_MS < real_ms <= left_ms + 1, f"{where}: {key!r} lives {left_ms} ms here, {real_ms} there"


def numbers_of(content: Any) -> Any:
    """The content of a key of the real server, with numbers for their texts."""
    if isinstance(content, dict):
        return {name: as_number(value) for name, value in content.items()}
    return as_number(content)


def as_read(kind: bytes, held: list[bytes]) -> Any:
    """What a key holds, as the client of a real server reads it."""
    match kind:
        case b"string":
            return as_number(held[0])
        case b"hash":
            return dict(zip(held[::2], map(as_number, held[1::2]), strict=True))
        case b"zset":
            return [(member, float(score)) for member, score in zip(held[::2], held[1::2], strict=True)]
        case b"set":
            return set(held)
        case _:
            return held
