"""`jobrunner jobs`: where jobs are known from, and their exact totals."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import leases
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import unix_ms
from jobrunner.jobs.build import published
from jobrunner.jobs.decorator import job
from jobrunner.jobs.job import PeriodicJob
from jobrunner.jobs.registry import forget
from jobrunner.task import Task, new_id
from jobrunner.worker.fetch.reserve_plan import LeaseNumbers


@pytest.fixture
def beat() -> Iterator[type[PeriodicJob]]:
    @job(every=300, queue="beats")
    class Beat(PeriodicJob):
        def run(self) -> None: ...

    yield Beat
    forget("Beat")


@pytest.fixture
def ran(client: Client) -> None:
    """Two tasks of `Mail` that succeeded and one that failed once and died, on `mail`; one of `Mail` on `slow`."""
    client.queue("mail").configure(max_attempts=2)
    client.enqueue_many([Task(id=new_id("mail"), type="Mail", queue="mail", payload=b"{}") for _ in range(3)])
    client.enqueue(Task(id=new_id("slow"), type="Mail", queue="slow", payload=b"{}"))
    succeed(client, "mail", 2)
    succeed(client, "slow", 1)
    for _ in range(2):
        (lease,) = client.queue("mail").reserve(1)
        lease.rollback(error="no", delay=0)


def succeed(client: Client, queue: str, count: int) -> None:
    """Reports as a worker does, which names the job."""
    keys = keys_of(client).queue(queue)
    held = broker_of(client).run(leases.reserve(keys, count, token=LeaseNumbers("a.1.00c0de").first_of(count))).attempts
    done = [(one.id, one.token, 0, "succeeded", b"", b"", one.type) for one in held]
    broker_of(client).run(leases.commit(keys, done))


def of(cli: Callable[..., Any], *words: str) -> dict[tuple[str, str | None], dict[str, Any]]:
    found = {(one["name"], one["queue"]): one for one in cli("jobs", *words, "--json").value}
    return {place: one for place, one in found.items() if place[0] in ("Mail", "add", "Beat", "Far")}


def test_totals_are_exact_and_apart_by_queue(cli: Callable[..., Any], ran: None) -> None:
    found = of(cli)

    assert {place: (one["succeeded"], one["failed"], one["dead"]) for place, one in found.items()} == {
        ("Mail", "mail"): (2, 2, 1),
        ("Mail", "slow"): (1, 0, 0),
    }
    assert found["Mail", "mail"]["max_attempts"] is None


def test_a_declared_job_has_its_options_and_a_periodic_one_its_schedule(
    cli: Callable[..., Any], client: Client, add: Any, beat: Any
) -> None:
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), published([beat.definition])))

    found = of(cli)

    assert (found["add", "maths"]["max_attempts"], found["add", "maths"]["succeeded"]) == (1, 0)
    assert found["Beat", "beats"]["schedule"] == "every 5 minutes"
    assert "every 5 minutes" in cli("jobs", "Beat").out


def test_a_schedule_that_no_worker_has_published_yet_is_that_of_the_module(cli: Callable[..., Any], beat: Any) -> None:
    assert of(cli)["Beat", "beats"]["schedule"] == "every 5 minutes"


def test_what_only_workers_know_is_listed_once_and_without_a_queue(
    cli: Callable[..., Any], client: Client, ran: None
) -> None:
    for worker in ("a.1.x", "b.2.y"):
        said = {"host": "a", "pid": 1, "queues": "mail", "concurrency": 1, "types": "Far,Mail"}
        broker_of(client).run(leader_calls.announce(keys_of(client), worker, said, ttl_ms=60_000))

    found = of(cli)

    assert found["Far", None]["workers"] == 2
    assert found["Mail", "mail"]["workers"] == 2
    assert ("Mail", None) not in found


def test_the_last_hour_is_what_workers_counted_in_it(cli: Callable[..., Any], client: Client) -> None:
    now_ms = unix_ms()  # of the command, which does not run on the clock of the test
    for back_ms, count in ((0, 7), (90 * 60_000, 100)):
        fields = {"mail Mail succeeded": count, "mail Mail failed": 1}
        broker_of(client).run_many(stats_calls.observe(keys_of(client), now_ms - back_ms, "w", back_ms + 1, fields))

    one = of(cli)["Mail", "mail"]

    assert (one["ended_last_hour"], one["failed_last_hour"]) == (8, 1)


def test_a_mistyped_name_is_refused_with_the_nearest(cli: Callable[..., Any], ran: None) -> None:
    result = cli("jobs", "Mial")

    assert (result.code, result.out) == (1, "")
    assert "there is no job 'Mial'; did you mean 'Mail'?" in result.err
    assert [one["queue"] for one in cli("jobs", "Mail", "--json").value] == ["mail", "slow"]


def test_on_a_terminal_it_fits_and_wide_has_all_columns(
    cli: Callable[..., Any], ran: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobrunner.cli.output.screen_width", lambda: 60)
    narrow, wide = cli("jobs", "Mail").out.splitlines(), cli("jobs", "Mail", "--wide").out.splitlines()

    assert max(map(len, narrow)) <= 60
    assert "WORKERS" in wide[0]
    assert "WORKERS" not in narrow[0]
