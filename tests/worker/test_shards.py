"""Workers on a queue with partitions: they serve every shard, also those that come while they run."""

from collections import Counter
from threading import Lock
from time import sleep

import msgspec
import pytest

from jobrunner import Client, chain, group, job, queue
from jobrunner.broker.call import command
from jobrunner.broker.keys import tag_of_id
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.operations.partitions import align
from jobrunner.errors import InvalidOption, ServerUnavailable
from jobrunner.jobs.registry import register_driver
from jobrunner.worker import declarations, startup
from jobrunner.worker.declarations import Declarations
from jobrunner.worker.fetch.queue_caps import CappedRotation
from jobrunner.worker.fetch.reserve_plan import QueueRotation
from jobrunner.worker.lease_keeper.keeper_link import HeldWork
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]


@pytest.fixture
def add(current):
    current.queue("spread").configure(partitions=4)

    @job(queue="spread", name="spread_add")
    def add(n: int, more: int = 1) -> int:
        return n + more

    return add


def shards(handles):
    return Counter(tag_of_id(handle.id) for handle in handles)


def test_a_worker_serves_all_shards_and_counts_them_as_one_queue(current, run, add):
    handles = [add.enqueue(n) for n in range(20)] + add.enqueue_many([add.bind(n) for n in range(20, 100)])
    assert len(shards(handles)) == 4
    assert run(queues=["spread"]).finished == 100
    assert [handle.result(timeout=5) for handle in handles] == list(range(1, 101))
    assert current.queue("spread").totals()["succeeded"] == 100
    assert current.stats()["spread"].open == 0


def test_a_running_worker_serves_shards_that_are_added(current, start, add):
    begun = start(queues=["spread"], heartbeat=0.2, poll=60)
    current.queue("spread").configure(partitions=12)
    handles = [add.enqueue(n) for n in range(60)]
    assert len(shards(handles)) == 12
    assert [handle.result(timeout=30) for handle in handles] == list(range(1, 61))
    (worker,) = wait_for(current.workers)
    assert worker.queues == ("spread",)
    left = begun._parts.guard.keeper.leases.memory.read()
    assert len(msgspec.json.decode(left, type=HeldWork).queues) == 12, "what its keeper hands back when it is killed"
    assert [handle.result(timeout=30) for handle in [add.enqueue(n) for n in range(40)]] == list(range(1, 41))


def test_retries_scheduled_tasks_and_the_dead_stay_in_their_shard(current, run):
    current.queue("spread").configure(partitions=4)
    tries = Counter()

    @job(queue="spread", name="spread_fails", max_attempts=2)
    def fails(n: int) -> None:
        tries[n] += 1
        raise ValueError(n)

    handles = [fails.using(in_=0.05).enqueue(n) for n in range(8)]
    before = shards(handles)
    current.queue("spread").configure(backoff=None)
    run(queues=["spread"], drain=True)
    assert set(tries.values()) == {2}
    dead = current.queue("spread").tasks("dead")
    assert len(dead) == 8
    assert Counter(record.queue for record in dead) == before


def test_declared_settings_reach_all_shards_and_their_limits_are_divided(current, start, add):
    queue("spread", max_inflight=8, max_attempts=3)
    start(queues=["other"])
    shards_of = [current.queue(name) for name in ("spread", "spread@1", "spread@2", "spread@3")]
    assert [one.settings().max_attempts for one in shards_of] == [3] * 4
    current.queue("spread").push_many(range(200))
    [add.enqueue(n) for n in range(40)]
    held = []
    while taken := current.queue("spread").reserve(3):
        held += taken
    assert len(held) == 8


def test_a_setting_that_a_heartbeat_publishes_anew_reaches_all_shards(current, start, raw, keys, add):
    """As when a newer release is rolled back. Only the first shard got it, until the next start of a worker."""
    queue("spread", max_attempts=3)
    start(queues=["other"], heartbeat=0.2)
    names = ("spread", "spread@1", "spread@2", "spread@3")
    for name in names:
        raw.hdel(keys.queue(name).settings, "max_attempts")
    raw.delete(keys.queue("spread").declared)

    wait_for(lambda: [current.queue(name).settings().max_attempts for name in names] == [3] * 4)


def test_a_setting_reaches_all_shards_although_the_reply_of_its_heartbeat_was_lost(current, add):
    queue("spread", max_attempts=3)
    broker, published = broker_of(current), Declarations(broker_of(current), keys_of(current), (), 10)
    broker.run_many(published.asking())

    published.take(broker.run_many(published.asking()))

    names = ("spread", "spread@1", "spread@2", "spread@3")
    assert [current.queue(name).settings().max_attempts for name in names] == [3] * 4


def test_a_declared_setting_reaches_shards_that_were_away_when_the_worker_started(current, add, start, monkeypatch):
    """They had none until another worker started: a new limit did not hold in them."""
    queue("spread", max_attempts=3)
    tried = []

    def align_later(ref):
        tried.append(ref.name)
        if len(tried) == 1:
            raise ServerUnavailable("the node of spread@2 is away")
        return align(ref)

    monkeypatch.setattr(declarations, "align", align_later)
    start(queues=["spread"], heartbeat=0.2)

    names = ("spread", "spread@1", "spread@2", "spread@3")
    wait_for(lambda: [current.queue(name).settings().max_attempts for name in names] == [3] * 4)


