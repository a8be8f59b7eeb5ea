"""Commands that an operator runs on queues from a shell, and their effect on workers in other processes."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.jobs.registry import forget
from jobrunner.task import Task, TaskState, new_id

pytestmark = pytest.mark.processes

Says = Callable[..., Any]
JOBS = """
from jobrunner import job

@job(queue="mail", max_attempts=1)
def greet(name: str) -> str:
    if name == "stranger":
        raise LookupError("No stranger lives here")
    return f"dear {name}"

@job(queue="maths")
def double(x: int) -> int:
    return 2 * x
"""


@pytest.fixture
def office(shell: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A project with two jobs, on a queue each."""
    shell.write("jobs_here.py", JOBS)
    shell.write("pyproject.toml", '[tool.jobrunner]\nmodules = ["jobs_here"]\n')
    monkeypatch.syspath_prepend(shell.folder)
    yield shell
    sys.modules.pop("jobs_here", None)
    for name in ("greet", "double"):
        forget(name)


@pytest.fixture
def lasting(
    office: Any, cli: Says, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Any]:
    """The shell of that project on a server with durable storage, and the server."""
    server = start_server(appendonly="yes", appendfsync="always")
    office.environment["JOBRUNNER_URL"] = server.url
    monkeypatch.setenv("JOBRUNNER_URL", server.url)
    return office, server


def done(said: Any) -> str:
    """Stdout of a command that succeeded."""
    assert said.code == 0, said.err
    text: str = said.out.strip()
    return text


def test_a_pause_outlives_the_server_and_a_worker_obeys_it(
    lasting: Any, cli: Says, keys: Any, wait_until: Callable[..., Any]
) -> None:
    """MDQ-24: set while no worker runs; after a restart a new worker serves the other queue and leaves this one."""
    office, server = lasting
    kept = done(cli("enqueue", "greet", "name=ada"))
    assert done(cli("queues", "pause", "mail")) == "queue mail is paused"

    server.kill()
    server.start()

    served = done(cli("enqueue", "double", "x=2"))
    worker = office.start("work")
    with Client(server.url, keys.prefix) as client:
        assert client.task(served).result(timeout=30) == 4
        assert client.task(kept).state is TaskState.WAITING
        mail = next(queue for queue in json.loads(done(cli("queues", "list", "--json"))) if queue["name"] == "mail")
        assert (mail["paused"], mail["waiting"], mail["workers"]) == (True, 1, 1)

        assert done(cli("queues", "resume", "mail")) == "queue mail is open"
        assert client.task(kept).result(timeout=30) == "dear ada"
    worker.terminate()
    assert worker.wait(30) == 0


def test_limits_hold_as_soon_as_they_are_set(office: Any, cli: Says, client: Client) -> None:
    queue = client.queue("mail")
    queue.push_many(range(10))

    shown = done(cli("queues", "limit", "mail", "--rate", "2/h", "--max-size", "8"))
    assert "2/1h" in shown.split()
    assert len(queue.reserve(10)) == 2
    refused = cli("enqueue", "greet", "name=ada")
    assert (refused.code, "max_size" in refused.line) == (1, True)

    done(cli("queues", "limit", "mail", "--rate", "none", "--max-size", "none", "--max-inflight", "5"))
    assert len(queue.reserve(10)) == 3, "two are held already"
    done(cli("enqueue", "greet", "name=ada"))


def test_the_dead_are_found_by_their_error_corrected_and_brought_back_slowly(
    office: Any, cli: Says, client: Client
) -> None:
    ids = [new_id("mail") for _ in range(3)]
    client.enqueue_many(
        Task(id=one, queue="mail", type="greet", payload=b'{"name":"stranger"}', max_attempts=1) for one in ids
    )
    done(office.run("work", "--burst", "--concurrency", "1"))  # they die in their order

    found = json.loads(done(cli("dead", "list", "mail", "--job", "greet", "--error", "LIVES HERE", "--json")))
    assert [task["id"] for task in found] == ids[::-1]  # the latest first

    corrected = ("--id", ids[0], "--payload", '{"name": "bob"}')
    assert done(cli("dead", "requeue", "mail", *corrected)) == "requeued 1 dead task of queue mail"
    done(office.run("work", "--burst"))
    assert client.task(ids[0]).result(timeout=0) == "dear bob"

    done(cli("dead", "requeue", "mail", "--error", "lives here", "--rate", "0.001"))
    assert [client.task(one).state for one in ids[1:]] == [TaskState.WAITING, TaskState.SCHEDULED]
    assert cli("dead", "requeue", "mail", "--all").line == "Error: queue mail has no dead tasks"


def test_a_finished_task_is_replayed(office: Any, cli: Says, client: Client) -> None:
    client.queue("maths").configure(history=3600)
    first = done(cli("enqueue", "double", "x=21"))
    done(office.run("work", "--burst"))
    (kept,) = json.loads(done(cli("history", "list", "maths", "--json")))
    assert (kept["id"], kept["type"], kept["result"]) == (first, "double", 42)

    again = done(cli("history", "replay", "maths", first))
    done(office.run("work", "--burst"))

    assert again != first
    assert client.task(again).result(timeout=0) == 42
    newest = json.loads(done(cli("history", "list", "maths", "--limit", "1", "--json")))
    assert [(task["id"], task["headers"]) for task in newest] == [(again, {"replayed_from": first})]
    assert done(cli("history", "purge", "maths", "--yes")) == "deleted 2 done tasks of queue maths"


def test_misuse_of_the_limits_is_told_in_one_line(office: Any, cli: Says, raw: Any) -> None:
    said = cli("queues", "limit", "mail", "--rate", "1000 a second")

    assert (said.code, said.out) == (2, "")
    assert "'1000 a second' is no rate; write tasks/interval, such as 1000/1s" in said.line
    assert raw.dbsize() == 0
