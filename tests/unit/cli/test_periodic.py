"""`jobrunner periodic` and `jobrunner status`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client import current
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.jobs.build import published
from jobrunner.jobs.decorator import job
from jobrunner.jobs.job import PeriodicJob
from jobrunner.jobs.registry import forget


@pytest.fixture
def heartbeat() -> Iterator[type[PeriodicJob]]:
    @job(every=300, queue="beats", priority=2)
    class Heartbeat(PeriodicJob):
        def run(self) -> None: ...

    yield Heartbeat
    forget("Heartbeat")


def test_a_job_that_was_published_is_listed(cli: Callable[..., Any], client: Client, heartbeat: Any) -> None:
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), published([heartbeat.definition])))

    (listed,) = cli("periodic", "list", "--json").value

    assert (listed["name"], listed["schedule"], listed["served"]) == ("Heartbeat", "every 5 minutes", True)
    assert "every 5 minutes" in cli("periodic", "list").out
    assert "Heartbeat" in cli("status").out


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_schedule_stays_whole_however_narrow_the_terminal_is(
    cli: Callable[..., Any], client: Client, heartbeat: Any, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    daily = job(cron="30 3 * * 1-5", tz="Europe/Berlin", queue="reports", name="airline.reports.NightlyStatement")(
        type("Nightly", (PeriodicJob,), {"run": lambda _: None})
    )
    both = published([heartbeat.definition, daily.definition])
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), both))
    forget("airline.reports.NightlyStatement")
    monkeypatch.setattr("jobrunner.cli.output.screen_width", lambda: columns)

    for told in (cli("periodic", "list").out, cli("status").out.partition("PERIODIC JOB")[2]):
        assert max(map(len, told.splitlines())) <= columns
        for record in client.periodics():
            assert record.schedule in told, told


def test_a_published_job_runs_without_its_code(cli: Callable[..., Any], client: Client, heartbeat: Any) -> None:
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), published([heartbeat.definition])))
    forget("Heartbeat")

    task_id = cli("periodic", "run", "Heartbeat").out.strip()

    record = client.task(task_id).record()
    assert (record.type, record.queue, record.priority) == ("Heartbeat", "beats", 2)


def test_a_declared_job_runs_before_it_is_published(cli: Callable[..., Any], client: Client, heartbeat: Any) -> None:
    task_id = cli("periodic", "run", "Heartbeat").out.strip()

    assert client.task(task_id).record().queue == "beats"


def test_a_module_that_configures_the_client_has_its_job_run_there(
    cli: Callable[..., Any], client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = f"{client.settings.prefix}.own"
    name = f"nightly_{abs(hash(own))}"
    lines = (f"import jobrunner\njobrunner.configure(prefix={own!r})\n"
             "@jobrunner.job(every=300, queue='beats', name='Nightly')\ndef nightly() -> None: ...\n")  # fmt: skip
    (tmp_path / f"{name}.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert cli("periodic", "run", "Nightly", "-m", name).code == 0
        with Client(client.settings.url, own) as there:
            assert there.queue("beats").counts()["waiting"] == 1
        assert client.queues() == []
        assert cli("periodic", "run", "Nightly", "-m", name, "--prefix", client.settings.prefix).code == 0
        assert client.queue("beats").counts()["waiting"] == 1
    finally:
        current.forget()
        forget("Nightly")


def test_an_unknown_periodic_job_is_a_no(cli: Callable[..., Any], client: Client, add: Any, heartbeat: Any) -> None:
    assert cli("periodic", "run", "add").code == 1
    assert "no worker published any yet" in cli("periodic", "disable", "Nope").err

    broker_of(client).run(leader_calls.define_periodics(keys_of(client), published([heartbeat.definition])))

    for verb in ("run", "enable", "disable"):
        result = cli("periodic", verb, "Nope")
        assert result.code == 1
        assert "no periodic job 'Nope' was published; known are Heartbeat" in result.err


def test_a_job_is_switched_off_and_on_which_is_told(cli: Callable[..., Any], client: Client, heartbeat: Any) -> None:
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), published([heartbeat.definition])))

    assert cli("periodic", "disable", "Heartbeat").out == "periodic job Heartbeat is disabled\n"
    assert [job.enabled for job in client.periodics()] == [False]
    assert "disabled" in cli("periodic", "list").out
    assert cli("periodic", "enable", "Heartbeat", "--json").value == {"name": "Heartbeat", "enabled": True}
    assert cli("periodic", "list", "--json").value[0]["enabled"] is True
    assert "disabled" not in cli("periodic", "list").out
    assert [(event.kind, event.queue, event.job, bool(event.by)) for event in client.events()] == [
        ("periodic_disabled", "beats", "Heartbeat", True),
        ("periodic_enabled", "beats", "Heartbeat", True),
    ]


def test_the_status_as_json_has_the_facts_of_the_server_by_name(cli: Callable[..., Any]) -> None:
    server = cli("status", "--json").value["server"]

    assert (server["maxmemory_policy"], server["aof"], server["replica"]) == ("noeviction", False, False)


def test_the_status_of_an_unused_prefix_is_empty(cli: Callable[..., Any], raw: Any) -> None:
    result = cli("status")

    assert result.code == 0
    assert [line for line in result.out.splitlines() if line.startswith("no ")] == [
        "no queues", "no workers", "no periodic jobs",
    ]  # fmt: skip
    assert raw.dbsize() == 0


@pytest.fixture
def reports(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module with a job that is not periodic."""
    name = f"reports_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(
        "import jobrunner\n@jobrunner.job(queue='reports')\ndef report(customer: str, days: int = 7) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    forget("report")


