"""The thread that listens for hints, on a line that can be cut."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from jobrunner.broker import notifier
from jobrunner.broker.broker import Broker, server_clock
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.broker.notifier import Notifier, WakeListener
from jobrunner.broker.redis_errors import RedisConnectionError
from jobrunner.client.client import Client
from jobrunner.errors import ServerRefused, ServerUnavailable
from jobrunner.soak.fault_proxy import FaultProxy
from tests.support.server import Server
from tests.support.waiting import wait_for


class Heard(list[str | None]):
    """Records the thread's calls: notifications, and in `brought` the tasks that came with them."""

    def __init__(self) -> None:
        super().__init__()
        self.brought: list[Any] = []

    def hear(self, queues: Sequence[str] | None, brought: list[Any]) -> None:
        self.brought += brought
        self += [None] if queues is None else queues


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def wakeup(
    fault_proxy: FaultProxy, keys: Keys, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Notifier]:
    monkeypatch.setattr(notifier, "_AWAY_S", 60.0)  # no fetcher here arms it again after a short wait
    broker = Broker(Endpoint(fault_proxy.url), retry_timeout_s=0)
    made = Notifier(broker, keys, ["a", "b"], heard.hear)
    made.start()
    yield made
    made.close()
    broker.close()


def hint(raw: redis.Redis, keys: Keys, queue: str) -> None:
    raw.zadd(keys.queue(queue).wake, {"1": 0})


def test_a_hint_tells_its_queue_once(wakeup: Notifier, heard: Heard, raw: redis.Redis, keys: Keys) -> None:
    wakeup.arm()
    hint(raw, keys, "b")
    wait_for(lambda: heard == ["b"])
    assert not wakeup.is_armed
    assert not raw.exists(keys.queue("b").wake), "a hint is for one"


def test_a_hint_that_was_there_before_is_heard(wakeup: Notifier, heard: Heard, raw: redis.Redis, keys: Keys) -> None:
    hint(raw, keys, "a")
    wakeup.arm()
    wait_for(lambda: heard == ["a"])


def test_nothing_is_heard_by_one_that_does_not_listen(
    wakeup: Notifier, heard: Heard, raw: redis.Redis, keys: Keys
) -> None:
    hint(raw, keys, "a")
    wakeup.arm()
    wait_for(lambda: heard == ["a"])
    hint(raw, keys, "a")
    assert raw.exists(keys.queue("a").wake)


def test_arming_twice_is_arming_once(wakeup: Notifier, heard: Heard, raw: redis.Redis, keys: Keys) -> None:
    wakeup.arm()
    wakeup.arm()
    hint(raw, keys, "a")
    wait_for(lambda: heard == ["a"])
    hint(raw, keys, "a")
    wakeup.arm()
    wait_for(lambda: heard == ["a", "a"])


def test_a_broken_line_means_that_hints_may_be_lost(
    wakeup: Notifier, fault_proxy: FaultProxy, heard: Heard, raw: redis.Redis, keys: Keys
) -> None:
    """All queues are polled, and it listens again without a call."""
    wakeup.arm()
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
    fault_proxy.drop()
    wait_for(lambda: None in heard)
    assert wakeup.is_armed
    wait_for(lambda: fault_proxy.connections == 2 and raw.info("clients")["blocked_clients"] == 1)
    hint(raw, keys, "b")
    wait_for(lambda: heard[-1] == "b")


def test_a_connection_that_broke_while_it_rested_is_no_trouble(
    wakeup: Notifier, fault_proxy: FaultProxy, heard: Heard, raw: redis.Redis, keys: Keys
) -> None:
    wakeup.arm()
    hint(raw, keys, "a")
    wait_for(lambda: heard == ["a"])
    wakeup._listener._ears[0]._connection.socket.close()
    hint(raw, keys, "b")
    wakeup.arm()
    wait_for(lambda: len(heard) == 2)
    assert heard == ["a", "b"]


def test_closing_ends_a_wait(wakeup: Notifier, heard: Heard, raw: redis.Redis) -> None:
    wakeup.arm()
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
    wakeup.close()
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 0)


def test_closing_one_that_does_not_listen_ends_it_too(wakeup: Notifier) -> None:
    wakeup.close()
    assert wakeup._loop._thread is not None
    assert not wakeup._loop._thread.is_alive()


class Reopening:
    """A connection that opens itself again when it is asked whether there is an answer, as redis-py's may do."""

    def __init__(self) -> None:
        self.sent, self._cut = threading.Event(), threading.Event()

    @property
    def socket(self) -> Any:
        raise RedisConnectionError("not open yet")

    def connect(self) -> None: ...

    def send(self, _packed: bytes) -> None:
        self.sent.set()
        assert self._cut.wait(30)

    def can_read(self, timeout: float) -> bool:
        self._cut.clear()
        self._cut.wait(timeout)
        raise RedisConnectionError("cut")

    def disconnect(self) -> None:
        self._cut.set()


def test_closing_one_that_is_just_about_to_listen_ends_it_too() -> None:
    connection = Reopening()
    endpoint = SimpleNamespace(cluster=None, open=lambda **_: connection)
    broker: Any = SimpleNamespace(now_ms=server_clock, endpoint=endpoint)
    wakeup = Notifier(broker, Keys("t"), ["a"], lambda *_: None)
    wakeup.start()
    wakeup.arm()
    assert connection.sent.wait(30)

    wakeup.close()

    assert not [one for one in threading.enumerate() if one is wakeup._loop._thread]


