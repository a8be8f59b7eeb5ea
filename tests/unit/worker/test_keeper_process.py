"""The lease keeper without its process: lines in, renewals out, one `step()` at a time."""

import os
import signal
import subprocess
import sys
from typing import Any

import msgspec
import pytest
import redis

from jobrunner import Client
from jobrunner.broker.broker import Broker
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.broker.scripts import load
from jobrunner.client.lease import Lease
from jobrunner.clock import monotonic
from jobrunner.soak.fault_proxy import FaultProxy
from jobrunner.worker.child_processes import is_suspended
from jobrunner.worker.lease_keeper import renewals as module
from jobrunner.worker.lease_keeper.keeper_process import Inbox
from jobrunner.worker.lease_keeper.renewals import LeaseRenewer
from tests.support.server import Server
from tests.support.waiting import wait_for


class Watch:
    """The monotonic clock, stopped and moved by the test."""

    def __init__(self) -> None:
        self.began = monotonic()
        self.ahead = 0.0

    def __call__(self) -> float:
        return self.began + self.ahead


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    made = Watch()
    monkeypatch.setattr(module, "monotonic", made)
    return made


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def keeper(broker: Broker, keys: Keys, messages: list[str], watch: Watch) -> LeaseRenewer:
    return LeaseRenewer(broker, keys, messages.append)


def line(*words: Any) -> bytes:
    return msgspec.json.encode(words) + b"\n"


def hold(lease: Lease, keepalive_s: float = 30.0, since: float | None = None) -> bytes:
    return line("hold", "q", module.monotonic() if since is None else since, keepalive_s, [lease.token], [lease.id])


@pytest.fixture
def lease(client: Client) -> Lease:
    """A lease of 30 s on a task of queue q."""
    client.queue("q").push("x")
    (taken,) = client.queue("q").reserve(1, keepalive=30)
    return taken


def ends(raw: redis.Redis, keys: Keys, lease: Lease) -> float:
    found = raw.zscore(keys.queue("q").pending, lease.id)
    assert found is not None
    return found


def test_a_lease_is_renewed_when_a_third_of_it_has_passed(
    keeper: LeaseRenewer, lease: Lease, watch: Watch, raw: redis.Redis, keys: Keys
) -> None:
    """MOAB-29"""
    keeper.read(hold(lease))
    first = ends(raw, keys, lease)
    assert keeper.step() == pytest.approx(10.0)
    assert ends(raw, keys, lease) == first
    watch.ahead = 10.1
    wait_for(lambda: keeper.step() and ends(raw, keys, lease) > first)
    assert ends(raw, keys, lease) == pytest.approx(first, abs=9000), (
        "now + 30 s, as the server's clock stood nearly still"
    )
    assert keeper.step() == pytest.approx(10.0)


def test_a_short_lease_wakes_it_earlier(keeper: LeaseRenewer, lease: Lease) -> None:
    assert keeper.step() == 10.0
    keeper.read(hold(lease, keepalive_s=30.0))
    assert not keeper.changed.wait(0), "that one is due after the next turn"
    keeper.read(hold(lease, keepalive_s=0.6))
    assert keeper.changed.wait(0)
    assert keeper.step() == pytest.approx(0.2)


def test_what_a_dead_keeper_held_is_renewed_at_once(
    keeper: LeaseRenewer, lease: Lease, raw: redis.Redis, keys: Keys
) -> None:
    first = ends(raw, keys, lease)
    keeper.read(hold(lease, since=0.0))
    keeper.step()
    assert ends(raw, keys, lease) > first


def test_what_is_over_is_not_renewed(
    keeper: LeaseRenewer, lease: Lease, watch: Watch, raw: redis.Redis, keys: Keys
) -> None:
    first = ends(raw, keys, lease)
    keeper.read(hold(lease))
    keeper.read(line("drop", [lease.token, "unknown"]))
    watch.ahead = 100
    keeper.step()
    assert ends(raw, keys, lease) == first


def test_it_tells_once_of_a_task_that_was_asked_to_stop(
    keeper: LeaseRenewer, lease: Lease, watch: Watch, client: Client, messages: list[str]
) -> None:
    keeper.read(hold(lease))
    client.task(lease.id).cancel()
    for turn in range(1, 4):
        watch.ahead = 11 * turn
        keeper.step()
    assert messages == [f"S {lease.token}"]


def test_it_tells_of_a_lost_lease_and_lets_go_of_it(
    keeper: LeaseRenewer, lease: Lease, watch: Watch, client: Client, raw: redis.Redis, keys: Keys, messages: list[str]
) -> None:
    """MOAB-31"""
    keeper.read(hold(lease))
    raw.zadd(keys.queue("q").pending, {lease.id: 1})
    (newer,) = client.queue("q").reserve(1)
    first = ends(raw, keys, newer)
    for turn in range(1, 4):
        watch.ahead = 11 * turn
        keeper.step()
    assert messages == [f"L {lease.token}"]
    assert ends(raw, keys, newer) == first, "the other attempt's lease is not its business"


