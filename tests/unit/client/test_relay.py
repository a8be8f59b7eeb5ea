"""The relay, step by step: whatever it was doing when it was killed, another one ends it, and nothing fires twice."""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import flows, leases, tasks
from jobrunner.broker.calls.glance import Glance
from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client
from jobrunner.client.relay import relay, relaying
from jobrunner.coordinator.coordinator import Coordinator
from jobrunner.coordinator.look import Look
from jobrunner.coordinator.outboxes import Outboxes
from jobrunner.join import Arrival, Ended, Join, write_onward
from jobrunner.task import Task
from tests.conftest import Clock

DAY_MS = 86_400_000


class Flow:
    """Joins and members in queues of different tags."""

    def __init__(self, broker: Broker, keys: Keys, raw: redis.Redis) -> None:
        self.broker = broker
        self.keys = keys
        self.raw = raw

    def join(self, join_id: str, queue: str, *, total: int, onward: bytes | None = None, rule: Any = "success") -> None:
        task = Task(id=f"task-{join_id}", queue=queue, payload=b"{}", type="t", then=onward)
        join = Join(id=join_id, queue=queue, rule=rule, total=total, ttl_ms=DAY_MS, task=task)
        self.broker.run(flows.prepare(self.keys.queue(queue), join))

    def end(self, task_id: str, queue: str, onward: bytes, *, result: bytes = b"1", fate: str = "succeeded") -> None:
        """A task that is enqueued, runs and ends, as far as its own queue is concerned."""
        own = self.keys.queue(queue)
        self.broker.run(tasks.enqueue(own, [Task(id=task_id, queue=queue, payload=b"", type="t", then=onward)]))
        self.finish(queue, result=result, fate=fate)

    def finish(self, queue: str, *, result: bytes = b"1", fate: str = "succeeded") -> None:
        """The first task in line runs and ends."""
        own = self.keys.queue(queue)
        (held,) = self.broker.run(leases.reserve(own, 1, token=f"{queue}{fate}")).attempts
        if fate == "dead":
            self.broker.run(leases.fail(own, [(held.id, held.token, 0, "dead", "no")]))
        else:
            self.broker.run(leases.commit(own, [(held.id, held.token, 0, fate, result, held.then or b"")]))

    def outbox(self, tag: str) -> int:
        return int(self.raw.hlen(self.keys.outbox(tag)))

    def waiting(self, queue: str) -> list[str]:
        return [raw.decode() for raw in self.raw.zrange(self.keys.queue(queue).waiting, 0, -1)]

    def enqueued(self, queue: str) -> int:
        return int(self.raw.hget(self.keys.queue(queue).counters, "enqueued") or 0)


@pytest.fixture
def flow(broker: Broker, keys: Keys, raw: redis.Redis) -> Flow:
    return Flow(broker, keys, raw)


def to(*places: tuple[str, str, int]) -> bytes:
    return write_onward(Arrival(*place) for place in places)


def test_ends_of_two_queues_meet_in_a_third(flow: Flow, broker: Broker, keys: Keys) -> None:
    flow.join("j", "c", total=2)
    flow.end("x", "a", to(("c", "j", 0)))
    flow.end("y", "b/raw", to(("c", "j", 1)))
    relay(broker, keys, tags=["a", "b"])
    assert flow.waiting("c") == ["task-j"]
    assert (flow.outbox("a"), flow.outbox("b")) == (0, 0)


def test_what_the_worker_knows_need_not_be_read(flow: Flow, broker: Broker, keys: Keys) -> None:
    flow.join("j", "c", total=1)
    flow.end("x", "a", to(("c", "j", 0)))
    relay(broker, keys, ended=[Ended("a", "succeeded", to(("c", "j", 0)), b"1")])
    assert flow.waiting("c") == ["task-j"]
    assert flow.outbox("a") == 0


def test_a_relay_killed_between_any_two_steps_is_made_up_for(flow: Flow, broker: Broker, keys: Keys) -> None:
    """A chain of joins over four tags; the first relay is stopped after each number of round trips in turn."""
    for stop in range(12):
        one, two = f"one{stop}", f"two{stop}"
        flow.join(two, "d", total=1)
        flow.join(one, "c", total=2, onward=to(("d", two, 0)))
        flow.end(f"x{stop}", "a", to(("c", one, 0)))
        flow.end(f"y{stop}", "b", to(("c", one, 1)), fate="dead")  # so the join passes a death on to the next
        steps: Any = relaying(keys, tags=["a", "b"])
        replies: list[Any] | None = None
        with suppress(StopIteration):
            for _ in range(stop):
                replies = broker.run_each(steps.send(replies).calls)
        relay(broker, keys, tags=["a", "b", "c", "d"])
        assert broker.run(flows.members(keys.queue("d"), two, [0])) == [("dead", b"")]
        assert [flow.outbox(tag) for tag in "abcd"] == [0, 0, 0, 0]
        assert flow.waiting("c") == flow.waiting("d") == []


def test_a_replay_of_every_arrival_fires_nothing_again(flow: Flow, broker: Broker, keys: Keys) -> None:
    flow.join("j", "c", total=2)
    ends = [Ended("a", "succeeded", to(("c", "j", n)), b"%d" % n) for n in range(2)]
    for _ in range(3):
        relay(broker, keys, ended=ends)
        relay(broker, keys, ended=reversed(ends))
    assert flow.enqueued("c") == 1


