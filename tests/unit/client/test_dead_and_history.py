"""Dead items put back and finished ones replayed, while others change or a reply is lost."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from jobrunner import Client, Job, Worker, chain, group, job
from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.current import pinned
from jobrunner.client.operations import dead_and_history
from jobrunner.client.operations.operation import run_operation
from jobrunner.errors import UsageError
from jobrunner.jobs.registry import forget
from tests.reliability.proxy import Proxy


def die(client: Client, count: int) -> list[str]:
    queue = client.queue("mail")
    queue.configure(max_attempts=1)
    ids = queue.push_many(range(count))
    queue.rollback_many(queue.reserve(count), delay=0)
    return sorted(ids)


def test_dead_items_that_expire_meanwhile_keep_no_other_from_being_put_back(
    client: Client, broker: Broker, raw: redis.Redis, mail: QueueKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where more have one instant of death than fit into a page."""
    monkeypatch.setattr(dead_and_history, "_READ_AT_ONCE", 20)
    ids = die(client, 100)
    died_at = raw.zscore(mail.dead, ids[0])
    raw.zadd(mail.dead, {one: died_at + n // 50 for n, one in enumerate(ids)})
    run_many, rounds = broker.run_many, itertools.count(1)

    def run_and_expire(calls: Any) -> list[Any]:
        found = run_many(calls)
        if next(rounds) == 4:  # the first 50 were read, and 10 of the others
            raw.zremrangebyrank(mail.dead, 0, 49)
        return found

    monkeypatch.setattr(broker, "run_many", run_and_expire)

    assert run_operation(broker, dead_and_history.dead_ids(mail)) == ids


@pytest.mark.parametrize("rate", [None, 10.0])
def test_what_was_put_back_counts_although_the_reply_was_lost(
    client: Client, proxy: Proxy, clock: Any, raw: redis.Redis, mail: QueueKeys, rate: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With a rate, the tasks of the next calls are due at the same times as without the loss."""
    monkeypatch.setattr(dead_and_history, "_AT_ONCE", 20)
    die(client, 50)
    with Client(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=30) as cut_off:
        proxy.lose_replies("requeue", times=1)
        assert cut_off.queue("mail").requeue_dead(rate=rate) == 50

    assert client.queue("mail").counts()["dead"] == 0
    if rate is not None:
        scores = [score for _, score in raw.zrange(mail.scheduled, 0, -1, withscores=True)]
        # A busy machine takes its time for a call; one that counted from the beginning again would be two seconds off.
        assert scores[-1] - scores[0] == pytest.approx(4_900, abs=1_500)


@pytest.fixture
def total(client: Client) -> Iterator[Any]:
    with pinned(client):

        @job(name="dead_and_history.one", queue="mail")
        def one(n: int) -> int:
            return n

        @job(name="dead_and_history.total", queue="mail")
        class Total(Job):
            def run(self) -> int:
                return sum(self.task.results)

        yield lambda steps: chain(group(*map(one.bind, range(steps))), Total())
    forget("dead_and_history.one")
    forget("dead_and_history.total")


@pytest.mark.parametrize("steps", [2, 1001])
def test_a_step_of_a_flow_is_not_replayed_without_the_results_that_it_was_given(
    client: Client, total: Any, steps: int
) -> None:
    """Neither where they are so many that the join gathered them in parts."""
    queue = client.queue("mail")
    queue.configure(history=3600)
    flow = total(steps).enqueue()
    Worker(queues=["mail"], client=client, concurrency=4).run(burst=True)
    assert flow.result(timeout=10) == sum(range(steps))
    by_job = {record.type: record.id for record in (client.task(one.id).record() for one in queue.history(limit=2))}

    with pytest.raises(UsageError, match=r"was given the results of the steps before it .*; enqueue the flow again"):
        queue.replay(by_job["dead_and_history.total"])
    assert queue.replay(by_job["dead_and_history.one"])
    assert queue.counts()["waiting"] == 1
