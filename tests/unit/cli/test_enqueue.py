"""`jobrunner enqueue`: the task it makes."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from jobrunner import queue as declare_queue
from jobrunner.broker.calls.server import server_time
from jobrunner.client import current
from jobrunner.client.client import Client, broker_of
from jobrunner.inspector.audit import entries
from jobrunner.jobs.declared_queues import forget_queue
from jobrunner.jobs.decorator import job
from jobrunner.jobs.registry import forget
from jobrunner.task import TaskState
from tests.support.waiting import wait_for


def test_it_enqueues_a_task_and_prints_its_id(cli: Callable[..., Any], add: Any, client: Client) -> None:
    result = cli("enqueue", "add", "x=1", "y=2")

    record = client.task(result.out.strip()).record()
    assert result.code == 0
    assert (record.type, record.queue, record.payload) == ("add", "maths", b'{"x":1,"y":2}')


def test_what_programs_do_all_the_time_leaves_no_entry_in_the_audit_log(
    cli: Callable[..., Any], add: Any, client: Client
) -> None:
    """A producer may not write there, and the log keeps so many entries."""
    assert cli("enqueue", "add", "x=1").code == 0
    assert entries(client) == []
    assert cli("queues", "pause", "maths").code == 0
    assert [one.action for one in entries(client)] == ["queue.pause"]


def test_options_place_the_task(cli: Callable[..., Any], add: Any, client: Client) -> None:
    result = cli("enqueue", "add", "x=1", "--in", "1h", "--priority", "2", "--queue", "vip", "--create", "--id", "mine",
                 "--json")  # fmt: skip

    record = client.task("mine", queue="vip").record()
    assert result.value == {"id": "mine", "queue": "vip", "type": "add", "is_new": True}
    assert (record.state, record.priority) == (TaskState.SCHEDULED, 2)


def test_a_task_has_the_options_of_its_enqueue(cli: Callable[..., Any], add: Any, client: Client) -> None:
    result = cli("enqueue", "add", "x=1", "--expires-in", "1h", "--max-attempts", "3", "--timeout", "90s",
                 "--result-ttl", "1d", "--header", "tenant=acme", "--header", "query=a=b")  # fmt: skip

    task_id = result.out.strip()
    assert result.code == 0, result.err
    fields = client.task(task_id).record().fields
    assert fields["max_attempts"] == b"3"
    assert msgspec.json.decode(fields["headers"]) == {
        "tenant": "acme", "query": "a=b", "jobrunner.timeout": "90.0", "jobrunner.result_ttl": "86400.0",
    }  # fmt: skip


def test_a_task_that_has_not_started_by_expires_in_is_dead(cli: Callable[..., Any], add: Any, client: Client) -> None:
    task_id = cli("enqueue", "add", "x=1", "--expires-in", "1ms").out.strip()
    broker, enqueued = broker_of(client), client.task(task_id).enqueue_time.timestamp() * 1000
    wait_for(lambda: broker.run(server_time()) > enqueued + 1)

    assert client.queue("maths").reserve() == []
    assert client.task(task_id).record().state == TaskState.DEAD


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--header", "tenant"], "--header 'tenant': write NAME=VALUE"),
        (["--header", "=acme"], "--header '=acme': write NAME=VALUE"),
        (["--header", "a=1", "--header", "a=2"], "--header 'a' is given twice; give it once"),
        (["--header", "jobrunner.timeout=1"], "names that begin with 'jobrunner.' are reserved"),
        (["--max-attempts", "-1"], "max_attempts=-1"),
        (["--timeout", "0"], "timeout=0"),
        (["--expires-in", "0"], "expires_in=0"),
        (["--result-ttl", "soon"], "'soon'"),
    ],
)
def test_an_option_that_cannot_be_is_refused_and_nothing_is_written(
    cli: Callable[..., Any], add: Any, raw: Any, words: list[str], told: str
) -> None:
    result = cli("enqueue", "add", "x=1", *words)

    assert (result.code, result.out) == (2, "")
    assert told in result.err
    assert raw.dbsize() == 0


def test_a_mistyped_queue_is_refused_with_the_nearest_and_nothing_is_written(
    cli: Callable[..., Any], add: Any, client: Client
) -> None:
    client.queue("vip").push(1)

    refused = cli("enqueue", "add", "x=1", "--queue", "vpi")

    assert (refused.code, refused.out) == (1, "")
    assert "there is no queue 'vpi'; did you mean 'vip'?; --create does it all the same" in refused.err
    assert client.queues() == ["vip"]
    declare_queue("calls")
    try:
        for known in ("vip", "maths", "calls"):  # the first exists, the others are declared and have no task yet
            assert cli("enqueue", "add", "x=1", "--queue", known).code == 0
    finally:
        forget_queue("calls")


def test_an_instant_with_a_zone_is_a_due_time(cli: Callable[..., Any], add: Any, client: Client) -> None:
    task_id = cli("enqueue", "add", "x=1", "--at", "2100-01-01T01:00:00+01:00").out.strip()

    when = client.task(task_id).record().when
    assert when is not None
    assert when.isoformat() == "2100-01-01T00:00:00+00:00"


def test_nothing_is_written_for_a_wrong_parameter(cli: Callable[..., Any], add: Any, raw: Any) -> None:
    result = cli("enqueue", "add", "x=1.5")

    assert result.code == 2
    assert "x of job 'add' is '1.5'; it must be int" in result.err
    assert raw.dbsize() == 0


class Colour(Enum):
    RED = "red"
    GREEN = "green"


@dataclass
class Line:
    sku: str


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("flag=yes", "flag of job 'many_types' is 'yes'; it must be bool: .*; write true or false"),
        ("tags=a,b", r"it must be list\[str\]: .*; write JSON, as '\[\"a\", \"b\"\]'"),
        ("line=tea", r"it must be .*Line \| None: .*; write JSON, as '{\"a\": 1}'"),
        ("by=a", r"it must be dict\[str, int\]: .*; write JSON, as '{\"a\": 1}'"),
        ("colour=RED", "it must be Colour, one of 'red', 'green': "),
        ("size=XL", "it must be one of 's', 'm': "),
    ],
)
def test_a_wrong_parameter_is_told_how_it_is_written(cli: Callable[..., Any], word: str, told: str) -> None:
    @job
    def many_types(
        flag: bool = False, tags: list[str] = [], line: Line | None = None, by: dict[str, int] = {},  # noqa: B006
        colour: Colour = Colour.RED, size: Literal["s", "m"] = "s",
    ) -> None: ...  # fmt: skip

    try:
        assert re.search(told, cli("enqueue", "many_types", word).err)
    finally:
        forget("many_types")


def test_it_says_when_the_id_is_there_already(cli: Callable[..., Any], add: Any, client: Client) -> None:
    first = cli("enqueue", "add", "x=1", "--id", "mine", "--json")
    again = cli("enqueue", "add", "x=2", "--id", "mine", "--json")
    err = cli("enqueue", "add", "x=2", "--id", "mine")

    assert '"is_new": true' in first.out
    assert '"is_new": false' in again.out
    assert (err.code, err.out.strip()) == (0, "mine")
    assert "no new task: mine is there already" in err.err


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A module with jobs that no command has loaded; its name."""
    name = f"shop_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "jobs.py").write_text(
        "from jobrunner import Job, job\n"
        f"@job(name='{name}-greet', queue='shop')\ndef greet(name: str) -> None: ...\n"
        f"@job(name='{name}-Bill', queue='shop')\nclass Bill(Job):\n    to: str\n    def run(self): ...\n"
        "class Undeclared(Bill): ...\nanswer = 42\n"
    )
    return name