def test_a_finished_task_is_let_go_of_in_silence(
    keeper: LeaseRenewer, lease: Lease, watch: Watch, messages: list[str]
) -> None:
    """The report came before the renewal: that is the usual end."""
    keeper.read(hold(lease))
    lease.commit()
    watch.ahead = 11
    keeper.step()
    assert messages == []


def test_many_leases_are_renewed_in_slices(
    keeper: LeaseRenewer, client: Client, watch: Watch, raw: redis.Redis, keys: Keys
) -> None:
    queue = client.queue("q")
    queue.push_many(range(1200))
    leases = queue.reserve(1200, keepalive=30)
    before = dict(raw.zrange(keys.queue("q").pending, 0, -1, withscores=True))
    keeper.read(line("hold", "q", 0.0, 30.0, [lease.token for lease in leases], [lease.id for lease in leases]))
    keeper.step()
    after = dict(raw.zrange(keys.queue("q").pending, 0, -1, withscores=True))
    assert len(after) == 1200
    assert all(after[task_id] > before[task_id] for task_id in before)


def test_leases_that_were_taken_one_by_one_are_renewed_together(
    keeper: LeaseRenewer, client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = client.queue("q")
    queue.push_many(range(700))
    for lease in queue.reserve(700, keepalive=30):
        keeper.read(hold(lease, since=0.0))
    run, exchanges = broker.run_each, []
    monkeypatch.setattr(broker, "run_each", lambda calls: exchanges.append(calls) or run(calls))  # type: ignore[func-returns-value]
    keeper.step()
    assert [len(calls) for calls in exchanges] == [2]
    assert keeper.step() == pytest.approx(10.0)


def test_a_queue_that_fails_costs_no_other_queue_a_lease(
    keeper: LeaseRenewer, client: Client, watch: Watch, raw: redis.Redis, keys: Keys
) -> None:
    """C1: also when the broken queue is due first, at each turn, with more leases than fit in one call."""
    names = [f"n{number}" for number in range(7)]
    for name in ("broken", *names):
        queue = client.queue(name)
        queue.push_many(range(600))
        leases = queue.reserve(600, keepalive=60)
        tokens, ids = [lease.token for lease in leases], [lease.id for lease in leases]
        keeper.read(line("hold", name, watch() - 3.0, 60.0, tokens, ids))
    broken = keys.queue("broken").pending
    raw.delete(broken)
    raw.set(broken, "x")
    first = {name: raw.zrange(keys.queue(name).pending, 0, 0, withscores=True)[0][1] for name in names}
    for turn in range(1, 4):
        watch.ahead = turn * 24
        assert keeper.step() <= 1.0, "a failed call is retried soon"
        ends = {name: raw.zrange(keys.queue(name).pending, 0, 0, withscores=True)[0][1] for name in names}
        assert all(ends[name] > first[name] for name in names), turn
        first = ends


def test_what_failed_is_renewed_when_it_can_be(
    keeper: LeaseRenewer, lease: Lease, watch: Watch, raw: redis.Redis, keys: Keys
) -> None:
    keeper.read(hold(lease, since=0.0))
    pending = keys.queue("q").pending
    before = ends(raw, keys, lease)
    raw.rename(pending, "aside")
    raw.set(pending, "x")
    assert keeper.step() <= 0.2
    assert keeper.step() <= 0.2, "it is not asked for again before its pause is over"
    raw.rename("aside", pending)
    watch.ahead = 0.3
    assert keeper.step() == pytest.approx(10.0)
    assert ends(raw, keys, lease) > before


def test_a_stopped_process_and_a_dead_one_are_suspended() -> None:
    """A stopped process can finish nothing, so its tasks belong to others."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not is_suspended(process.pid)
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: is_suspended(process.pid))
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: not is_suspended(process.pid))
    finally:
        process.kill()
        process.communicate()
    assert is_suspended(process.pid)


def test_this_process_is_not_suspended() -> None:
    assert not is_suspended(os.getpid())


def test_it_is_connected_and_known_to_the_server_before_the_first_lease(
    server: Server, fault_proxy: FaultProxy, keys: Keys, raw: redis.Redis
) -> None:
    """R12: on a slow way each of these would cost a round trip while a short lease runs out."""
    raw.script_flush()
    broker = Broker(Endpoint(fault_proxy.url))
    keeper = LeaseRenewer(broker, keys, print)
    keeper.connect()

    assert fault_proxy.connections == 1
    assert raw.script_exists(load("extend").sha) == [True]

    keeper.connect()
    assert fault_proxy.connections == 1
    broker.close()


def test_it_takes_in_whole_lines_as_far_as_they_have_come() -> None:
    read, write = os.pipe()
    taken: list[bytes] = []
    inbox = Inbox(read, taken.append)
    inbox.catch_up()
    os.write(write, b"one\ntwo\nthr")
    inbox.catch_up()
    assert taken == [b"one", b"two"]
    os.write(write, b"ee\n")
    inbox.catch_up()
    assert taken == [b"one", b"two", b"three"]
    os.close(write)
    with pytest.raises(EOFError):
        inbox.catch_up()
    os.close(read)
