"""The relay, step by step: whatever it was doing when it was killed, another one ends it, and nothing fires twice."""

import math
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import flows, leases, new_tasks, tasks
from jobrunner.broker.calls.leader import ScanReply
from jobrunner.broker.calls.queues import register
from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client, broker_of
from jobrunner.client.flow_results import receive
from jobrunner.client.operations import flow_relay
from jobrunner.client.operations.flow_relay import relay, relaying
from jobrunner.coordinator.coordinator import Coordinator, LeaderTimes
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.coordinator.maintenance import OwnQueues
from jobrunner.coordinator.recovery import FlowRecovery
from jobrunner.coordinator.scan import LeaderScan
from jobrunner.join import Arrival, Ended, Join, write_onward
from jobrunner.loop import Complaints
from jobrunner.task import Task
from tests.support.clock import Clock

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
        self.broker.run(new_tasks.enqueue(own, [Task(id=task_id, queue=queue, payload=b"", type="t", then=onward)]))
        self.finish(queue, result=result, fate=fate)

    def finish(self, queue: str, *, result: bytes = b"1", fate: str = "succeeded") -> None:
        """The first waiting task runs and ends."""
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


def fill(raw: redis.Redis, keys: Keys, total: int) -> None:
    """The outbox has word of all members of the join j."""
    entries = {b"succeeded:" + to(("c", "j", n)): b"%d" % n for n in range(total)}
    raw.hset(keys.outbox("a"), mapping=entries)  # type: ignore[arg-type]


def numbered(total: int) -> bytes:
    return b"[" + b",".join(b"%d" % n for n in range(total)) + b"]"


def test_a_join_of_thousands(flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis) -> None:
    flow.join("j", "c", total=3000)
    fill(raw, keys, 3000)
    relay(broker, keys, tags=["a"])
    assert flow.waiting("c") == ["task-j"]
    assert flow.outbox("a") == 0
    received = receive(broker, keys.queue("c"), "task-j")
    assert received == (numbered(3000), b"[" + b",".join([b'"succeeded"'] * 3000) + b"]")


