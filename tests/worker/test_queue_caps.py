"""A cap on one queue leaves slots to others; a worker says when one queue holds all of them."""

import threading
from datetime import timedelta

import pytest

from jobrunner import Client, RateLimit, Worker, job, queue
from jobrunner.cli.work import cap_of
from jobrunner.client.current import pinned
from jobrunner.errors import InvalidOption
from tests.support.waiting import wait_for


@pytest.fixture
def slow():
    """A job that runs until the test lets it, and the number of those that run."""
    goes_on, running, most = threading.Semaphore(0), [], []

    @job(queue="slow", name="capped_slow")
    def hold(n: int) -> None:
        running.append(n)
        most.append(len(running))
        assert goes_on.acquire(timeout=60)
        running.remove(n)

    @job(queue="fast", name="capped_fast")
    def quick() -> int:
        return 1

    hold.go, hold.running, hold.most, hold.quick = goes_on, running, most, quick
    yield hold
    goes_on.release(100)


def enqueue(slow, count):
    for n in range(count):
        slow.enqueue(n)


@pytest.mark.parametrize("declared", [True, False])
def test_a_capped_queue_holds_no_more_and_others_run(current, start, slow, declared):
    if declared:
        queue("slow", max_per_worker=2)
    enqueue(slow, 8)
    start(queues=["slow", "fast"], concurrency=4, **({} if declared else {"max_per_queue": {"slow": 2}}))
    wait_for(lambda: len(slow.running) == 2)
    for _ in range(20):
        assert slow.quick.enqueue().result(timeout=30) == 1

    assert current.queue("slow").counts()["pending"] == 2
    slow.go.release(8)
    wait_for(lambda: not any(current.queue("slow").counts().values()))
    assert max(slow.most) == 2


def test_a_capped_queue_that_is_idle_begins_at_once_when_a_task_comes(current, start, slow):
    start(queues=["slow", "fast"], concurrency=4, max_per_queue={"slow": 1}, poll=60)
    slow.go.release(5)
    for n in range(5):
        slow.enqueue(n).result(timeout=20)


def test_an_early_acknowledged_task_counts_for_the_cap_of_its_worker_and_for_no_limit_of_the_server(current, start):
    """As docs/retries.md says: for the server it has ended."""
    goes_on, running, most = threading.Semaphore(0), [], []

    @job(queue="early", name="capped_early", ack="early", unique=True, partition_by="tenant")
    def hold(n: int, tenant: str = "t") -> None:
        running.append(n)
        most.append(len(running))
        assert goes_on.acquire(timeout=60)
        running.remove(n)

    current.queue("early").configure(max_inflight=1, max_inflight_per_partition=1)
    try:
        first, *_ = [hold.enqueue(n) for n in range(3)]
        start(queues=["early"], concurrency=4, max_per_queue={"early": 2})
        wait_for(lambda: len(running) == 2)
        assert first.cancel() is False
        assert hold.enqueue(0).is_new
        goes_on.release(4)
        wait_for(lambda: current.queue("early").totals().get("succeeded") == 4 and not running)
    finally:
        goes_on.release(100)
    assert max(most) == 2


def test_a_cap_costs_no_token_of_a_rate(server, keys, raw, slow):
    """Two tasks came with a hint. Both went back, as one of them was above the cap, and their tokens were lost."""
    slow.go.release(4)
    with Client(server.url, keys.prefix) as client, pinned(client):  # tasks come with hints by the server's clock alone
        client.queue("slow").configure(rate=RateLimit(4, per=timedelta(hours=1)))
        worker = Worker(queues=["slow"], client=client, max_per_queue={"slow": 1}, poll=60)
        worker.start()
        try:
            wait_for(lambda: raw.info("clients")["blocked_clients"])
            for handle in slow.enqueue_many([slow.bind(n) for n in range(4)]):
                handle.result(timeout=20)
        finally:
            worker.stop(grace=0)


def test_the_hints_of_a_full_queue_reach_another_worker(current, start, slow):
    start(queues=["slow"], concurrency=4, max_per_queue={"slow": 1}, poll=60)
    slow.enqueue(0)
    wait_for(lambda: len(slow.running) == 1)
    start(queues=["slow"], concurrency=4, poll=60)
    for n in (1, 2, 3):
        slow.enqueue(n)
        wait_for(lambda n=n: len(slow.running) == n + 1)


def test_a_worker_says_that_one_queue_holds_all_slots_while_others_wait(current, start, slow):
    enqueue(slow, 2)
    start(queues=["slow", "fast"], concurrency=2, heartbeat=0.2)
    wait_for(lambda: len(slow.running) == 2)
    wait_for(lambda: wait_for(current.workers)[0].executing == 2)
    assert wait_for(current.workers)[0].held_by == "", "nothing waits in the other queue"
    quick = slow.quick.enqueue()
    wait_for(lambda: wait_for(current.workers)[0].held_by == "slow")

    current.queue("fast").pause()
    wait_for(lambda: wait_for(current.workers)[0].held_by == "")
    current.queue("fast").resume()
    slow.go.release(2)
    assert quick.result(timeout=30) == 1
    wait_for(lambda: wait_for(current.workers)[0].held_by == "")


def test_a_cap_for_a_queue_that_is_not_served_is_refused(current, start):
    with pytest.raises(InvalidOption, match=r"max_per_queue names 'slwo'.*it serves slow"):
        start(queues=["slow"], max_per_queue={"slwo": 1})


@pytest.mark.parametrize("cap", [{"slow": 0}, {"slow": "4"}, ["slow"], {"slow": True}])
def test_a_wrong_cap_is_refused(current, start, cap):
    with pytest.raises(InvalidOption, match="max_per_queue"):
        start(queues=["slow"], max_per_queue=cap)
    with pytest.raises(InvalidOption, match="max_per_worker=0"):
        queue("slow", max_per_worker=0)


def test_the_option_of_the_command_is_read():
    assert cap_of("a:b=4") == ("a:b", 4)


@pytest.mark.parametrize("text", ["slow", "slow=", "slow=x", "slow=0", "slow=-1", "slow:4", "slow=1e3", "slow=٣"])
def test_a_malformed_option_is_refused(cli, text):
    said = cli("work", "json", "--max-per-queue", text)
    assert said.code == 2
    assert "write NAME=N, such as thumbnails=4" in said.err
