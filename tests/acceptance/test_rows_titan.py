"""The contract of Titan's message queue, rows TITAN-08 to TITAN-14 and TITAN-19 to TITAN-22, one test each."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import redis

from jobrunner import Client, Item, Job, job
from jobrunner.broker.calls.leases import commit
from jobrunner.broker.keys import Keys
from jobrunner.client.queue import Queue
from jobrunner.errors import InvalidOption, LeaseLost, NotReserved, OutcomeUnknown, ServerError, ServerRefused
from jobrunner.task import new_id
from tests.conftest import Cable, Clock, Server

Audit = Callable[..., dict[str, int]]
LEASE_S = 1.0
EMPTY = {"waiting": 0, "scheduled": 0, "pending": 0, "dead": 0}


@pytest.fixture
def queue(client: Client, clock: Clock) -> Queue:
    """A queue on a clock that stands still."""
    clock.set()
    return client.queue("t")


@pytest.fixture(autouse=True)
def conserved(queue: Queue, audit: Audit) -> Any:
    """Every test ends with the books of its queue in order."""
    yield
    audit(queue.name)


def take(queue: Queue, count: int = 1000) -> list[Any]:
    """Payloads in the order they are handed out, each committed."""
    leases = queue.reserve(count)
    assert all(lease.commit() for lease in leases)
    return [lease.payload for lease in leases]


def test_a_priority_is_0_1_or_2_and_1_when_it_is_missing(queue: Queue, client: Client) -> None:
    """TITAN-08: the default is documented as 1; everything else is refused at the push, and nothing is written."""
    ids = queue.push_many([Item(number, priority=number) for number in (0, 1, 2)] + [Item("none")])
    assert [client.task(task_id).record().priority for task_id in ids] == [0, 1, 2, 1]
    for wrong in (3, -1, 1.5, 1.0, True, False, "1"):
        with pytest.raises(InvalidOption, match="priority"):
            queue.push("bad", priority=wrong)
        with pytest.raises(InvalidOption, match="priority"):
            queue.push_many(["good", Item("bad", priority=wrong)])
        with pytest.raises(InvalidOption, match="priority"):
            job(name="RowsWrongPriority", priority=wrong)(type("RowsWrongPriority", (Job,), {}))  # type: ignore[arg-type]
    assert queue.counts()["waiting"] == 4
    assert take(queue) == [2, 1, "none", 0]


def test_a_higher_priority_always_goes_first(queue: Queue, clock: Clock) -> None:
    """TITAN-09: also when it was delayed and becomes due, when it is a retry, and for as long as there is one."""
    queue.push_many([Item("lo", priority=0), Item("mid"), Item("hi", priority=2), Item("hi2", priority=2)])
    assert take(queue) == ["hi", "hi2", "mid", "lo"]

    queue.push("lo", priority=0)
    for number in range(50):
        queue.push(number, priority=2)
        clock.advance(60_000)
        assert take(queue, 1) == [number]

    queue.push("delayed hi", priority=2, in_=5)
    queue.push("failing hi", priority=2)
    (lease,) = queue.reserve()
    lease.rollback(delay=10)
    clock.advance(60_000)
    queue.push("mid")
    assert take(queue) == ["delayed hi", "failing hi", "mid", "lo"]


@pytest.mark.parametrize("priority", [0, 1, 2])
def test_one_priority_is_first_in_first_out(queue: Queue, clock: Clock, priority: int) -> None:
    """TITAN-10: 500 of one call, then 500 single calls in the same microsecond, then some after the clock went back."""
    queue.push_many([Item(number, priority=priority) for number in range(500)])
    for number in range(500, 1000):
        queue.push(number, priority=priority)
    clock.advance(-5000)
    queue.push_many([Item(number, priority=priority) for number in range(1000, 1100)])
    assert take(queue, 1100) == list(range(1100))


def test_a_restored_job_keeps_its_place(queue: Queue, clock: Clock) -> None:
    """TITAN-11: [A, B, C], A reserved, B reserved and deleted, A times out: A, C; and so do many at once."""
    queue.push_many(["A", "B", "C"])
    (a,) = queue.reserve(keepalive=LEASE_S)
    (b,) = queue.reserve(keepalive=LEASE_S)
    assert (a.payload, b.payload) == ("A", "B")
    assert queue.delete(b.id)
    clock.advance(LEASE_S * 1000)
    queue.push("D")
    assert take(queue) == ["A", "C", "D"]

    queue.push_many(range(300))
    assert len(queue.reserve(200, keepalive=LEASE_S)) == 200
    clock.advance(LEASE_S * 1000)
    queue.push("behind")
    queue.push("hi", priority=2)
    assert take(queue) == ["hi", *range(300), "behind"]


def test_delete_removes_a_reserved_job_for_good(
    queue: Queue, clock: Clock, client: Client, raw: redis.Redis, keys: Keys
) -> None:
    """TITAN-12: it is not seen again in three times its lease."""
    queue.push("X")
    (lease,) = queue.reserve(keepalive=LEASE_S)
    assert queue.delete(lease.id) is True
    assert not raw.exists(keys.queue("t").task(lease.id))
    for _ in range(30):
        clock.advance(LEASE_S * 100)
        assert queue.reserve() == []
        assert queue.counts() == EMPTY
    assert queue.totals()["succeeded"] == 1


def test_delete_of_a_job_that_nobody_holds_is_an_error(queue: Queue, clock: Clock) -> None:
    """TITAN-13: never reserved, over, delayed, dead; and the first holder cannot take it from the second."""
    x = queue.push("X")
    with pytest.raises(NotReserved):
        queue.delete(x)
    assert queue.counts()["waiting"] == 1

    (first,) = queue.reserve(keepalive=LEASE_S)
    clock.advance(LEASE_S * 1000)
    with pytest.raises(NotReserved):
        queue.delete(x)
    with pytest.raises(NotReserved):
        first.commit()
    (second,) = queue.reserve(keepalive=LEASE_S)
    with pytest.raises(LeaseLost):
        first.commit()
    assert (second.id, second.payload) == (x, "X")

    second.rollback(delay=10)
    with pytest.raises(NotReserved):
        queue.delete(x)
    assert queue.counts()["scheduled"] == 1

    y = queue.push("Y", max_attempts=1)
    (lease,) = queue.reserve()
    lease.rollback()
    with pytest.raises(NotReserved):
        queue.delete(y)
    assert queue.counts() == EMPTY | {"scheduled": 1, "dead": 1}


def test_delete_of_a_job_that_does_not_exist_succeeds(queue: Queue, clock: Clock) -> None:
    """TITAN-14: True for what it removed, False for what was gone: deleted, unknown, committed, trimmed from dead."""
    queue.push("X")
    (lease,) = queue.reserve()
    assert [queue.delete(lease.id), queue.delete(lease.id), queue.delete(lease.id)] == [True, False, False]
    assert lease.commit() is False
    assert queue.delete(new_id("t")) is False
    assert queue.delete("an-id-of-mine") is False

    queue.push("Y")
    (lease,) = queue.reserve()
    assert lease.commit() is True
    assert queue.delete(lease.id) is False

    queue.configure(dead_ttl=2)
    z = queue.push("Z", max_attempts=1)
    queue.reserve()[0].rollback()
    clock.advance(2001)
    assert queue.counts() == EMPTY
    assert queue.delete(z) is False


def test_equal_delays_come_out_once_each_and_in_the_order_of_their_enqueueing(queue: Queue, clock: Clock) -> None:
    """TITAN-19: the contract asks for no order; ours is due time, then order of enqueueing."""
    queue.push_many([Item(number, in_=5) for number in range(600)])
    for number in range(600, 700):
        queue.push(number, in_=5)
    queue.push("sooner", in_=4.999)
    clock.advance(4998)
    assert queue.reserve() == []
    clock.advance(10)
    handed_out = [payload for _ in range(8) for payload in take(queue, 100)]
    assert len(handed_out) == len(set(handed_out)) == 701
    assert handed_out == ["sooner", *range(700)]


def test_reserve_takes_from_the_front_for_a_time(queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys) -> None:
    """TITAN-20: an empty queue gives no job and no error, and asking one that was never used writes nothing."""
    assert queue.reserve() == []
    assert queue.reserve(50) == []
    assert queue.counts() == EMPTY
    assert list(raw.scan_iter()) == []

    pushed = queue.push_many(["A", "B", "C"])
    now_ms = clock.ms
    assert now_ms is not None
    leases = queue.reserve(2, keepalive=LEASE_S)
    assert [(lease.id, lease.payload) for lease in leases] == [(pushed[0], "A"), (pushed[1], "B")]
    for lease in leases:
        assert lease.deadline.timestamp() * 1000 == now_ms + LEASE_S * 1000
        assert raw.zscore(keys.queue("t").pending, lease.id) == now_ms + LEASE_S * 1000
    assert take(queue) == ["C"]
    assert queue.reserve() == []


def test_no_job_is_lost_when_a_reserve_is_cut_off(
    queue: Queue, clock: Clock, cable: Cable, keys: Keys, audit: Audit
) -> None:
    """TITAN-21: 5 000 jobs, the line cut at a random byte of the request or of the reply in half of all reserves."""
    chance = random.Random(21)
    for start in range(0, 5000, 1000):
        queue.push_many(range(start, start + 1000))
    queue.configure(max_attempts=0)
    handed_out: list[int] = []
    cuts = 0
    with Client(cable.url, keys.prefix, now_ms=clock, patience=0) as cut_off:
        while any(cut_off.queue("t").counts().values()):
            cable.cut_request, cable.cut_reply = chance.choice(
                [(None, None), (chance.randrange(400), None), (None, 0), (None, chance.randrange(25_000))]
            )
            try:
                leases = cut_off.queue("t").reserve(100, keepalive=LEASE_S)
            except (OutcomeUnknown, ServerError):
                cuts += 1
                clock.advance(LEASE_S * 1000)
                leases = []
            cable.cut_request = cable.cut_reply = None
            reports = [(lease.id, lease.token, 0, "succeeded", b"") for lease in leases]
            assert set(queue.broker.run(commit(queue.keys, reports))) <= {"ok"}
            handed_out += [lease.payload for lease in leases]
    assert cuts > 20
    assert sorted(handed_out) == list(range(5000))
    assert queue.totals()["succeeded"] == 5000
    assert audit("t") == EMPTY


class Refusal:
    """A server that refuses a reserve half way, in one of several manners."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self.raw = server.connect()
        self.raw.acl_setuser("limited", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"])
        self._limited = f"unix://limited:pw@{server.socket}"
        self.keys = Keys("refused")
        self.client = Client(server.url, "refused", now_ms=clock)
        self.limited = Client(self._limited, "refused", now_ms=clock)

    def deny(self, command: str) -> None:
        """The limited user may not use that command, neither by itself nor in a script."""
        self.raw.execute_command("ACL", "SETUSER", "limited", f"-{command}")

    def allow(self, command: str) -> None:
        """It may again."""
        self.raw.execute_command("ACL", "SETUSER", "limited", f"+{command}")

    def close(self) -> None:
        """Ends the connections."""
        for one in (self.client, self.limited, self.raw):
            one.close()


def test_after_a_failed_reservation_the_job_can_be_got_by_a_later_one(
    start_server: Callable[..., Server], clock: Clock
) -> None:
    """TITAN-22: an ACL that denies one command of the script after another; a server at its maxmemory."""
    clock.set()
    refusal = Refusal(start_server(), clock)
    try:
        queue = refusal.client.queue("t")
        for command in ("hmget", "zrange", "zrangebyscore", "zcard", "zadd", "zremrangebyrank"):
            queue.push_many(range(5))
            refusal.deny(command)
            with pytest.raises(ServerRefused):
                refusal.limited.queue("t").reserve(5, keepalive=LEASE_S)
            refusal.allow(command)
            clock.advance(LEASE_S * 1000)
            assert take(queue) == list(range(5)), f"after {command} was denied"
            assert queue.counts() == EMPTY, f"after {command} was denied"

        queue.push_many(range(5))
        refusal.raw.config_set("maxmemory", 1)
        try:
            held = queue.reserve(5, keepalive=LEASE_S)
        except ServerRefused:
            held = []
        refusal.raw.config_set("maxmemory", 0)
        clock.advance(LEASE_S * 1000)
        assert len(held) in (0, 5)
        assert take(queue) == list(range(5))
        totals = queue.totals()
        assert (totals["enqueued"], totals["succeeded"]) == (35, 35)
        assert queue.counts() == EMPTY
    finally:
        refusal.close()
