"""Pushing more than one call holds: slices in order, of which the next is made while the server adds one."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from jobrunner import Client, Item
from jobrunner.errors import DuplicateTask, InvalidOption, OutcomeUnknown, PayloadTooLarge, QueueFull, ServerUnavailable
from jobrunner.etl import Pipeline
from tests.reliability.proxy import Proxy
from tests.support.server import topology_name
from tests.support.waiting import wait_for

ONE_SERVER = pytest.mark.skipif(topology_name() == "cluster", reason="on a cluster slices wait for each other")
LIMIT = 1024 * 1024
KEY = base64.b64encode(b"k" * 32).decode()


def payloads(queue: Any) -> list[Any]:
    """The payloads of the waiting items, in order."""
    found: list[Any] = []
    while leases := queue.reserve(1000):
        found += [lease.payload for lease in leases]
    return found


def test_all_of_a_generator_are_in_line_in_order(way: Any, client: Client) -> None:
    told: list[int] = []
    assert way.queue("mail").push_all((n for n in range(2500)), progress=told.append) == 2500
    assert told == [1000, 2000, 2500]
    assert payloads(client.queue("mail")) == list(range(2500))


@pytest.mark.parametrize("count", [0, 1, 1000, 1001])
def test_any_number_may_be_pushed(way: Any, count: int) -> None:
    assert way.queue("mail").push_all(range(count)) == count
    assert way.queue("mail").counts()["waiting"] == count


@ONE_SERVER
def test_a_slice_is_sent_before_the_next_is_taken_and_its_reply_read_after(client: Client) -> None:
    queue, told = client.queue("mail"), []

    def rows() -> Iterator[int]:
        for n in range(3000):
            if n == 2500:
                wait_for(lambda: queue.counts()["waiting"] == 2000)
                assert told == [1000]
            yield n

    assert queue.push_all(rows(), progress=told.append) == 3000
    assert told == [1000, 2000, 3000]


def test_large_payloads_go_a_mib_at_a_time(way: Any) -> None:
    told: list[int] = []
    way.queue("mail").push_all([b"x" * 400_000] * 5, progress=told.append)
    assert told == [2, 4, 5]


def test_a_full_queue_refuses_one_slice_and_what_is_in_is_told(client: Client) -> None:
    queue, told = client.queue("mail"), []
    queue.configure(max_size=1600)
    with pytest.raises(QueueFull):
        queue.push_all(range(3500), progress=told.append)
    assert told[-1] == queue.counts()["waiting"] == 1000
    with pytest.raises(QueueFull):
        queue.push_all(range(1500), progress=told.append)  # the 1 000 are refused, and the 500 behind them have room
    assert queue.counts()["waiting"] == 1500
    assert told[-1] == 500


def test_with_wait_nothing_goes_ahead(way: Any, client: Client) -> None:
    client.queue("mail").configure(max_size=600)
    with pytest.raises(QueueFull):
        way.queue("mail").push_all(range(1500), wait=0.01)
    assert client.queue("mail").counts()["waiting"] == 0


def test_what_was_taken_before_the_source_failed_is_in(way: Any) -> None:
    def rows() -> Iterator[int]:
        yield from range(2100)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        way.queue("mail").push_all(rows())
    assert way.queue("mail").counts()["waiting"] == 2000
    assert way.queue("mail").push("next")


def test_an_interrupt_leaves_no_reply_for_another_call(client: Client) -> None:
    queue = client.queue("mail")

    def rows() -> Iterator[int]:
        yield from range(2100)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.push_all(rows())
    wait_for(lambda: queue.counts()["waiting"] == 2000)


def test_a_wrong_item_is_refused_and_those_before_are_in(way: Any) -> None:
    with pytest.raises(PayloadTooLarge):
        way.queue("mail").push_all([*range(1000), b"x" * (LIMIT + 1)])
    assert way.queue("mail").counts()["waiting"] == 1000
    with pytest.raises(InvalidOption):
        way.queue("mail").push_all([1], on_clash="perhaps")
    assert way.queue("mail").counts()["waiting"] == 1000


def test_clashes_are_told_for_each_slice_or_raised(way: Any) -> None:
    queue, known = way.queue("mail"), []
    queue.push_many([Item(1, id="a"), Item(2, id="b")])
    items = [Item(3, id="a"), *range(1500), Item(4, id="b"), *range(700)]
    assert queue.push_all(items, on_clash=known.append) == len(items)
    assert known == [["a"], ["b"]]
    with pytest.raises(DuplicateTask) as refused:
        queue.push_all([*range(1000), Item(5, id="b"), *range(1500)], on_clash="raise")
    assert refused.value.task_ids == ["b"]
    assert queue.counts()["waiting"] == 2 + 2200 + 1000


@ONE_SERVER
def test_a_server_that_forgot_its_scripts_is_given_them_again(client: Client, raw: redis.Redis) -> None:
    queue = client.queue("mail")

    def rows() -> Iterator[int]:
        for n in range(3500):
            if n in (1500, 2500):
                raw.script_flush()
            yield n

    queue.push_all(rows())
    assert queue.counts()["waiting"] == 3500


@ONE_SERVER
def test_a_connection_that_breaks_between_slices_is_replaced(server: Any, client: Client, clock: Any) -> None:
    proxy = Proxy(server.socket)
    with Client(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=30) as made:

        def rows() -> Iterator[int]:
            for n in range(4500):
                if n in (1500, 2500, 3500):
                    proxy.drop()
                yield n

        assert made.queue("mail").push_all(rows()) == 4500
    proxy.close()
    assert sorted(payloads(client.queue("mail"))) == list(range(4500))


@ONE_SERVER
def test_a_server_that_is_gone_is_told_and_the_same_ids_may_be_pushed_again(
    server: Any, client: Client, clock: Any
) -> None:
    proxy, known = Proxy(server.socket), []
    items = [Item(n, id=f"i{n}") for n in range(3000)]
    with Client(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=0) as made:

        def rows() -> Iterator[Item]:
            for n, item in enumerate(items):
                if n == 2500:
                    wait_for(lambda: client.queue("mail").counts()["waiting"] == 2000)
                    proxy.drop()
                yield item

        proxy.lose_replies("enqueue", times=9)
        with pytest.raises((OutcomeUnknown, ServerUnavailable)):
            made.queue("mail").push_all(rows())
        proxy.lose_replies("enqueue", times=0)
        assert made.queue("mail").push_all(items, on_clash=known.extend) == 3000
    proxy.close()
    assert client.queue("mail").counts()["waiting"] == 3000


def test_middleware_sees_each_item_and_what_it_refuses_is_the_end(server: Any, client: Client) -> None:
    class Stamps:
        def on_enqueue(self, task: Any, next: Any) -> Any:
            if task.payload == b"2300":
                raise PermissionError("no")
            task.headers["by"] = "me"
            return next(task)

    with Client(server.url, client.settings.prefix, middleware=[Stamps()]) as made, pytest.raises(PermissionError):
        made.queue("mail").push_all(range(2500))
    leases = [lease for _ in range(3) for lease in client.queue("mail").reserve(1000)]
    assert [(lease.payload, lease.headers) for lease in leases] == [(n, {"by": "me"}) for n in range(2000)]


def test_encrypted_items_arrive(server: Any, client: Client) -> None:
    with Client(server.url, client.settings.prefix, payload_keys=[KEY]) as made:
        made.queue("mail").push_all({"n": n} for n in range(2500))
        assert payloads(made.queue("mail")) == [{"n": n} for n in range(2500)]
    assert client.queue("mail").counts()["pending"] == 2500


def test_partitions_and_pipelines_take_them_as_well(client: Client) -> None:
    client.queue("spread").configure(partitions=4)
    assert client.queue("spread").push_all(range(2500)) == 2500
    assert client.queue("spread").counts()["waiting"] == 2500
    flights = Pipeline("flights", client)

    @flights.sink("raw")
    def stored(item: Item) -> None: ...

    assert flights.push_all("raw", range(1200)) == 1200
    assert flights.queue("raw").counts()["waiting"] == 1200
