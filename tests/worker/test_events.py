"""The event stream: the writer of each event, and how the stream is read."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from jobrunner import AsyncClient, Backoff, Client, Item, Worker, job
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.broker.calls import events as calls
from jobrunner.broker.calls.queues import register
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.queue import Queue
from jobrunner.coordinator.records import DeathEvents
from jobrunner.coordinator.scan import LeaderScan
from jobrunner.errors import InvalidOption, OutcomeUnknown, ServerRefused
from jobrunner.events import KINDS
from tests.support.waiting import wait_for


@job(name="events.bad", queue="ev", max_attempts=1, backoff=Backoff(base=0.01, factor=1))
def bad() -> None:
    """Fails."""
    raise ValueError("no\nmore")


def events_of(client: Client, *kinds: str) -> list[tuple[str, ...]]:
    return [(one.kind, one.queue, *one.details.values()) for one in client.events() if not kinds or one.kind in kinds]


def test_workers_come_go_and_lead(current: Client) -> None:
    worker = Worker(client=current, queues=["ev"], release="1.4.2")
    worker.start()
    wait_for(lambda: events_of(current, "leader_changed"))
    assert [one.release for one in current.workers()] == ["1.4.2"]
    worker.stop()

    found = [(one.kind, one.worker) for one in current.events()]
    assert sorted(found) == [(kind, worker.id) for kind in ("leader_changed", "worker_started", "worker_stopped")]
    assert [one.details["release"] for one in current.events() if one.kind == "worker_started"] == ["1.4.2"]


def test_a_task_that_died_is_told_with_its_error(current: Client, run: Any) -> None:
    task = bad.enqueue()
    worker = Worker(client=current, queues=["ev"], sweep=0.05)
    worker.start()
    wait_for(lambda: events_of(current, "task_died"))
    worker.stop()

    (event,) = [one for one in current.events() if one.kind == "task_died"]
    assert (event.queue, event.task, event.job) == ("ev", task.id, "events.bad")
    assert event.details == {"error": "ValueError: no more", "attempts": "1", "fate": "kept"}


@job(name="events.good", queue="ev")
def good() -> None:
    """Succeeds."""


def test_a_worker_tells_of_the_end_of_every_attempt_when_asked(current: Client, run: Any) -> None:
    good.enqueue()
    Worker(client=current, queues=["ev"]).run(burst=True)
    assert events_of(current, "attempt_ended") == []

    fine, late = good.enqueue(), bad.enqueue()
    Worker(client=current, queues=["ev"], events="all").run(burst=True)

    ends = [one for one in current.events() if one.kind == "attempt_ended"]
    assert {(one.task, one.job, one.details["outcome"]) for one in ends} == {
        (fine.id, "events.good", "succeeded"),
        (late.id, "events.bad", "dead"),
    }
    (died,) = [one for one in ends if one.task == late.id]
    assert (died.queue, died.details["attempt"], died.details["error"]) == ("ev", "1", "ValueError: no more")
    assert all(one.worker and int(one.details["run_ms"]) >= 0 for one in ends)


def test_a_worker_whose_events_are_refused_works_on(current: Client, server: Any, raw: redis.Redis, keys: Keys) -> None:
    for node in broker_of(current).nodes():
        node.run(command("ACL", "SETUSER", "mute", "on", "nopass", "~*", "&*", "+@all", "-xadd", read=bytes))
    mute = Client(server.url.replace("://", "://mute:any@"), keys.prefix)
    task = good.enqueue()

    summary = Worker(client=mute, queues=["ev"], events="all").run(burst=True)

    assert (summary.finished, events_of(current)) == (1, [])
    assert task.state == "succeeded"
    mute.close()
    for node in broker_of(current).nodes():
        node.run(command("ACL", "DELUSER", "mute", read=int))


def test_what_is_to_be_told_is_one_of_two_words() -> None:
    with pytest.raises(InvalidOption, match="choose one of lifecycle, all"):
        Worker(events="some")


def read_once(broker: Broker, keys: Keys) -> None:
    """As a leader that was just elected."""
    watch = DeathEvents(broker, keys)
    LeaderScan(broker, keys, 5.0, [watch.take]).step()
    watch.step()


@pytest.fixture
def watch(broker: Broker, keys: Keys, clock: Any) -> Callable[[], None]:
    """One scan of the leader, a second later."""
    clock.set()
    broker.run_many(register(keys, ["q", "shop/raw", "shop/odd"]))

    def look() -> None:
        clock.advance(1000)
        read_once(broker, keys)

    look()
    return look


def kill(client: Client, count: int, queue: str | Queue = "q") -> None:
    queue = client.queue(queue) if isinstance(queue, str) else queue
    queue.configure(max_attempts=1)
    queue.push_many(range(count))
    while held := queue.reserve(n=100):
        queue.rollback_many(held, error="boom")


def test_each_death_is_told_once_whoever_leads(current: Client, watch: Callable[[], None]) -> None:
    kill(current, 3)
    watch()
    watch()
    kill(current, 1)
    watch()

    died = events_of(current, "task_died", "tasks_died")
    assert died == [("task_died", "q", "boom", "1", "kept")] * 4


def test_deaths_whose_record_was_written_though_the_reply_was_lost_are_not_counted_again(
    current: Client, broker: Broker, keys: Keys, watch: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths, run_many = DeathEvents(broker, keys), broker.run_many

    def step() -> None:
        LeaderScan(broker, keys, 5.0, [deaths.take]).step()
        deaths.step()

    def lost(calls: Any) -> None:
        monkeypatch.undo()
        run_many(calls)
        raise OutcomeUnknown("the connection broke")

    step()
    kill(current, 130)
    LeaderScan(broker, keys, 5.0, [deaths.take]).step()
    monkeypatch.setattr(broker, "run_many", lost)
    with pytest.raises(OutcomeUnknown):
        deaths.step()
    kill(current, 2)
    step()

    assert len(events_of(current, "task_died")) == 102
    assert events_of(current, "tasks_died") == [("tasks_died", "q", "30")]


def test_a_queue_whose_deaths_cannot_be_read_keeps_no_others_untold(
    current: Client, watch: Callable[[], None], raw: Any, keys: Keys
) -> None:
    for queue in ("q", "shop/raw", "shop/odd"):
        kill(current, 1, queue)
    raw.delete(keys.queue("q").deaths)
    raw.set(keys.queue("q").deaths, "no list")

    for _ in range(2):
        with pytest.raises(ServerRefused, match="WRONGTYPE"):
            watch()

    assert sorted(queue for _, queue, *_ in events_of(current, "task_died")) == ["shop/odd", "shop/raw"]


def test_many_deaths_at_once_are_counted(current: Client, watch: Callable[[], None], raw: Any, keys: Keys) -> None:
    kill(current, 130)
    watch()
    kill(current, 2)
    watch()

    assert len(events_of(current, "task_died")) == 102
    assert events_of(current, "tasks_died") == [("tasks_died", "q", "30")]
    assert not raw.exists(keys.queue("q").deaths)


def test_deaths_that_nobody_told_of_are_bounded_on_the_server_and_counted(
    current: Client, watch: Callable[[], None], raw: Any, keys: Keys
) -> None:
    kill(current, 1100)

    died = keys.queue("q").deaths
    assert raw.llen(died) == 1000
    assert 0 < raw.pttl(died) <= 86_400_000
    watch()
    assert len(events_of(current, "task_died")) == 100
    assert events_of(current, "tasks_died") == [("tasks_died", "q", "1000")]


def requeued(queue: Queue) -> None:
    queue.requeue_dead()


def purged(queue: Queue) -> None:
    queue.purge("dead")


def trimmed(queue: Queue) -> None:
    queue.configure(dead_max=1)
    while queue.counts()["dead"] > 1:
        pass


@pytest.mark.parametrize("leave", [requeued, purged, trimmed])
def test_a_death_is_told_whatever_became_of_the_task_since(
    current: Client, watch: Callable[[], None], leave: Callable[[Queue], None]
) -> None:
    kill(current, 3)
    leave(current.queue("q"))
    watch()

    assert events_of(current, "task_died", "tasks_died") == [("task_died", "q", "boom", "1", "kept")] * 3


def test_a_death_that_leaves_no_dead_task_is_told(current: Client, watch: Callable[[], None], keys: Keys) -> None:
    odd, raw_items = current.queue("shop/odd"), current.queue("shop/raw")
    current.queue("q").configure(dead_ttl=0)
    raw_items.configure(dead_letter_queue="shop/odd")
    kill(current, 1)
    kill(current, 1, raw_items)
    watch()

    assert (current.queue("q").counts()["dead"], raw_items.counts()["dead"], odd.counts()["waiting"]) == (0, 0, 1)
    assert events_of(current, "task_died") == [
        ("task_died", "q", "boom", "1", "deleted"),
        ("task_died", "shop/raw", "boom", "1", "moved to shop/odd"),
    ]


def test_a_death_without_an_attempt_that_failed_is_told(
    current: Client, watch: Callable[[], None], clock: Any
) -> None:
    """One whose lease ended, and one that expired before it was begun."""
    queue = current.queue("q")
    queue.configure(max_attempts=1)
    queue.push("held", id="held", keepalive=1)
    queue.reserve()
    queue.push_many([Item("late", id="late", expires_in=1)])
    clock.advance(5000)
    queue.reserve()
    watch()

    died = {one.task: one.details["error"] for one in current.events() if one.kind == "task_died"}
    assert "ended without a report" in died["held"]
    assert died["late"] == "expired before it started"


def test_what_died_before_the_first_worker_came_is_told_too(
    current: Client, broker: Broker, keys: Keys, clock: Any
) -> None:
    clock.set()
    kill(current, 2)
    clock.advance(10_000)

    read_once(broker, keys)

    assert len(events_of(current, "task_died")) == 2


def test_words_that_are_damaged_and_a_count_that_fell_back_stop_nothing(
    current: Client, watch: Callable[[], None], raw: Any, keys: Keys
) -> None:
    kill(current, 5)
    watch()
    raw.hset(keys.queue("q").counters, "dead", 2)
    raw.rpush(keys.queue("q").deaths, b"\xff", b"a\tb")
    watch()
    watch()
    kill(current, 1)
    watch()

    assert len(events_of(current, "task_died")) == 8
    assert events_of(current, "tasks_died") == []


def test_who_fell_silent_is_lost_once(current: Client, watch: Callable[[], None], raw: Any, keys: Keys) -> None:
    raw.zadd(keys.workers, {"silent": 1, "well": 2})
    raw.hset(keys.worker("well"), "id", "well")

    watch()
    watch()

    assert [one.worker for one in current.events() if one.kind == "worker_lost"] == ["silent"]
    assert raw.zrange(keys.workers, 0, -1) == [b"well"]


def test_what_people_do_to_queues_is_told(current: Client, clock: Any, broker: Broker) -> None:
    queue = current.queue("q")
    kill(current, 2)
    queue.pause(for_=5)
    queue.resume()
    queue.requeue_dead()
    queue.purge("waiting")

    assert events_of(current) == [
        ("queue_configured", "q", "1"),
        ("queue_paused", "q", "5000"),
        ("queue_resumed", "q"),
        ("dead_requeued", "q", "2"),
        ("queue_purged", "q", "waiting", "2"),
    ]
    assert all(one.by for one in current.events())
    assert {one.kind for one in current.events()} <= set(KINDS)


def test_an_event_that_cannot_be_written_stops_nothing(current: Client, server: Any) -> None:
    for node in broker_of(current).nodes():
        node.run(command("ACL", "SETUSER", "mute", "on", "nopass", "~*", "&*", "+@all", "-xadd", read=bytes))
    mute = Broker(Endpoint(server.url.replace("://", "://mute:any@")))
    Queue(mute, QueueRef(keys_of(current), None, "q", 1000)).pause()

    assert current.stats()["q"].paused
    assert events_of(current) == []
    mute.close()
    for node in broker_of(current).nodes():
        node.run(command("ACL", "DELUSER", "mute", read=int))


def test_reading_goes_on_behind_an_event(current: Client, keys: Keys) -> None:
    for n in range(250):
        broker_of(current).run(calls.note(keys, "queue_resumed", queue=f"q{n}"))
    found = list(current.events())

    assert [one.queue for one in found] == [f"q{n}" for n in range(250)]
    assert [one.queue for one in current.events(found[247].id)] == ["q248", "q249"]
    assert [one.queue for one in broker_of(current).run(calls.newest(keys, count=2))] == ["q248", "q249"]
    with pytest.raises(InvalidOption, match="id of an event"):
        next(current.events("yesterday"))


def test_a_follower_hears_of_what_comes(current: Client, keys: Keys) -> None:
    heard: list[str] = []

    def listen() -> None:
        for event in current.events(follow=True):
            heard.append(event.queue)
            if event.queue == "last":
                return

    listener = threading.Thread(target=listen)
    listener.start()
    for name in ("first", "last"):
        current.queue(name).resume()
        wait_for(lambda name=name: name in heard)
    listener.join(30)

    assert heard == ["first", "last"]


def test_coroutines_read_and_follow_too(current: Client, server: Any, keys: Keys) -> None:
    current.queue("a").resume()

    async def follow() -> list[str]:
        client = AsyncClient(server.url, keys.prefix)
        found = []
        async for event in client.events(follow=True):
            found.append(event.queue)
            if event.queue == "b":
                break
            await client.queue("b").resume()
        await client.close()
        return found

    assert asyncio.run(follow()) == ["a", "b"]


def test_the_stream_is_bounded(current: Client, keys: Keys, raw: redis.Redis) -> None:
    broker_of(current).run_many([calls.note(keys, "queue_resumed", queue="q", text="x" * 9999) for _ in range(10_400)])

    assert 10_000 <= raw.xlen(keys.events) < 10_200
    assert all(len(one.details["text"]) == 500 for one in list(current.events())[:3])