def test_a_worker_starts_although_the_node_of_events_is_away(current, add, monkeypatch):
    """It ended when it had changed a declared setting. Events have a slot of their own."""

    def break_off(_reply):
        raise ServerUnavailable("the node of events is away")

    monkeypatch.setattr(declarations, "_configured", lambda *_: command("PING", read=break_off))
    queue("spread", max_attempts=3)

    assert declarations.publish_declared(current, heartbeat_s=10) == {}
    assert current.queue("spread@1").settings().max_attempts == 3


def test_queues_without_partitions_share_the_round_trips_of_the_start_of_a_worker(current, add, monkeypatch):
    """Each cost two when it was declared anew: five seconds for 200 queues on a server 5 ms away."""
    for number in range(30):
        queue(f"declared{number}", max_attempts=3)
    broker, trips = broker_of(current), []
    replies = broker._replies
    monkeypatch.setattr(broker, "_replies", lambda *given: trips.append(1) or replies(*given))

    assert declarations.publish_declared(current, heartbeat_s=10) == {}
    assert len(trips) < 10
    assert current.queue("declared29").settings().max_attempts == 3


def test_the_start_of_a_worker_waits_for_a_server_and_for_no_node_of_a_single_queue(current):
    """Each queue on a node that was away cost it the two seconds for which its client tries."""
    with Client("redis+cluster://localhost:1", "t") as spread, startup.tried_once(spread) as broker:
        assert broker._retry_timeout_s == 0
    with startup.tried_once(current) as broker:
        assert broker is broker_of(current)


def test_flows_run_through_and_unspread_tasks_are_in_the_first_shard(current, run, add):
    handle = chain(add.bind(1), group(add.bind(n=5), add.bind(n=6)), add.bind(7)).enqueue()
    run(queues=["spread"], drain=True)
    assert handle.result(timeout=5) == 8


def test_a_cap_of_a_worker_holds_for_all_shards_together():
    turns = CappedRotation({"mail": 1, "mail@1": 1, "mail@2": 1, "other": 1}, 5.0, {"mail": 3})
    plan = turns.plan(8)
    assert sum(share for name, share in plan.shares.items() if name != "other") <= 3
    turns.took("mail@1", 2)
    assert turns.has_room("mail@2", 1)
    assert not turns.has_room("mail", 2)
    turns.took("mail@2", 1)
    assert turns.open == ["other"]
    assert turns.plan(8).shares == {"other": 8}
    turns.sleep("mail", 0.0, 30.0)
    turns.wake("mail")
    assert turns.plan(8).shares == {"other": 8}
    turns.ended(["mail@2"])
    plan = turns.plan(8)
    assert sum(share for name, share in plan.shares.items() if name != "other") == 1


def test_shards_that_are_added_to_a_queue_at_its_cap_sleep_until_a_task_of_it_ends():
    turns = CappedRotation({"mail": 1}, 5.0, {"mail": 1})
    turns.took("mail", 1)
    turns.serve({"mail": 1, "mail@1": 1})
    assert turns.until_next() > 1.0, "the fetch loop would turn without a pause"
    turns.ended(["mail"])
    assert turns.plan(8).shares.keys() <= {"mail", "mail@1"}
    assert sum(turns.plan(8).shares.values()) == 1


def test_shards_that_are_added_take_turns_with_the_others():
    turns = QueueRotation({"mail": 2, "other": 2}, 5.0)
    turns.sleep("mail", None, 30.0)
    turns.serve({"mail": 1, "mail@1": 1, "other": 2})
    assert turns.queues == ["mail", "other", "mail@1"]
    assert turns.plan(30).shares == {"other": 20, "mail@1": 10}


def test_a_queue_that_is_read_in_batches_is_refused(current, start):
    current.queue("batches").configure(partitions=3)
    register_driver("batches", lambda *_: None)
    with pytest.raises(InvalidOption, match="queue 'batches' has 3 partitions and is read in batches"):
        start(queues=["batches"])


@job(queue="skewed", name="skewed_work", partition_by="tenant")
def skewed_work(tenant: str, n: int) -> None:
    with _lock:
        _running[tenant] += 1
        _most[tenant] = max(_most[tenant], _running[tenant])
        _most[""] = max(_most[""], sum(_running.values()))
    sleep(0.02)
    with _lock:
        _running[tenant] -= 1


_lock, _running, _most = Lock(), Counter(), Counter()


@pytest.mark.parametrize("limit", [3, 24], ids=lambda limit: f"limit {limit}")
def test_one_busy_shard_has_the_whole_limit_and_others_get_theirs_back(current, start, limit):
    _most.clear()
    current.queue("skewed").configure(partitions=8, max_inflight=limit)
    for _ in range(2):
        start(queues=["skewed"], concurrency=limit, heartbeat=1)
    skewed_work.enqueue_many([skewed_work.bind("busy", n) for n in range(60 * limit)])
    wait_for(lambda: _most["busy"] == limit)
    others = [skewed_work.enqueue(f"other{n}", n) for n in range(12)]
    assert len(shards(others)) > 4
    for handle in others:
        handle.result(timeout=60)
    assert _most[""] == limit
    wait_for(lambda: current.queue("skewed").counts()["waiting"] == 0, timeout_s=60)
    assert _most[""] == limit
