"""The outcome of a task as its handle reports it. One worker serves all tests of this file."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from jobrunner import Backoff, Cancel, Client, Fail, Job, Retry, Snooze, Worker, job
from jobrunner.client.current import forget, use
from jobrunner.errors import TaskCancelled, TaskFailed, TaskGone, TaskTimeout, UsageError
from jobrunner.task import Task, new_id
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.xdist_group("outcomes")
AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)
acts: dict[str, Callable[[Job], Any]] = {}
seen: list[tuple[str, int, int]] = []


@job(name="outcomes.act", queue="outcomes", max_attempts=3, backoff=AT_ONCE, keepalive=5)
class Act(Job):
    """Does what the test says."""

    how: str

    def run(self) -> Any:
        seen.append((self.task.id, self.task.attempt, self.task.retry_count))
        return acts[self.how](self)


@job(name="outcomes.brief", queue="outcomes", timeout=0.1, max_attempts=1)
def brief() -> None:
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        pass


@job(name="outcomes.brief_async", queue="outcomes", timeout=0.1, max_attempts=1)
async def brief_async() -> None:
    await asyncio.sleep(30)


@job(name="outcomes.unkept", queue="outcomes", result_ttl=0)
def unkept() -> int:
    return 1


@job(name="outcomes.add", queue="outcomes")
def add(x: int, y: int = 1) -> int:
    return x + y


@job(name="outcomes.expiring", queue="unserved", expires_in=0.05)
def expiring() -> None: ...


@job(name="outcomes.unserved", queue="unserved")
def unserved() -> None: ...


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    """One client and one worker for the file; no test here empties the server."""
    with Client(server.url, "outcomes") as made:
        use(made)
        worker = Worker(queues=["outcomes"], client=made, unknown_grace=0)
        worker.start()
        yield made
        worker.stop(grace=0)
        forget()
        with server.connect() as raw:
            raw.flushall()


@pytest.fixture(autouse=True)
def _fresh(client: Client) -> Iterator[None]:
    yield
    acts.clear()
    seen.clear()


def once(first: Callable[[Job], Any]) -> Callable[[Job], Any]:
    """Acts so the first time, and returns the number of the attempt after that."""
    left = [first]

    def act(own: Job) -> Any:
        return left.pop()(own) if left else own.task.attempt

    return act


def throw(error: BaseException) -> Callable[[Job], Any]:
    def act(_: Job) -> Any:
        raise error

    return act


def enqueue(how: str, act: Callable[[Job], Any]) -> Any:
    acts[how] = act
    return Act(how=how).enqueue()


def test_a_result_is_waited_for() -> None:
    assert add.enqueue(1, y=2).result(timeout=10) == 3


def test_a_retry_is_another_attempt() -> None:
    task = enqueue("retry", once(lambda _: Retry(in_=0.01)))
    assert task.result(timeout=10) == 2
    assert [(attempt, failures) for _, attempt, failures in seen] == [(1, 0), (2, 1)]


def test_a_snooze_spends_no_attempt() -> None:
    task = enqueue("snooze", once(lambda _: Snooze(in_=timedelta(milliseconds=10))))
    assert task.result(timeout=10) == 1
    assert [(attempt, failures) for _, attempt, failures in seen] == [(1, 0), (1, 0)]
    assert (task.attempts, task.retry_count, task.error) == (1, 0, "")


def test_a_task_may_snooze_more_often_than_it_may_fail() -> None:
    left = iter([Snooze(in_=0)] * 8)
    assert enqueue("snoozes", lambda own: next(left, own.task.attempt)).result(timeout=10) == 1


def test_a_failure_for_good_is_dead_at_once() -> None:
    task = enqueue("fail", lambda _: Fail("no such address", retry=False))
    with pytest.raises(TaskFailed, match="no such address"):
        task.result(timeout=10)
    assert task.attempts == 1
    assert task.state == "dead"


def test_a_task_is_dead_after_its_attempts() -> None:
    """MOSQ-32"""
    task = enqueue("always", throw(ValueError("never")))
    with pytest.raises(TaskFailed, match="ValueError: never"):
        task.result(timeout=10)
    assert [attempt for _, attempt, _ in seen] == [1, 2, 3]
    assert "Traceback" in task.error


def test_a_dead_task_can_be_requeued_and_counts_anew() -> None:
    task = enqueue("requeued", throw(ValueError("at first")))
    with pytest.raises(TaskFailed):
        task.result(timeout=10)
    acts["requeued"] = lambda own: own.task.attempt
    assert task.requeue()
    assert task.result(timeout=10) == 1
    assert not task.requeue()


def test_a_job_can_cancel_its_task() -> None:
    task = enqueue("cancel", throw(Cancel("not wanted any more")))
    with pytest.raises(TaskCancelled):
        task.result(timeout=10)
    assert task.state == "cancelled"


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_no_exception_of_a_job_ends_the_worker(error: BaseException) -> None:
    """MOAB-32"""
    assert enqueue("exit", once(throw(error))).result(timeout=10) == 2
    assert enqueue("exit", once(lambda _: sys.exit())).result(timeout=10) == 2


@pytest.mark.parametrize("result", [(n for n in range(2)), object(), {"a": object()}])
def test_a_result_that_cannot_be_stored_is_dead_with_the_reason(result: Any) -> None:
    """MOAB-32"""
    task = enqueue("unstorable", lambda _: result)
    with pytest.raises(TaskFailed, match="cannot be stored as JSON"):
        task.result(timeout=10)
    assert task.attempts == 1


def test_an_error_text_that_is_no_utf8_is_reported() -> None:
    """Otherwise it would block every later report."""
    task = enqueue("surrogate", throw(Fail("\udcff", retry=False)))
    with pytest.raises(TaskFailed, match="udcff"):
        task.result(timeout=10)
    assert add.enqueue(1).result(timeout=10) == 2


def test_an_unknown_job_fails_by_the_queues_policy_and_is_dead_with_the_reason(client: Client) -> None:
    """MOSQ-09"""
    task = client.enqueue(Task(id=new_id("outcomes"), queue="outcomes", type="Nope", payload=b"{}", max_attempts=1))
    with pytest.raises(TaskFailed, match="this worker knows no job 'Nope'"):
        task.result(timeout=10)


@pytest.mark.parametrize("payload", [b"", b"\xff\x00", b"[1]", b'{"how": 3}', b'{"nohow": "x"}'])
def test_a_payload_that_cannot_be_read_is_dead_with_the_reason(client: Client, payload: bytes) -> None:
    task = client.enqueue(Task(id=new_id("outcomes"), queue="outcomes", type="outcomes.act", payload=payload))
    with pytest.raises(TaskFailed, match="cannot read its payload"):
        task.result(timeout=10)
    assert task.attempts == 1


@pytest.mark.parametrize("late", [brief, brief_async])
def test_an_attempt_that_runs_too_long_fails(late: Any) -> None:
    with pytest.raises(TaskFailed, match="AttemptTimeout: the attempt ran longer"):
        late.enqueue().result(timeout=10)


def test_a_result_that_is_not_kept_is_gone() -> None:
    task = unkept.enqueue()
    wait_for(lambda: not task.exists())
    with pytest.raises(TaskGone):
        task.result(timeout=30)


def test_a_result_that_is_not_kept_reaches_who_waits_for_it() -> None:
    assert unkept.using(in_=0.1).enqueue().result(timeout=10) == 1


def test_waiting_for_a_result_has_an_end_and_the_task_goes_on() -> None:
    may_end = threading.Event()
    task = enqueue("gated", lambda _: may_end.wait(30))
    with pytest.raises(TaskTimeout):
        task.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        task.result(timeout=0)
    may_end.set()
    assert task.result(timeout=10) is True


def test_a_waiting_and_a_scheduled_task_can_be_cancelled() -> None:
    for task in (unserved.enqueue(), unserved.using(in_=60).enqueue()):
        assert task.cancel()
        assert task.record().state == "cancelled"
        with pytest.raises(TaskCancelled):
            task.result(timeout=30)
        assert not task.cancel(), "it is cancelled already"


def test_a_task_that_is_cancelled_by_its_waiter_is_told_to_another_waiter() -> None:
    task = unserved.enqueue()
    found: list[BaseException] = []

    def look() -> None:
        try:
            task.result(timeout=10)
        except BaseException as error:
            found.append(error)

    waiter = threading.Thread(target=look)
    waiter.start()
    task.cancel()
    waiter.join()
    assert isinstance(found[0], TaskCancelled)


def test_a_task_that_was_not_begun_in_time_is_not_run(client: Client) -> None:
    """MOABX-05"""
    task = expiring.enqueue()
    wait_for(lambda: time.time() > task.record().enqueue_time.timestamp() + 0.06)
    assert client.queue("unserved").reserve(10) == []
    with pytest.raises(TaskFailed, match="expired"):
        task.result(timeout=30)


def test_progress_can_be_read_while_the_task_runs() -> None:
    done: list[int] = []

    def act(own: Job) -> str:
        own.progress(1, 4, "a quarter")
        while not done:
            time.sleep(0.005)
        return "done"

    task = enqueue("progress", act)
    wait_for(lambda: b'"a quarter"' in task.record().fields.get("progress", b""))
    done.append(1)
    assert task.result(timeout=10) == "done"


def test_many_tasks_are_sent_in_order_and_give_their_results_in_order() -> None:
    tasks = add.enqueue_many([add.bind(n, y=n) for n in range(1500)])
    assert [task.result(timeout=10) for task in tasks] == [2 * n for n in range(1500)]
    assert [task.id for task in tasks] == sorted(task.id for task in tasks)


def test_tasks_are_sent_and_awaited_in_an_event_loop() -> None:
    async def send() -> list[Any]:
        tasks = await asyncio.gather(add.aenqueue(1), add.aenqueue(2), Act(how="awaited").aenqueue())
        return [await task.result(timeout=10) for task in tasks]

    acts["awaited"] = lambda own: "awaited"
    assert asyncio.run(send()) == [2, 3, "awaited"]


def test_metadata_is_shared_by_all_runs_of_a_job() -> None:
    def act(own: Job) -> Any:
        own.metadata.set("last", own.task.id)
        return own.metadata.increment("runs"), own.metadata.get("last"), sorted(own.metadata.all())

    tasks = [enqueue("metadata", act) for _ in range(3)]
    found = [task.result(timeout=10) for task in tasks]
    assert sorted(runs for runs, _, _ in found) == [1, 2, 3]
    assert {last for _, last, _ in found} <= {task.id for task in tasks}
    assert found[0][2] == ["last", "runs"]


def test_an_increment_that_cannot_be_is_an_error_that_names_the_field() -> None:
    def act(own: Job) -> Any:
        own.metadata.set("last", "text")
        own.progress(1, 2, note="a\udcff")  # such a name of a file fails no attempt
        for access in (own.metadata.get, own.metadata.increment, lambda field: own.metadata.set(field, 1)):
            with pytest.raises(UsageError, match="give a text without lone surrogates"):
                access("a\udcff")
        said = []
        for field, by in (("runs", 2.5), ("runs", 2**63), ("last", 1)):
            with pytest.raises(UsageError) as caught:
                own.metadata.increment(field, by)  # type: ignore[arg-type]
            said.append(str(caught.value))
        return said

    fraction, large, text = enqueue("metadata-errors", act).result(timeout=10)
    assert fraction.startswith("increment('runs'): by=2.5: give a whole number from")
    assert large.startswith("increment('runs'): by=9223372036854775808: give a whole number from")
    assert text == "increment('last'): the field has a value that is no whole number; set it"


def test_the_task_as_its_job_sees_it(client: Client) -> None:
    def act(own: Job) -> Any:
        task = own.task
        return [
            task.id,
            task.queue,
            task.attempt,
            task.retry_count,
            task.max_attempts,
            task.deadline.tzinfo is not None,
        ]

    task = enqueue("self", act)
    assert task.result(timeout=10) == [task.id, "outcomes", 1, 0, 3, True]


@job(name="outcomes.picky", queue="outcomes", retry_on=ConnectionError, backoff=Backoff(base=0.01, factor=1))
def picky() -> None:
    acts["picky"](None)  # type: ignore[arg-type]


def test_an_error_that_is_not_worth_it_is_dead_at_once() -> None:
    acts["picky"] = throw(ValueError("for good"))
    task = picky.enqueue()
    with pytest.raises(TaskFailed, match="for good"):
        task.result(timeout=10)
    assert task.attempts == 1

    left = [throw(ConnectionError("busy"))]
    acts["picky"] = lambda own: left.pop()(own) if left else None
    task = picky.enqueue()
    assert task.result(timeout=10) is None
    assert task.record().attempts == 2


@job(name="outcomes.plain", queue="outcomes")
def plain() -> None:
    acts["plain"](None)  # type: ignore[arg-type]


def test_a_job_without_a_backoff_of_its_own_has_that_of_its_queue(client: Client) -> None:
    """The worker may use the queue's previous settings for a moment."""
    queue = client.queue("outcomes")
    queue.configure(backoff=Backoff(base=3600, cap=3600, jitter=0))
    acts["plain"] = throw(ValueError("always"))

    def delay_s() -> float:
        task = plain.enqueue()
        wait_for(lambda: task.record().state == "scheduled")
        due = task.record().when
        assert due is not None
        return (due - task.record().enqueue_time).total_seconds()

    try:
        wait_for(lambda: 3500 < delay_s() < 3700)
    finally:
        queue.configure(backoff=None)
        queue.purge("scheduled")
