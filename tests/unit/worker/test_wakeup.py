"""The thread that listens for hints, on a line that can be cut."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from jobrunner.broker.broker import Broker
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.soak.cable import Cable
from jobrunner.worker.wakeup import Wakeup
from tests.conftest import wait_for


class Heard(list[str | None]):
    """What the thread told."""


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def wakeup(cable: Cable, keys: Keys, heard: Heard) -> Iterator[Wakeup]:
    broker = Broker(Endpoint(cable.url), patience_s=0)
    made = Wakeup(broker, keys, ["a", "b"], heard.append)
    made.start()
    yield made
    made.close()
    broker.close()


def hint(raw: redis.Redis, keys: Keys, queue: str) -> None:
    raw.zadd(keys.queue(queue).wake, {"1": 0})


def test_a_hint_tells_its_queue_once(wakeup: Wakeup, heard: Heard, raw: redis.Redis, keys: Keys) -> None:
    wakeup.arm()
    hint(raw, keys, "b")
    wait_for(lambda: heard == ["b"])
    assert not wakeup.is_armed
    assert not raw.exists(keys.queue("b").wake), "a hint is for one"


def test_a_hint_that_was_there_before_is_heard(wakeup: Wakeup, heard: Heard, raw: redis.Redis, keys: Keys) -> None:
    hint(raw, keys, "a")
    wakeup.arm()
    wait_for(lambda: heard == ["a"])


def test_nothing_is_heard_by_one_that_does_not_listen(
    wakeup: Wakeup, heard: Heard, raw: redis.Redis, keys: Keys
) -> None:
    hint(raw, keys, "a")
    wakeup.arm()
    wait_for(lambda: heard == ["a"])
    hint(raw, keys, "a")
    assert raw.exists(keys.queue("a").wake)


def test_arming_twice_is_arming_once(wakeup: Wakeup, heard: Heard, raw: redis.Redis, keys: Keys) -> None:
    wakeup.arm()
    wakeup.arm()
    hint(raw, keys, "a")
    wait_for(lambda: heard == ["a"])
    hint(raw, keys, "a")
    wakeup.arm()
    wait_for(lambda: heard == ["a", "a"])


def test_a_broken_line_means_that_hints_may_be_lost(
    wakeup: Wakeup, cable: Cable, heard: Heard, raw: redis.Redis, keys: Keys
) -> None:
    """All queues are looked at, and it listens again by itself."""
    wakeup.arm()
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
    cable.drop()
    wait_for(lambda: None in heard)
    assert wakeup.is_armed
    wait_for(lambda: cable.connections == 2 and raw.info("clients")["blocked_clients"] == 1)
    hint(raw, keys, "b")
    wait_for(lambda: heard[-1] == "b")


def test_a_connection_that_broke_while_it_rested_is_no_trouble(
    wakeup: Wakeup, cable: Cable, heard: Heard, raw: redis.Redis, keys: Keys
) -> None:
    wakeup.arm()
    hint(raw, keys, "a")
    wait_for(lambda: heard == ["a"])
    wakeup._listener._ears[0]._connection._sock.close()
    hint(raw, keys, "b")
    wakeup.arm()
    wait_for(lambda: len(heard) == 2)
    assert heard == ["a", "b"]


def test_closing_ends_a_wait(wakeup: Wakeup, heard: Heard, raw: redis.Redis) -> None:
    wakeup.arm()
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
    wakeup.close()
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 0)


def test_closing_one_that_does_not_listen_ends_it_too(wakeup: Wakeup) -> None:
    wakeup.close()
    assert wakeup._loop._thread is not None
    assert not wakeup._loop._thread.is_alive()


class Reopening:
    """A connection that opens itself again when it is asked whether there is an answer, as redis-py's does."""

    def __init__(self) -> None:
        self.sent, self._cut = threading.Event(), threading.Event()

    def connect(self) -> None: ...

    def send_packed_command(self, *_: Any, **__: Any) -> None:
        self.sent.set()
        assert self._cut.wait(10)

    def can_read(self, timeout: float) -> bool:
        self._cut.clear()
        self._cut.wait(timeout)
        raise redis.ConnectionError("cut")

    def disconnect(self) -> None:
        self._cut.set()


def test_closing_one_that_is_just_about_to_listen_ends_it_too() -> None:
    connection = Reopening()
    broker: Any = SimpleNamespace(endpoint=SimpleNamespace(cluster=None, open=lambda **_: connection))
    wakeup = Wakeup(broker, Keys("t"), ["a"], lambda _: None)
    wakeup.start()
    wakeup.arm()
    assert connection.sent.wait(10)

    wakeup.close()

    assert not [one for one in threading.enumerate() if one is wakeup._loop._thread]