@pytest.mark.parametrize(("job", "words"), [("greet", "name=Ada"), ("Bill", "to=Ada")])
def test_a_job_is_named_with_its_module(
    cli: Callable[..., Any], shop: str, job: str, words: str, client: Client
) -> None:
    result = cli("enqueue", f"{shop}.jobs.{job}", words)

    assert result.code == 0, result.err
    assert client.task(result.out.strip()).record().type == f"{shop}-{job}"


def test_a_job_is_named_by_its_own_name_with_its_module(cli: Callable[..., Any], shop: str, client: Client) -> None:
    result = cli("enqueue", f"{shop}.jobs.{shop}-greet", "name=Ada")

    assert client.task(result.out.strip()).record().type == f"{shop}-greet"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("shop-nothing", "no module is named; write MODULE.shop-nothing, or add -m MODULE"),
        ("{shop}.jobs.gret", "has no job 'gret'"),
        ("{shop}.jobs.answer", "has no job 'answer'"),
        ("{shop}.jobs.Undeclared", "has no job 'Undeclared'"),
        ("{shop}.nothing.greet", "cannot be imported"),
        (".greet", "no module is named"),
        ("jobs:greet", "no module is named; write jobs.greet, or add -m MODULE"),
        ("{shop}.jobs:greet", "has no job 'jobs:greet'; write {shop}.jobs.greet"),
    ],
)
def test_a_name_that_leads_nowhere_says_where_it_was_looked_for(
    cli: Callable[..., Any], shop: str, name: str, told: str, raw: Any
) -> None:
    result = cli("enqueue", name.format(shop=shop), "x=1")

    assert (result.code, result.out) == (2, "")
    assert told.format(shop=shop) in result.err
    assert raw.dbsize() == 0


