"""The snapshot that all tabs share: fresh, read once for all of them, and not read while no tab is open."""

import asyncio
import json

import pytest

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.etl import Pipeline
from jobrunner.web import live as module
from jobrunner.web.live import AlertThresholds, LiveUpdates
from tests.support.waiting import wait_for


def tick(event):
    (name, data) = event.decode().strip().split("\n")
    return name, json.loads(data.removeprefix("data: "))


@pytest.fixture
def live(client):
    return LiveUpdates(client)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    monkeypatch.setattr(module, "FRESH_S", 0.0)


def test_who_asks_within_a_second_gets_the_same_look(live):
    assert live.snapshot() is live.snapshot()


def test_after_something_was_done_it_looks_again(live, client):
    live.snapshot()
    client.queue("mail").push(1)

    live.forget()

    assert [queue.name for queue in live.snapshot().look.queues] == ["mail"]


def test_an_event_is_small_however_many_queues_there_are(live, client):
    """It had the counts of all queues, which no page read: with 10,000 queues 330 kB every two seconds for each tab."""
    client.queue("mail").push_many([1, 2])

    async def listen():
        told = live.told()
        assert await anext(told) == b"retry: 3000\n\n"
        event = await anext(told)
        await told.aclose()
        return event

    name, data = tick(asyncio.run(listen()))

    assert name == "event: tick"
    assert data.keys() == {"at"}
    assert len(live.snapshot().warnings) == 1 + 1  # no worker serves it, and this server has no append-only file


@pytest.mark.usefixtures("quick")
def test_many_tabs_are_one_look_and_none_is_no_look(live, raw):
    async def listen():
        tabs = [live.told() for _ in range(20)]
        for tab in tabs:
            await anext(tab)
        looks = [await asyncio.gather(*(anext(tab) for tab in tabs)) for _ in range(3)]
        for tab in tabs:
            await tab.aclose()
        while not live._loop.done():
            await asyncio.sleep(0.01)
        before = raw.info("stats")["total_commands_processed"]
        await asyncio.sleep(0.1)  # the span in which no command must be sent: ten intervals
        return looks, raw.info("stats")["total_commands_processed"] - before

    looks, commands = asyncio.run(listen())

    assert all(len(set(each)) == 1 for each in looks)
    assert commands == 1  # this question itself


def test_a_tab_is_told_that_the_server_is_away(start_server, client):
    from jobrunner import Client

    server = start_server()
    with Client(server.url, "t", retry_timeout=0) as away:
        live = LiveUpdates(away)
        server.kill()

        async def listen():
            told = live.told()
            await anext(told)
            event = await anext(told)
            await told.aclose()
            return event

        event = asyncio.run(listen())
        server.start()

    assert event.startswith(b"event: problem\ndata: ")
    assert event.endswith(b"\n\n")


def test_an_error_that_nobody_foresaw_is_told_and_later_events_come(live, quick, monkeypatch):
    look, faults = module.look, [ZeroDivisionError("odd\n\nvalue")]

    def odd(client):
        if faults:
            raise faults.pop()
        return look(client)

    monkeypatch.setattr(module, "look", odd)

    async def listen():
        told = live.told()
        await anext(told)
        events = [await anext(told), await anext(told)]
        await told.aclose()
        return events

    problem, then = asyncio.run(asyncio.wait_for(listen(), 30))

    assert problem == b"event: problem\ndata: ZeroDivisionError: odd value\n\n"
    assert tick(then)[0] == "event: tick"


def test_the_end_of_a_pipeline_that_is_read_by_hand_is_no_warning(live, client):
    orders = Pipeline("orders", client)
    orders.declare("lost")

    @orders.sink("raw")
    def store(item): ...

    orders.push("lost", 1)
    assert live.snapshot().unserved == ()
    orders.push("raw", 1)
    live.forget()
    assert [queue.name for queue in live.snapshot().unserved] == ["orders/raw"]


def test_a_look_that_takes_long_holds_for_four_times_as_long(live, monkeypatch):
    now = [100.0]
    take = live._take

    def slow():
        now[0] += 5
        return take()

    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    monkeypatch.setattr(live, "_take", slow)
    first = live.snapshot()
    now[0] += 20
    assert live.snapshot() is first
    now[0] += 0.01
    assert live.snapshot() is not first
    assert live.snapshot(fresh=True) is not live.snapshot(fresh=True), "fresh=True reads again"


def test_a_queue_above_the_threshold_is_warned_of_and_one_that_is_paused_or_unserved_is_not(client: Client) -> None:
    for name in ("late", "paused", "unserved"):
        client.queue(name).push(1)
    client.queue("paused").pause()
    said = {"queues": "late,paused"}
    broker_of(client).run(leader_calls.announce(keys_of(client), "w.1.00c0de", said, ttl_ms=600_000))

    def warned(waiting_s: float) -> list[str]:
        seen = LiveUpdates(client, AlertThresholds(waiting_s=waiting_s)).snapshot()
        return [one.found for one in seen.warnings if one.what == "queue latency"]

    wait_for(lambda: warned(0.000_001))
    (found,) = warned(0.000_001)
    assert found.startswith("the oldest task of late waits for")
    assert "more queue" not in found
    assert warned(300) == warned(0) == []