@pytest.mark.parametrize("stop", range(1, 8))
def test_a_relay_killed_while_it_collects_keeps_the_word(
    stop: int, flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    """The next collector goes on where the last one stopped; two collectors at once share the work."""
    flow.join("j", "c", total=2500)
    fill(raw, keys, 2500)
    last = Ended("a", "succeeded", to(("c", "j", 2499)), b"2499")
    raw.hdel(keys.outbox("a"), "succeeded:" + last.onward.decode())
    relay(broker, keys, tags=["a"])
    raw.hset(keys.outbox("a"), "succeeded:" + last.onward.decode(), last.result)
    killed: Any = relaying(keys, ended=[last])
    replies: list[Any] | None = None
    with suppress(StopIteration):
        for _ in range(stop):
            replies = broker.run_each(killed.send(replies).calls)
    if stop <= 5:  # an arrival and four calls that collect
        assert flow.outbox("a") == 1
    relay(broker, keys, tags=["a"])
    with suppress(StopIteration):  # it was only slow
        while True:
            replies = broker.run_each(killed.send(replies).calls)
    assert flow.enqueued("c") == 1
    assert flow.outbox("a") == 0
    assert (receive(broker, keys.queue("c"), "task-j") or ())[0] == numbered(2500)


def passing(flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis) -> Ended:
    """A group of six members with results of 1.5 MiB, all but the last of which have arrived; after it two joins in
    queues of other tags. Returns the end of the last one, which is in the outbox."""
    for name, queue in (("left", "c"), ("right", "d")):
        task = Task(id=f"task-{name}", queue=queue, payload=b"{}", type="t")
        one = Join(id=name, queue=queue, rule="success", total=1, ttl_ms=DAY_MS, task=task, results=b"*")
        broker.run(flows.prepare(keys.queue(queue), one))
    onward = to(("c", "left", 0), ("d", "right", 0))
    group = Join(id="group", queue="b", rule="pass", total=6, ttl_ms=DAY_MS, onward=onward)
    broker.run(flows.prepare(keys.queue("b"), group))
    ends = [Ended("a", "succeeded", to(("b", "group", n)), b'"%d' % n + b"x" * 2**18 + b'"') for n in range(6)]
    relay(broker, keys, ended=ends[:-1])
    raw.hset(keys.outbox("a"), b"succeeded:" + ends[-1].onward, ends[-1].result)
    return ends[-1]


def passed_on() -> bytes:
    return b"[" + b",".join(b'"%d' % n + b"x" * 2**18 + b'"' for n in range(6)) + b"]"


def test_a_relay_killed_while_it_passes_results_on_keeps_the_word(
    flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    """It is stopped after each number of round trips in turn; another one goes on, and the first is only slow."""
    stop, is_at_its_end = 0, False
    while not is_at_its_end:
        stop += 1
        raw.flushdb()
        last = passing(flow, broker, keys, raw)
        killed: Any = relaying(keys, ended=[last])
        replies: list[Any] | None = None
        try:
            for _ in range(stop):
                replies = broker.run_each(killed.send(replies).calls)
        except StopIteration:
            is_at_its_end = True
        relay(broker, keys, tags=["a"])
        with suppress(StopIteration):
            while not is_at_its_end:
                replies = broker.run_each(killed.send(replies).calls)
        for queue, task_id in (("c", "task-left"), ("d", "task-right")):
            assert flow.waiting(queue) == [task_id], stop
            assert flow.enqueued(queue) == 1
            assert receive(broker, keys.queue(queue), task_id) == (passed_on(), b'["succeeded"]')
        assert flow.outbox("a") == flow.outbox("b") == 0
        assert list(raw.scan_iter(match=b"*collected*")) == []
    assert stop > 12


def test_a_group_that_cannot_be_passed_on_to_one_join_stays(
    flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    last = passing(flow, broker, keys, raw)
    broken = keys.queue("d").join("right")
    raw.rename(broken, "kept")
    raw.set(broken, "text")
    relay(broker, keys, ended=[last])
    assert flow.outbox("a") == 1
    raw.rename("kept", broken)
    relay(broker, keys, tags=["a"])
    assert (flow.waiting("c"), flow.waiting("d")) == (["task-left"], ["task-right"])
    assert flow.enqueued("c") == 1
    assert flow.outbox("a") == 0


@pytest.mark.parametrize("stop", range(1, 8))
def test_a_group_given_up_while_it_is_passed_on_brings_nothing(
    stop: int, flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    last = passing(flow, broker, keys, raw)
    steps: Any = relaying(keys, ended=[last])
    replies: list[Any] | None = None
    for _ in range(stop):
        replies = broker.run_each(steps.send(replies).calls)
    broker.run(flows.abandon(keys.queue("b"), "group"))
    with suppress(StopIteration):
        while True:
            replies = broker.run_each(steps.send(replies).calls)
    relay(broker, keys, tags=["b"])
    assert broker.run(flows.members(keys.queue("c"), "left", [0])) == [("cancelled", b"")]
    assert flow.waiting("c") == flow.waiting("d") == []


class Sent:
    """How many bytes are in each call and in each round trip of some steps."""

    def __init__(self, broker: Broker, steps: Any) -> None:
        self.calls: list[int] = []
        self.trips: list[int] = []
        replies: list[Any] | None = None
        with suppress(StopIteration):
            while True:
                step = steps.send(replies)
                sizes = [sum(len(word) for word in call.words if isinstance(word, bytes)) for call in step.calls]
                self.calls += sizes
                self.trips.append(sum(sizes))
                replies = broker.run_each(step.calls)


def test_arrivals_are_sent_a_mib_at_a_time(flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis) -> None:
    flow.join("j", "c", total=30)
    flow.join("k", "d", total=1)
    for n in range(30):
        onward = to(("c", "j", n)) if n else to(("c", "j", n), ("d", "k", 0))
        raw.hset(keys.outbox("a"), b"succeeded:" + onward, b'"' + b"x" * (400_000 if n else 2_000_000) + b'"')
    sent = Sent(broker, relaying(keys, tags=["a"]))
    large = 2_000_000  # goes alone: it cannot be halved
    assert sorted(sent.trips)[-2:] == [pytest.approx(large, rel=0.001)] * 2
    assert sorted(sent.trips)[-3] <= 2**20 + 1000
    assert len(sent.trips) < 90
    assert flow.waiting("c") == ["task-j"]
    assert flow.waiting("d") == ["task-k"]
    assert flow.outbox("a") == 0


def test_results_that_are_too_large_are_told_on_as_a_death(
    flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    flow.join("next", "d", total=1)
    flow.join("j", "c", total=18, onward=to(("d", "next", 0)))
    for n in range(18):
        raw.hset(keys.outbox("a"), b"succeeded:" + to(("c", "j", n)), b'"' + b"x" * 2**20 + b'"')
    relay(broker, keys, tags=["a"])
    assert broker.run(flows.members(keys.queue("d"), "next", [0])) == [("dead", b"")]
    assert [flow.outbox(tag) for tag in "acd"] == [0, 0, 0]
    assert flow.waiting("c") == []


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
        steps.send([([], False), ([], False)])
    with pytest.raises(StopIteration):
        next(relaying(keys))


def test_the_leader_tells_what_a_killed_worker_left(flow: Flow, broker: Broker, keys: Keys, clock: Clock) -> None:
    flow.join("j", "c", total=1)
    flow.end("x", "a", to(("c", "j", 0)))
    broker.run_many(register(keys, ["a", "c"]))
    outboxes = FlowRecovery(broker, keys)
    look = LeaderScan(broker, keys, 5.0, [outboxes.take])
    assert look.step() == 5.0
    assert outboxes.step() == math.inf
    assert flow.waiting("c") == ["task-j"]
    assert 4.0 < look.step() < 5.0


def test_the_leader_takes_a_large_backlog_in_turns(flow: Flow, broker: Broker, keys: Keys, raw: redis.Redis) -> None:
    flow.join("j", "c", total=1200)
    for n in range(1200):
        raw.hset(keys.outbox("a"), b"succeeded:" + to(("c", "j", n)), b"%d" % n)
    outboxes = FlowRecovery(broker, keys)
    outboxes.take(ScanReply(posted=["a"]))
    assert outboxes.step() == 0.0
    assert flow.outbox("a") == 200
    assert outboxes.step() == math.inf
    assert flow.waiting("c") == ["task-j"]


def test_the_leader_looks_also_at_queues_that_it_serves(flow: Flow, client: Client, keys: Keys) -> None:
    client.queue("a").push("x")
    flow.join("j", "c", total=1)
    flow.end("y", "b", to(("c", "j", 0)))
    client.queue("b").push("z")
    leader = Coordinator(
        broker_of(client), keys, "w", LeaderTimes(10, 5), OwnQueues(frozenset({"a", "b"})),
        cron=PeriodicTicks(broker_of(client), keys, None),
    )  # fmt: skip
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


def test_joins_that_a_full_server_refuses_are_told_of_in_few_lines_and_go_on_later(
    flow: Flow, keys: Keys, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = []
    complaints = Complaints()
    monkeypatch.setattr(flow_relay, "_complaints", lambda: complaints)
    monkeypatch.setattr(flow_relay, "_log", SimpleNamespace(warning=lambda _event, **said: lines.append(said)))
    for number in range(20):
        flow.join(f"j{number}", "b", total=1)
        flow.end(f"m{number}", "a", to(("b", f"j{number}", 0)))
    raw.config_set("maxmemory", 1)
    try:
        for _ in range(2):
            relay(flow.broker, keys, tags=["a"])
    finally:
        raw.config_set("maxmemory", 0)

    assert [(said["joins"], "maxmemory" in said["error"]) for said in lines] == [(20, True)]
    relay(flow.broker, keys, tags=["a"])
    assert flow.enqueued("b") == 20