def test_one_is_added_replaced_listed_run_and_removed(cli: Callable[..., Any], client: Client, reports: str) -> None:
    added = cli("periodic", "add", "acme", "report", "customer=acme", "--every", "5m", "-m", reports)
    assert added.out.startswith("periodic job acme runs report every 5 minutes, next ")
    when = ("--cron", "0 7 * * 1-5", "--tz", "Europe/Madrid", "--catch-up", "3", "--overlap", "allow")
    values = ("customer=bolt", "days=1", "--priority", "2")
    again = cli("periodic", "add", "acme", f"{reports}.report", *values, *when, "--json")
    value = again.value
    assert (value["name"], value["job"], value["catch_up"], value["overlap"], value["added"]) == (
        "acme", "report", 3, "allow", True,
    )  # fmt: skip

    listed = cli("periodic", "list").out
    assert "at 07:00 from Monday to Friday in Europe/Madrid" in listed
    assert " JOB " in listed.splitlines()[0]
    assert "acme" in cli("status").out
    task_id = cli("periodic", "run", "acme").out.strip()
    record = client.task(task_id).record()
    assert (record.type, record.payload, record.priority) == ("report", b'{"customer":"bolt","days":1}', 2)

    assert cli("periodic", "remove", "acme").out == "periodic job acme is removed\n"
    gone = cli("periodic", "remove", "acme")
    assert (gone.code, "no periodic job 'acme' was added at run time" in gone.err) == (1, True)
    assert cli("periodic", "list", "--json").value == []


def test_one_with_a_start_an_end_and_a_limit(cli: Callable[..., Any], client: Client, reports: str) -> None:
    add = ("periodic", "add", "acme", "report", "customer=acme", "--every", "5m", "-m", reports)
    bounds = ("--start", "2100-01-01T03:00:00+01:00", "--end", "2100-02-01T00:00:00Z", "--limit", "9")
    assert cli(*add, *bounds, "--json").value["next"] == "2100-01-01T02:00:00+00:00"
    in_words = "every 5 minutes from 2100-01-01 02:00 UTC until 2100-02-01 00:00 UTC, 9 tasks at most"
    assert in_words in cli("periodic", "list").out

    over = cli(*add, "--end", "2020-01-01T00:00:00Z")
    assert over.out == "periodic job acme runs report every 5 minutes until 2020-01-01 00:00 UTC, but has ended\n"
    assert "ended" in cli("periodic", "list").out
    assert "has no time zone" in cli(*add, "--end", "2020-01-01T00:00:00").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--cron", "61 * * * *"), "its minute is '61'"),
        ((), "either every=… or cron=…"),
        (("--every", "5m", "--tz", "UTC"), "goes with cron"),
        (("--every", "5m", "--catch-up", "all"), "catch_up is 'all'"),
        (("--every", "5m", "--queue", "nowhere"), "nowhere"),
        (("--every", "5m", "dais=1"), "days"),
    ],
)
def test_what_cannot_be_added_is_refused_with_its_reason(
    cli: Callable[..., Any], reports: str, words: tuple[str, ...], told: str
) -> None:
    result = cli("periodic", "add", "acme", "report", "customer=acme", "-m", reports, *words)
    assert result.code in (1, 2)
    assert told in result.err
    assert cli("periodic", "list", "--json").value == []
