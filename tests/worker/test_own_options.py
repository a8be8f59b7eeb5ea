"""Options of single tasks on a real worker: a timeout, a result_ttl, tries, an expiry and headers of their own."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from jobrunner import Client, Job, chain, current_task, job
from jobrunner.client.client import keys_of
from jobrunner.jobs.registry import forget
from tests.worker import own_options_jobs as jobs

Run = Callable[..., Any]


@job(name="own.note", queue="own", result_ttl=60)
class Note(Job):
    text: str = ""

    def run(self) -> Any:
        return [dict(self.task.headers), self.task.max_attempts]


@job(name="own.fail", queue="own", max_attempts=5)
def fail() -> None:
    raise ValueError("as always")


@pytest.fixture(autouse=True, scope="module")
def forget_jobs() -> Iterator[None]:
    yield
    for name in ("own.note", "own.fail", "own.spin", "own.rest", "own.stubborn"):
        forget(name)


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("late", [jobs.spin, jobs.rest], ids=["function", "coroutine"])
def test_a_timeout_of_its_own_ends_an_attempt(executor: str, late: Any, current: Client, run: Run) -> None:
    task = late.using(timeout=0.2, max_attempts=1).enqueue()

    run(queues=["own"], executor=executor, modules=["tests.worker.own_options_jobs"])

    assert task.state == "dead"
    assert task.error.startswith("AttemptTimeout: the attempt ran longer than timeout=0.2 s of this task of job 'own.")


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("how", ["awaits", "blocks"])
def test_a_coroutine_that_catches_the_end_of_its_time_has_failed(
    executor: str, how: str, current: Client, run: Run
) -> None:
    task = jobs.stubborn.enqueue(how)

    run(queues=["own"], executor=executor, modules=["tests.worker.own_options_jobs"])

    assert (task.state, task.error) == (
        "dead", "AttemptTimeout: the attempt ran longer than timeout=0.1 s of job 'own.stubborn'",
    )  # fmt: skip


def test_a_longer_timeout_of_its_own_lets_an_attempt_go_on(current: Client, run: Run) -> None:
    @job(name="own.brief", queue="own", timeout=0.000001, max_attempts=1)
    def brief() -> str:
        return "".join("done")

    try:
        task = brief.using(timeout=60).enqueue()
        run(queues=["own"])
        assert task.result() == "done"
    finally:
        forget("own.brief")


def test_max_attempts_of_its_own_decide_when_a_task_is_dead(current: Client, run: Run) -> None:
    once, usual = fail.using(max_attempts=1).enqueue(), fail.enqueue()

    run(queues=["own"])

    assert (once.state, once.attempts, usual.state) == ("dead", 1, "scheduled")


def test_an_expiry_of_its_own_keeps_a_task_from_running(current: Client, run: Run, clock: Any) -> None:
    clock.set()
    expired, usual = Note().using(expires_in=timedelta(seconds=5)).enqueue(), Note().enqueue()
    clock.advance(6_000)

    run(queues=["own"])

    assert (expired.state, usual.state) == ("dead", "succeeded")
    assert "xpired" in expired.error


def test_a_result_ttl_of_its_own_is_how_long_the_task_stays(current: Client, run: Run, raw: Any) -> None:
    tasks = [Note(), Note().using(result_ttl=3600), Note().using(result_ttl=0), Note().using(result_ttl=30)]
    kept, longer, at_once, brief = Note.enqueue_many(tasks)

    run(queues=["own"])

    keys = keys_of(current).queue("own")
    left_ms = [raw.pttl(keys.tasks + task.id.encode()) for task in (kept, longer, brief)]
    assert 30_000 < left_ms[0] <= 60_000
    assert 3_570_000 < left_ms[1] <= 3_600_000
    assert 0 < left_ms[2] <= 30_000
    assert not at_once.exists()


def test_headers_reach_the_job_without_those_of_jobrunner(current: Client, run: Run) -> None:
    task = Note().using(headers={"tenant": "ada"}, timeout=60, max_attempts=2).enqueue()
    plain = Note().using(timeout=60).enqueue()

    run(queues=["own"])

    assert task.result() == [{"tenant": "ada"}, 2]
    assert plain.result()[0] == {}


def test_a_retry_keeps_the_options(current: Client, run: Run) -> None:
    seen: list[Any] = []

    @job(name="own.again", queue="own", max_attempts=1)
    def again() -> None:
        task = current_task()
        seen.append((task.attempt, task.max_attempts, dict(task.headers), task.deadline - task.enqueue_time))
        raise ValueError

    try:
        task = again.using(max_attempts=3, headers={"a": "b"}, timeout=600).enqueue()
        for _ in range(3):
            task.run_now()
            run(queues=["own"])
    finally:
        forget("own.again")
    assert [one[:3] for one in seen] == [(n, 3, {"a": "b"}) for n in (1, 2, 3)]
    assert all(one[3] > timedelta(seconds=500) for one in seen)
    assert task.record().state == "dead"


def test_steps_of_a_flow_have_them_too(current: Client, run: Run) -> None:
    flow = chain(
        Note().using(headers={"step": "1"}, timeout=60),
        Note.using(headers={"step": "2"}, max_attempts=2).bind("x"),
    ).enqueue()

    run(queues=["own"])

    assert flow.result() == [{"step": "2"}, 2]


def test_an_encrypted_task_has_them_too(server: Any, keys: Any) -> None:
    pytest.importorskip("cryptography")
    from jobrunner.client.current import forget as forget_client
    from jobrunner.client.current import use
    from jobrunner.worker.worker import Worker

    client = use(Client(server.url, keys.prefix, payload_keys=["q" * 43 + "="], payload_encryption="encrypt"))
    try:
        task = Note().using(headers={"a": "b"}, timeout=60, max_attempts=2).enqueue()
        Worker(client=client, queues=["own"]).run(burst=True)
        assert task.result() == [{"a": "b"}, 2]
    finally:
        forget_client()
