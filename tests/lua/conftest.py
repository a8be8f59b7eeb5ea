"""One queue seen from both sides: through the calls, and as the keys on the server. The clock is stopped."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.broker.calls import leases, new_tasks
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.task import Task
from tests.support.contents import contents

_tokens = itertools.count(1)


class Line:
    """A queue and its keys."""

    def __init__(self, broker: Broker, raw: redis.Redis, keys: Keys, name: str) -> None:
        self.name = name
        self.keys = keys.queue(name)
        self.broker = broker
        self.run = broker.run
        self.raw = raw
        self._prefix = keys.prefix

    def enqueue(self, *ids: str, **options: Any) -> list[bool]:
        options = {"payload": b"{}"} | options
        return self.run(new_tasks.enqueue(self.keys, [Task(id=one, queue=self.name, **options) for one in ids]))

    def ask(self, count: int = 1, **options: Any) -> Reservation:
        """The whole answer of a reserve."""
        return self.run(leases.reserve(self.keys, count, token=f"r{next(_tokens)}", **options))

    def reserve(self, count: int = 1, *, keepalive_ms: int | None = None) -> list[Attempt]:
        return self.ask(count, keepalive_ms=keepalive_ms).attempts

    def lease(self, task_id: str, **options: Any) -> Attempt:
        """Enqueues a task and reserves it."""
        self.enqueue(task_id, **options)
        (attempt,) = self.reserve()
        assert attempt.id == task_id
        return attempt

    def commit(self, *held: Attempt, keep_ms: int = 0, outcome: str = "succeeded", result: bytes = b"") -> list[str]:
        return self.run(leases.commit(self.keys, [(a.id, a.token, keep_ms, outcome, result) for a in held]))

    def fail(self, *held: Attempt, delay_ms: int = 0, fate: str = "retry", error: str = "boom") -> list[str]:
        return self.run(leases.fail(self.keys, [(a.id, a.token, delay_ms, fate, error) for a in held]))

    def release(self, *held: Attempt, delay_ms: int | str = "") -> list[str]:
        return self.run(leases.release(self.keys, [(a.id, a.token, delay_ms) for a in held]))

    def crash(self, *held: Attempt, reason: str = "its worker died (signal 9)", suspect: bool = False) -> list[str]:
        return self.run(leases.crash(self.keys, [(a.id, a.token, suspect) for a in held], reason=reason))

    def extend(self, *held: Attempt, keepalive_ms: float = 30_000) -> list[str]:
        return self.run(leases.extend(self.keys, [(a.id, a.token, keepalive_ms) for a in held]))

    def configure(self, **fields: str | int) -> None:
        """Writes the settings hash."""
        self.raw.hset(self.keys.settings, mapping=fields)

    def ids(self, state: str) -> list[str]:
        return [raw.decode() for raw in self.raw.zrange(getattr(self.keys, state), 0, -1)]

    def scores(self, state: str) -> dict[str, float]:
        return {
            raw.decode(): score for raw, score in self.raw.zrange(getattr(self.keys, state), 0, -1, withscores=True)
        }

    def hash(self, task_id: str) -> dict[str, bytes]:
        return {name.decode(): value for name, value in self.raw.hgetall(self.keys.task(task_id)).items()}

    def totals(self) -> dict[str, int]:
        found = self.raw.hgetall(self.keys.counters)
        return {name.decode(): int(total) for name, total in found.items() if name != b"unused"}

    def by_type(self) -> dict[str, int]:
        """Totals by type and outcome."""
        return {name.decode(): int(total) for name, total in self.raw.hgetall(self.keys.types).items()}

    def wakes(self) -> bool:
        """Whether an idle worker was woken; forgets it."""
        return bool(self.raw.delete(self.keys.wake))

    def snapshot(self) -> dict[bytes, Any]:
        """Every key below the prefix with its content, to show that nothing changed; without the notes of calls."""
        notes = self.keys.base + b"sent:"
        return {key: held for key, held in contents(self.raw, self._prefix).items() if not key.startswith(notes)}


@pytest.fixture
def line(broker: Broker, raw: redis.Redis, keys: Keys, clock: Any) -> Callable[[str], Line]:
    """line("orders/raw"): any queue of the test's prefix."""
    clock.set()
    return lambda name: Line(broker, raw, keys, name)


@pytest.fixture
def weak_broker(server: Any, raw: redis.Redis, clock: Any) -> Iterator[Callable[..., Broker]]:
    """weak_broker("-zadd"): a driver of a user with all permissions but that."""
    made: list[Broker] = []

    def make(*rules: str) -> Broker:
        words = ["weak", "on", "nopass", "~*", "&*", "+@all", *rules]
        for node in Broker(Endpoint(server.url)).nodes():
            node.run(command("ACL", "SETUSER", *words, read=bytes))
        made.append(Broker(Endpoint(server.url.replace("://", "://weak:any@")), now_ms=clock))
        return made[-1]

    yield make
    for broker in made:
        broker.close()
    for node in Broker(Endpoint(server.url)).nodes():
        node.run(command("ACL", "DELUSER", "weak", read=int))


@pytest.fixture
def mail(line: Callable[[str], Line]) -> Line:
    """The queue mail."""
    return line("mail")