def test_an_instant_without_a_zone_says_how_to_write_it(cli: Callable[..., Any], add: Any) -> None:
    result = cli("enqueue", "add", "x=1", "--at", "2030-01-01T03:00:00")

    assert result.code == 2
    assert "2030-01-01T03:00:00 has no time zone; write 2030-01-01T03:00:00Z" in result.err


def test_a_missing_name_shows_the_usage(cli: Callable[..., Any]) -> None:
    result = cli("enqueue")

    assert result.code == 2
    assert "usage: jobrunner enqueue" in result.err


def test_a_module_that_configures_the_client_has_its_jobs_enqueued_there(
    cli: Any, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers serve that prefix; the one of the environment has none. Options of the command go before."""
    own = f"{client.settings.prefix}.own"
    name = f"configured_{abs(hash(own))}"
    lines = (f"import jobrunner\njobrunner.configure(prefix={own!r}, payload_limit=20)\n"
             "@jobrunner.job(queue='mail')\ndef note(x: int) -> None: ...\n")  # fmt: skip
    (tmp_path / f"{name}.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert cli("enqueue", f"{name}.note", "x=1").code == 0
        assert "the limit is 20" in cli("enqueue", f"{name}.note", f"x={10**20}").err
        with Client(client.settings.url, own) as there:
            assert there.queue("mail").counts()["waiting"] == 1
        assert client.queues() == []
        assert cli("enqueue", f"{name}.note", "x=2", "--prefix", client.settings.prefix).code == 0
        assert client.queue("mail").counts()["waiting"] == 1
    finally:
        current.forget()
        forget("note")


@pytest.mark.parametrize("named", ["--url", "--prefix"])
def test_an_option_replaces_the_address_of_a_configured_client_and_nothing_else(
    named: str, cli: Any, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys, for example: a payload that its producers encrypt went out in the clear; with --prefix alone it went to
    the server of the environment."""
    key, own = "c2l4dGVlbiBieXRlcyB0d2ljZSwgc2l4dGVlbiBieXQ=", f"{client.settings.prefix}.own"
    there = client.settings.url if named == "--prefix" else "unix:///nowhere.sock"
    name = f"addressed_{named.strip('-')}_{abs(hash(own))}"
    lines = (f"import jobrunner\njobrunner.configure({there!r}, {own!r}, payload_keys=[{key!r}])\n"
             "@jobrunner.job(queue='mail')\ndef letter(x: str) -> None: ...\n")  # fmt: skip
    (tmp_path / f"{name}.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    if named == "--prefix":
        monkeypatch.setenv("JOBRUNNER_URL", "unix:///nowhere.sock")
    option = (named, client.settings.url if named == "--url" else client.settings.prefix)
    try:
        result = cli("enqueue", f"{name}.letter", "x=secret", *option)
    finally:
        current.forget()
        forget("letter")
    assert result.code == 0, result.err
    with Client(client.settings.url, own if named == "--url" else client.settings.prefix) as found:
        assert b"secret" not in found.task(result.out.strip()).record().fields["payload"]