def test_two_relays_at_once_fire_once(flow: Flow, broker: Broker, keys: Keys) -> None:
    """Every round trip of one is followed by the same one of the other."""
    flow.join("j", "c", total=2)
    for n in range(2):
        flow.end(f"x{n}", "a", to(("c", "j", n)))
    relays: list[Any] = [relaying(keys, tags=["a"]), relaying(keys, tags=["a"])]
    replies = {steps: broker.run_each(next(steps).calls) for steps in relays}
    while replies:
        for steps in list(replies):
            try:
                replies[steps] = broker.run_each(steps.send(replies[steps]).calls)
            except StopIteration:
                del replies[steps]
    assert flow.enqueued("c") == 1
    assert flow.outbox("a") == 0


def test_a_death_goes_down_the_chain_and_so_does_its_repair(flow: Flow, broker: Broker, keys: Keys) -> None:
    flow.join("last", "d", total=1)
    flow.join("middle", "c", total=1, onward=to(("d", "last", 0)))
    flow.end("x", "a", to(("c", "middle", 0)), fate="dead")
    relay(broker, keys, tags=["a"])
    assert broker.run(flows.members(keys.queue("d"), "last", [0])) == [("dead", b"")]

    broker.run(tasks.requeue(keys.queue("a"), ["x"]))
    flow.finish("a", result=b"5")
    relay(broker, keys, tags=["a"])
    assert flow.waiting("c") == ["task-middle"]
    flow.finish("c", result=b"6")
    relay(broker, keys, tags=["c"])
    assert flow.waiting("d") == ["task-last"]


def test_more_entries_than_one_look_takes(flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis) -> None:
    flow.join("j", "c", total=1000)
    for n in range(1000):
        raw.hset(keys.outbox("a"), b"succeeded:" + to(("c", "j", n)), b"%d" % n)
    relay(broker, keys, tags=["a"])
    assert flow.waiting("c") == ["task-j"]
    assert flow.outbox("a") == 0


def test_an_entry_that_cannot_be_told_stays_and_holds_up_no_other(
    flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    raw.set(keys.queue("c").join("damaged"), "text")
    flow.join("j", "c", total=1)
    flow.end("x", "a", to(("c", "damaged", 0)))
    flow.end("y", "a", to(("c", "j", 0)))
    relay(broker, keys, tags=["a"])
    assert flow.waiting("c") == ["task-j"]
    assert flow.outbox("a") == 1
    raw.delete(keys.queue("c").join("damaged"))
    relay(broker, keys, tags=["a"])
    assert flow.outbox("a") == 0


@pytest.mark.parametrize("onward", [b"no json", b'[["a/b/c","j",0]]', b'[["c"]]'])
def test_an_entry_that_nobody_can_read_is_dropped(
    onward: bytes, flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    raw.hset(keys.outbox("a"), b"succeeded:" + onward, b"")
    relay(broker, keys, tags=["a"])
    assert flow.outbox("a") == 0


def test_a_join_that_expired_is_no_reason_to_keep_the_entry(flow: Flow, broker: Broker, keys: Keys) -> None:
    flow.end("x", "a", to(("c", "ghost", 0)))
    relay(broker, keys, tags=["a"])
    assert flow.outbox("a") == 0


def test_an_empty_outbox_costs_one_round_trip(keys: Keys) -> None:
    steps: Any = relaying(keys, tags=["a", "b"])
    assert len(next(steps).calls) == 2
    with pytest.raises(StopIteration):
        steps.send([[], []])
    with pytest.raises(StopIteration):
        next(relaying(keys))


def test_the_leader_tells_what_a_killed_worker_left(flow: Flow, broker: Broker, keys: Keys, clock: Clock) -> None:
    flow.join("j", "c", total=1)
    flow.end("x", "a", to(("c", "j", 0)))
    outboxes = Outboxes(broker, keys)
    look = Look(broker, keys, 5.0, lambda: ["a", "c"], [outboxes.take])
    assert look.step() == 5.0
    assert outboxes.step() == math.inf
    assert flow.waiting("c") == ["task-j"]
    assert 4.0 < look.step() < 5.0


def test_the_leader_takes_a_large_backlog_in_turns(flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis) -> None:
    flow.join("j", "c", total=1200)
    for n in range(1200):
        raw.hset(keys.outbox("a"), b"succeeded:" + to(("c", "j", n)), b"%d" % n)
    outboxes = Outboxes(broker, keys)
    outboxes.take(Glance(posted=["a"]))
    assert outboxes.step() == 0.0
    assert flow.outbox("a") == 200
    assert outboxes.step() == math.inf
    assert flow.waiting("c") == ["task-j"]


def test_the_leader_looks_also_at_queues_that_it_serves(flow: Flow, client: Client, keys: Keys) -> None:
    client.queue("a").push("x")
    flow.join("j", "c", total=1)
    flow.end("y", "b", to(("c", "j", 0)))
    client.queue("b").push("z")
    leader = Coordinator(client.broker, keys, "w", ttl_s=10, sweep_s=5, served=["a", "b"])
    leader.step()
    assert flow.waiting("c") == ["task-j"]


def test_a_client_that_cancels_or_purges_tells_at_once(
    flow: Flow, client: Client, keys: Keys, wait_until: Callable[..., Any]
) -> None:
    flow.join("j", "c", total=2, rule="complete")
    for n, task_id in enumerate("xy"):
        task = Task(id=task_id, queue="a", payload=b"", type="t", then=to(("c", "j", n)))
        client.enqueue(task)
    assert client.task("x", queue="a").cancel()
    assert flow.outbox("a") == 0
    assert client.queue("a").purge("waiting") == 1
    assert flow.outbox("a") == 0
    assert flow.waiting("c") == ["task-j"]
