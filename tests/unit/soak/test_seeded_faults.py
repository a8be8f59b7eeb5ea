"""The checker of histories finds faults that are seeded in the scripts, in what a client records on a real server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobrunner import Client, RateLimit, Unique, chain, group, job
from jobrunner.broker.calls import leader
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.current import pinned
from jobrunner.client.lease import Lease
from jobrunner.client.operations.flow_relay import relay
from jobrunner.clock import monotonic
from jobrunner.soak.history import recorder
from jobrunner.soak.history.__main__ import violations
from jobrunner.soak.history.reader import read
from tests.mutation.installed import install, own_text

QUEUE = "line/start"


@pytest.fixture(autouse=True)
def _own_scripts() -> Iterator[None]:
    yield
    install({})


@job(name="recorded.single", queue=QUEUE, unique=True)
def single() -> None:
    """A unique job."""


@job(name="recorded.debounced", queue=QUEUE, unique=Unique(until="started"))
def debounced() -> None:
    """One whose lock lasts until it begins."""


@job(name="recorded.throttled", queue=QUEUE, unique=Unique(until="expired", ttl=3600))
def throttled() -> None:
    """One whose lock lasts for an hour."""


@job(name="recorded.part", queue=QUEUE, max_attempts=1)
def part() -> None:
    """A step of a flow."""


def push_and_reserve(client: Client, *, partition: str | None = None) -> list[Lease]:
    queue = client.queue(QUEUE)
    for n in range(4):
        queue.push(n, id=f"i{n}", partition=partition)
    return queue.reserve(4)


def within_limits(client: Client) -> None:
    client.queue(QUEUE).configure(max_inflight=2)
    push_and_reserve(client)


def within_a_rate(client: Client) -> None:
    client.queue(QUEUE).configure(rate=RateLimit(2, per=3600))
    push_and_reserve(client)


def within_limits_of_a_partition(client: Client) -> None:
    client.queue(QUEUE).configure(max_inflight_per_partition=2)
    push_and_reserve(client, partition="a")


def within_a_rate_of_a_partition(client: Client) -> None:
    client.queue(QUEUE).configure(rate_per_partition=RateLimit(2, per=3600))
    push_and_reserve(client, partition="a")


def in_order(client: Client) -> None:
    push_and_reserve(client)


def fail_and_try_again(client: Client) -> None:
    client.queue(QUEUE).configure(max_attempts=2)
    client.queue(QUEUE).push("x", id="x")
    client.queue(QUEUE).reserve(1)[0].rollback(delay=0)
    for lease in client.queue(QUEUE).reserve(1):
        lease.rollback(delay=0)


def fail_and_wait(client: Client) -> None:
    client.queue(QUEUE).push("x", id="x")
    client.queue(QUEUE).reserve(1)[0].rollback(delay=60)
    client.queue(QUEUE).reserve(1)


def enqueue_a_unique_task_twice(client: Client) -> None:
    with pinned(client):
        single.enqueue()
        single.enqueue()
    client.queue(QUEUE).reserve(2)


def delay_a_unique_task(client: Client) -> None:
    client.queue(QUEUE).reserve(1)
    client.queue(QUEUE).push("x", id="x")
    client.queue(QUEUE).reserve(1)
    with pinned(client):
        single.using(in_=60).enqueue()
    client.queue(QUEUE).reserve(1)


def enqueue_one_that_waits_twice(client: Client) -> None:
    with pinned(client):
        debounced.enqueue()
        debounced.enqueue()
    client.queue(QUEUE).reserve(2)


def enqueue_one_that_ended_twice(client: Client) -> None:
    with pinned(client):
        throttled.enqueue()
        client.queue(QUEUE).commit_many(client.queue(QUEUE).reserve(1))
        throttled.enqueue()


def reserve_late(client: Client) -> None:
    queue = client.queue(QUEUE)
    queue.push("x", id="x", expires_in=0.001)
    until = monotonic() + 0.002
    while monotonic() < until:  # by the clock of the server, which no test sets here
        queue.counts()
    queue.reserve(1)


def reserve_in_time(client: Client) -> None:
    client.queue(QUEUE).push("x", id="x", expires_in=3600)
    client.queue(QUEUE).reserve(1)


def tick_twice(client: Client) -> None:
    queue = keys_of(client).queue(QUEUE)
    for _ in range(2):
        tick = leader.fire(
            queue, "tick", expected="", tick_ms=1000, due_ms=1000.0, epoch=0, task_id="tick-1000", priority=1,
            overlap="allow", schedule="5c", together_ms=1000, fields=["queue", QUEUE, "payload", b"{}"],
        )  # fmt: skip
        broker_of(client).run(tick)
        client.queue(QUEUE).commit_many(client.queue(QUEUE).reserve(1))


def end_one(client: Client, lease: Lease, *, dies: bool = False) -> None:
    lease.rollback() if dies else lease.commit()
    relay(broker_of(client), keys_of(client), tags=["line"])


def end_a_group(client: Client) -> None:
    """A callback may be handed out before the second member ends."""
    with pinned(client):
        group(part.bind(), part.bind(), on_success=part.bind(), on_complete=part.bind(), on_dead=part.bind()).enqueue()
    first, second = client.queue(QUEUE).reserve(2)
    end_one(client, first)
    early = client.queue(QUEUE).reserve(5)
    end_one(client, second)
    for lease in [*early, *client.queue(QUEUE).reserve(5)]:
        lease.commit()


def end_groups_one_after_the_other(client: Client) -> None:
    with pinned(client):
        chain(group(part.bind(), group(part.bind(), part.bind())), group(part.bind(), part.bind())).enqueue()
    for lease in client.queue(QUEUE).reserve(3):
        end_one(client, lease)
        client.queue(QUEUE).reserve(5)


def end_a_group_with_a_dead_step(client: Client) -> None:
    """The step behind it never begins; two of the callbacks do."""
    after = {"on_success": part.bind(), "on_complete": part.bind(), "on_dead": part.bind()}
    with pinned(client):
        group(part.bind(), chain(part.bind(), part.bind()), **after).enqueue()
    first, second = client.queue(QUEUE).reserve(2)
    for lease, dies in ((second, True), (first, False)):
        end_one(client, lease, dies=dies)
        client.queue(QUEUE).commit_many(client.queue(QUEUE).reserve(5))


def cancel_a_flow(client: Client) -> None:
    """The step behind a cancelled one never begins; the callback does."""
    with pinned(client):
        flow = group(part.bind(), chain(part.bind(), part.bind()), on_complete=part.bind()).enqueue()
        (held,) = client.queue(QUEUE).reserve(1)
        flow.cancel()
    early = client.queue(QUEUE).reserve(5)
    end_one(client, held)
    client.queue(QUEUE).commit_many(early)
    client.queue(QUEUE).commit_many(client.queue(QUEUE).reserve(5))


def commit(client: Client) -> None:
    push_and_reserve(client)[0].commit()


def move(client: Client) -> None:
    push_and_reserve(client)[0].move("end")


FAULTS: list[tuple[Callable[[Client], None], str, str, str, str]] = [
    (within_limits, "reserve.lua", "config.max_inflight - redis", "config.max_inflight + 1 - redis", "over the limit"),
    (within_a_rate, "lib/token_bucket.lua", "math.floor(read.level / read.interval)",
     "math.floor(read.level / read.interval) + 1", "over the limit"),
    (within_limits_of_a_partition, "lib/partition_limits.lua", "limits.key_inflight - (",
     "limits.key_inflight + 1 - (", "over the limit"),
    (within_a_rate_of_a_partition, "lib/token_bucket.lua", "math.floor(read.level / read.interval)",
     "math.floor(read.level / read.interval) + 1", "over the limit"),
    (in_order, "enqueue.lua", "'ZADD', waiting, last, id", "'ZADD', waiting, 1e13 - last, id",
     "wrong order"),
    (fail_and_try_again, "fail.lua", "== 'dead' or is_spent(attempts,", "== 'dead' or is_spent(attempts + 1,",
     "attempts miscounted"),
    (fail_and_try_again, "fail.lua", "== 'dead' or is_spent(attempts,", "== 'dead' or is_spent(attempts - 1,",
     "attempts miscounted"),
    (fail_and_wait, "fail.lua", "or now + ARGV[at + 2]", "or now", "handed out early"),
    (enqueue_a_unique_task_twice, "enqueue_unique.lua", "if holder and holder ~= id", "if holder and holder == id",
     "lock held twice"),
    (delay_a_unique_task, "enqueue_unique.lua", "create_task(id, priority, when,", "create_task(id, priority, now,",
     "handed out early"),
    (enqueue_one_that_waits_twice, "enqueue_unique.lua", "if holder and holder ~= id", "if holder and holder == id",
     "lock held twice"),
    (enqueue_one_that_ended_twice, "enqueue_unique.lua", "if lasts == 'expired' or state", "if state",
     "lock held twice"),
    (reserve_late, "lib/dead_tasks.lua", "since + limit > now", "true", "handed out late"),
    (reserve_in_time, "lib/dead_tasks.lua", "since + limit > now", "false", "not where it was put"),
    (tick_twice, "periodic_fire.lua", "if (state[1] or '') ~= expected", "if state[1] == expected", "enqueued twice"),
    (end_a_group, "join_arrive.lua", "rule == 'complete' and ended == total", "rule == 'complete'", "fired early"),
    (end_a_group, "join_arrive.lua", "rule == 'success' and verdict == 'succeeded'",
     "rule == 'success' and succeeded > 0", "fired early"),
    (end_a_group, "join_arrive.lua", "rule == 'dead' and dead > 0", "rule == 'dead'", "fired early"),
    (end_groups_one_after_the_other, "join_arrive.lua", "state[1], tonumber(state[2])",
     "state[1], math.min(tonumber(state[2]), 1)", "fired early"),
    (end_a_group_with_a_dead_step, "join_arrive.lua", "rule == 'success' and verdict == 'succeeded'",
     "rule == 'success' and ended == total", "fired early"),
    (cancel_a_flow, "join_arrive.lua", "rule == 'complete' and ended == total", "rule == 'complete'", "fired early"),
    (commit, "commit.lua", "end_leases(ids, live,", "end_leases(ids, {},", "not where it was put"),
    (move, "move.lua", "end_leases(ids, ended)", "end_leases(ids, {})", "in two places"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("work", "file", "right", "wrong", "kind"), FAULTS, ids=[f"{one[0].__name__}-{one[3]}" for one in FAULTS]
)
def test_a_fault_of_a_script_is_found(
    work: Callable[[Client], None], file: str, right: str, wrong: str, kind: str, folder: Path, client: Client
) -> None:
    assert right in own_text(file)
    install({file: own_text(file).replace(right, wrong)})
    work(client)
    recorder.finish(folder, broker_of(client), keys_of(client))
    assert {found for found, _, _ in violations(read(folder))} == {kind}


@pytest.mark.parametrize("work", dict.fromkeys(one[0] for one in FAULTS))
def test_without_the_fault_there_is_no_violation(
    work: Callable[[Client], None], folder: Path, client: Client
) -> None:
    work(client)
    recorder.finish(folder, broker_of(client), keys_of(client))
    assert not list(violations(read(folder)))
