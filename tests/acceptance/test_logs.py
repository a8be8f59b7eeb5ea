"""The log of a worker: each line has the ids of its subject, and none contains a secret."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from jobrunner import Client
from jobrunner.task import Task

pytestmark = pytest.mark.processes

JOBS = """
import logging
import structlog
from jobrunner import Job, job
from jobrunner.etl import Pipeline

@job(queue="mail", max_attempts=1)
class Send(Job):
    address: str = ""
    def run(self):
        self.log.info("own", step=1)
        structlog.get_logger().info("structured")
        logging.getLogger("theirs").warning("plain")
        raise ValueError("no")

@job(queue="mail")
async def call() -> None:
    structlog.get_logger().info("awaited")

shop = Pipeline("shop")

@shop.sink("raw", max_attempts=1)
def store(item):
    structlog.get_logger().info("stored")
    raise ValueError("no room")
"""
IDS = ("worker", "queue", "job", "task", "attempt")


@pytest.fixture
def jobs(shell: Any) -> Any:
    shell.write("jobs_here.py", JOBS)
    return shell


def lines(said: Any) -> dict[str, dict[str, Any]]:
    """The lines of a log, by event; the last of each."""
    return {line["event"]: line for line in map(json.loads, said.err.splitlines())}


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_every_line_of_a_job_names_what_it_is_of(jobs: Any, client: Client, executor: str) -> None:
    named = (("a", "Send", b'{"address": "hunter2"}'), ("b", "call", b"{}"))
    client.enqueue_many([Task(id=one, type=job, queue="mail", payload=of, max_attempts=1) for one, job, of in named])

    said = jobs.run("work", "jobs_here", "--burst", "--log-format", "json", "--executor", executor)

    assert said.code == 0, said.err
    assert said.out == ""
    found = lines(said)
    worker = found["worker started"]["worker"]
    for event in ("own", "structured", "plain", "task died"):
        ids = {name: found[event].get(name) for name in IDS}
        assert ids == {"queue": "mail", "job": "Send", "task": "a", "attempt": 1, "worker": worker}, event
    assert found["awaited"] | {"job": "call", "task": "b", "worker": worker} == found["awaited"]
    assert found["own"]["step"] == 1
    assert "hunter2" not in said.err, "a parameter is in no line, whatever became of its task"


NOISY = """
import threading
import warnings
from jobrunner import job

class Broken:
    def __del__(self):
        raise ValueError("in a finalizer")

@job(queue="mail")
def noisy() -> None:
    warnings.warn("use the new way, not password='hunter2'", FutureWarning)
    broken = Broken()
    del broken
    thread = threading.Thread(target=lambda: 1 / 0, name="helper")
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_what_python_itself_says_is_a_line_of_the_log(jobs: Any, client: Client, executor: str) -> None:
    jobs.write("noisy_here.py", NOISY)
    client.enqueue(Task(id="a", type="noisy", queue="mail", payload=b"{}"))

    said = jobs.run("work", "noisy_here", "--burst", "--log-format", "json", "--executor", executor)

    found = lines(said)
    warned = found["use the new way, not password=••••••"]
    assert (warned["level"], warned["category"], warned["line"]) == ("warning", "FutureWarning", 12)
    assert warned["file"].endswith("noisy_here.py")
    assert (warned["job"], warned["task"]) == ("noisy", "a")
    ended = found["an error ended a thread"]
    assert (ended["level"], ended["thread"]) == ("error", "helper")
    assert "ZeroDivisionError" in ended["exception"]
    ignored = found["exception ignored"]
    assert "Broken.__del__" in ignored["object"]
    assert "in a finalizer" in ignored["exception"]
    assert ignored["task"] == "a"


@pytest.mark.parametrize(
    ("source", "words", "code", "told"),
    [
        ("raise ValueError('in\\ntwo lines')", (), 2, "module 'ends_here' cannot be imported: ValueError"),
        ("raise ValueError('in\\ntwo lines')", ("--debug",), 2, "module 'ends_here' cannot be imported: ValueError"),
        ("import sys; sys.exit('DATABASE_URL is missing')", (), 1, "DATABASE_URL is missing"),
        ("", ("--concurrency", "many"), 2, "Invalid value for '--concurrency'"),
        ("", ("--no-such-option",), 2, "No such option '--no-such-option'"),
        ("", ("--url", "redis://127.0.0.1:1"), 1, "no server at redis://127.0.0.1:1"),
    ],
)
@pytest.mark.parametrize("form", [("--log-format", "json"), ("--log-format=json",)], ids=["apart", "joined"])
def test_an_error_that_ends_the_command_is_a_line_of_the_log(
    shell: Any, source: str, words: tuple[str, ...], code: int, told: str, form: tuple[str, ...]
) -> None:
    shell.write("ends_here.py", source)

    said = shell.run("work", "ends_here", "--burst", *words, *form)

    (line,) = map(json.loads, said.err.splitlines())
    assert (said.code, line["exit_code"], line["event"], line["level"]) == (code, code, "command failed", "error")
    assert line["error"].startswith(told)
    assert ("exception" in line) is ("--debug" in words)


def test_the_start_of_a_private_server_is_a_line_of_the_log(shell: Any) -> None:
    shell.write("none_here.py", "")

    said = shell.run("work", "none_here", "--burst", "--log-format", "json", JOBRUNNER_URL="")

    assert said.code == 0, said.err
    assert f"started a private server in {shell.folder / '.jobrunner'}" in lines(said)


def test_an_item_of_a_station_has_no_empty_job(jobs: Any, client: Client) -> None:
    client.queue("shop/raw").push({"n": 1}, id="item")

    said = jobs.run("work", "jobs_here", "--burst", "--log-format", "json")

    found = lines(said)
    for event in ("stored", "task died"):
        assert (found[event]["queue"], found[event]["task"]) == ("shop/raw", "item")
        assert "job" not in found[event]
    client.queue("shop/raw").push({"n": 2}, id="another")
    shown = jobs.run("work", "jobs_here", "--burst").err
    assert "stored" in shown
    assert "job= " not in shown


@pytest.fixture
def guarded_url(server: Any, raw: redis.Redis) -> Iterator[str]:
    raw.acl_setuser("keeper", enabled=True, passwords=["+hunter2"], keys=["*"], channels=["*"], commands=["+@all"])
    yield server.url.replace("unix://", "unix://keeper:hunter2@")
    raw.acl_deluser("keeper")


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_line_has_the_password_or_a_parameter(jobs: Any, client: Client, guarded_url: str, form: str) -> None:
    client.enqueue(Task(id="a", type="Send", queue="mail", payload=b'{"address": ["hunter2"]}', max_attempts=1))

    worked = jobs.run("work", "jobs_here", "--burst", "--log-format", form, JOBRUNNER_URL=guarded_url)

    assert "worker started" in worked.err
    assert "task died" in worked.err
    assert worked.code == 0
    assert "hunter2" not in worked.err + worked.out


def test_no_traceback_has_the_password(
    jobs: Any, guarded_url: str, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = jobs.run("work", "jobs_here", "--burst", "--debug", JOBRUNNER_URL=guarded_url + "x")
    monkeypatch.setenv("JOBRUNNER_URL", guarded_url.replace("hunter2", "hunter22"))
    refused = cli("status", "--debug")

    for said in (wrong, refused):
        assert said.code != 0
        assert "Traceback" in said.err
        assert "hunter2" not in said.err + said.out