def reserve(keys: Keys, token: str, count: int = 2) -> list[Call[Any]]:
    return [leases.reserve(keys.queue("a"), count, token=token)]


def test_a_hint_brings_what_the_server_did_behind_it(
    wakeup: Notifier, heard: Heard, client: Client, raw: redis.Redis, keys: Keys
) -> None:
    client.queue("a").reserve()  # the server knows the script
    wakeup.arm(lambda: reserve(keys, "mine"))
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
    assert heard.brought == []
    item = client.queue("a").push("x")

    wait_for(lambda: heard == ["a"])

    assert [attempt.id for attempt in heard.brought[0].attempts] == [item]
    assert client.queue("a").counts()["pending"] == 1


def test_what_the_server_refuses_comes_as_an_error(
    wakeup: Notifier, heard: Heard, raw: redis.Redis, keys: Keys
) -> None:
    raw.script_flush()
    wakeup.arm(lambda: reserve(keys, "mine"))
    hint(raw, keys, "a")

    wait_for(lambda: heard == ["a"])

    assert isinstance(heard.brought[0], ServerRefused)


def test_queues_that_are_added_in_more_slots_of_a_cluster_cost_no_hint(
    server: Server, heard: Heard, client: Client, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As partitions of a worker's only queue. Calls planned for one connection are not sent with several: the missing
    replies raised, and the hints that were heard were lost."""
    client.queue("a").reserve()
    broker = Broker(Endpoint(server.url), retry_timeout_s=0)
    monkeypatch.setattr(notifier, "_by_slot", lambda _, queues: [[queue] for queue in queues])
    wakeup = Notifier(broker, keys, ["a"], heard.hear)
    assert wakeup.can_bring

    wakeup.listen_to(["a", "b"])
    wakeup.arm(lambda: reserve(keys, "mine"))
    client.queue("a").push("x")
    wakeup.step()

    assert (heard, heard.brought, wakeup.is_armed) == (["a"], [], False)
    assert client.queue("a").counts()["waiting"] == 1
    wakeup.close()
    broker.close()


def test_calls_are_sent_once(
    wakeup: Notifier, fault_proxy: FaultProxy, heard: Heard, client: Client, raw: redis.Redis, keys: Keys
) -> None:
    """The client that lost the answer does not know the effect of its commands."""
    client.queue("a").reserve()
    wakeup.arm(lambda: reserve(keys, "mine"))
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
    fault_proxy.drop()
    wait_for(lambda: fault_proxy.connections == 2 and raw.info("clients")["blocked_clients"] == 1)

    client.queue("a").push("x")

    wait_for(lambda: heard[-1] == "a")
    assert heard.brought == []
    assert client.queue("a").counts()["waiting"] == 1


def test_one_that_left_has_taken_nothing_that_it_does_not_know_of(server: Server, client: Client, keys: Keys) -> None:
    """A task may come in the very moment in which it leaves."""
    queue = client.queue("a")
    queue.reserve()
    broker = Broker(Endpoint(server.url), retry_timeout_s=0)
    known = 0
    for turn in range(60):
        heard = Heard()
        wakeup = Notifier(broker, keys, ["a"], heard.hear)
        wakeup.start()
        wakeup.arm(partial(reserve, keys, f"turn {turn}", count=1))
        pusher = threading.Thread(target=queue.push, args=("x",))
        pusher.start()
        wakeup.close()
        pusher.join()
        known += sum(len(one.attempts) for one in heard.brought)
        assert queue.counts()["pending"] == known
    broker.close()


def test_what_comes_later_is_not_taken_by_one_that_left(
    wakeup: Notifier, heard: Heard, client: Client, raw: redis.Redis, keys: Keys
) -> None:
    client.queue("a").reserve()
    wakeup.arm(lambda: reserve(keys, "mine"))
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
    wakeup.close()

    client.queue("a").push("x")

    assert client.queue("a").counts()["pending"] == 0
    assert heard.brought == []


def test_by_a_clock_that_is_set_nothing_is_brought(server: Server, keys: Keys) -> None:
    def set_clock() -> bytes:
        return b"1"

    assert Notifier(Broker(Endpoint(server.url)), keys, ["a"], lambda *_: None).can_bring
    assert not Notifier(Broker(Endpoint(server.url), now_ms=set_clock), keys, ["a"], lambda *_: None).can_bring


def test_the_first_wait_after_an_error_is_short_as_its_end_shows_that_the_server_is_back(
    broker: Broker, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait_with(_listener: WakeListener, at_most_s: float, _calls: object) -> tuple[list[str], list[object]]:
        waits.append(at_most_s)
        if len(waits) == 2:
            raise ServerUnavailable("away")
        return [], []

    monkeypatch.setattr(WakeListener, "wait_with", wait_with)
    made = Notifier(broker, keys, ["a"])
    for _ in range(4):
        made.arm()
        with suppress(ServerUnavailable):
            made.step()
    assert waits == [60.0, 60.0, 1.0, 60.0]
