"""The roles of docs/security.md with other rules than those of its lines, and actions that a role must not do."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from jobrunner import Client, Job, Worker, job
from jobrunner.cli.main import jobrunner as command_line
from jobrunner.client.client import keys_of
from jobrunner.client.current import use
from jobrunner.errors import OutcomeUnknown, ServerRefused
from jobrunner.etl import Pipeline
from jobrunner.etl.station import StationItem
from jobrunner.inspector import audit
from jobrunner.web.app import create_app
from jobrunner.web.login import LoginLinks
from tests.security.roles import PAGE, roles_of
from tests.support.server import Server, version_of
from tests.unit.web.conftest import Browser

(PRODUCER,) = re.findall(r"^ACL SETUSER producer (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)

pytestmark = pytest.mark.processes


@job(name="edges.add", queue="mail")
class Add(Job):
    """Adds one."""

    x: int

    def run(self) -> int:
        return self.x + 1


@pytest.fixture
def connect(server: Server, keys: Any, raw: redis.Redis) -> Iterator[Callable[..., Client]]:
    """connect("producer", "+select"): a client as that user, with additional rules."""
    with roles_of(server, raw, keys.prefix) as connect_as:
        yield connect_as


def command(client: Client, *words: str) -> Any:
    """A command as that client's user; its result."""
    return CliRunner().invoke(command_line, [*words, "--url", client.settings.url, "--prefix", client.settings.prefix])


def test_a_producer_pushes_into_a_pipeline_and_does_not_write_its_graph(
    connect: Callable[..., Client], raw: redis.Redis, keys: Any
) -> None:
    """The graph is for pages. That it may not be written was an error of each push."""
    orders = Pipeline("orders", connect("producer"))
    done: list[Any] = []

    @orders.sink("raw", max_attempts=3)
    def store(item: StationItem) -> None:
        done.append(item.payload)

    orders.push("raw", 1)
    assert not raw.exists(keys.pipelines)
    with pytest.raises(ServerRefused):
        orders.apply()
    worker = connect("worker")
    Worker(client=worker, queues=["orders/raw"]).run(burst=True)
    assert worker.queue("orders/raw").settings().max_attempts == 3
    assert done == [1]


def test_a_producer_of_one_queue_works_there_and_nowhere_else(
    connect: Callable[..., Client], raw: redis.Redis, keys: Any
) -> None:
    rules = PRODUCER.replace("jobrunner:", f"{keys.prefix}:")
    own = rules.replace("{[^/]*}:*", "{mail}:*", 1)
    assert own != rules
    producer = use(connect("producer", "reset", *own.split()))
    task = Add(x=1).enqueue()
    Worker(client=connect("worker"), queues=["mail"]).run(burst=True)

    assert task.result(timeout=20) == 2
    producer.queue("mail").push("x")
    other = connect("worker").queue("other")
    other.push("theirs")
    for reach in (lambda: producer.queue("other").push("x"), producer.queue("other").counts,
                  producer.queue("other").pop, lambda: producer.queue("other").purge("waiting")):  # fmt: skip
        with pytest.raises(ServerRefused):
            reach()
    assert other.counts()["waiting"] == 1


def test_another_database_needs_the_right_to_select(connect: Callable[..., Client]) -> None:
    with pytest.raises(ServerRefused, match="select"):
        connect("producer", rest="?db=1").queue("mail").push("x")
    assert connect("producer", "+select", rest="?db=1").queue("mail").push("x")


def test_a_password_with_any_character_goes_into_the_url(connect: Callable[..., Client]) -> None:
    odd = "p@ss:w/rd?#%"

    assert connect("producer", f">{odd}", password=odd).queue("mail").push("x")


def test_the_doctor_checks_settings_and_other_prefixes_with_rights_of_its_own(
    connect: Callable[..., Client], server: Server, raw: redis.Redis
) -> None:
    with Client(server.url, "another") as other:
        other.queue("mail").push("x")
    raw.config_set("appendonly", "yes")
    try:
        without = command(connect("worker"), "doctor").output
        with_names = command(connect("worker", "+config|get", "+scan"), "doctor").output
        with_both = command(connect("worker", "%R~*"), "doctor").output
    finally:
        raw.config_set("appendonly", "no")
    assert "another" not in without + with_names
    assert "fsync  " not in without
    assert "fsync  " in with_names
    assert "prefix 'another' is in use too: 1 to do" in with_both


def test_the_doctor_of_a_producer_names_the_checks_that_it_could_not_make(
    connect: Callable[..., Client], server: Server, keys: Any
) -> None:
    """It ended with the first refusal."""
    with Client(server.url, keys.prefix) as other:
        other.queue("mail").pause()
    result = command(connect("producer"), "doctor")
    lines = {line.split()[1]: line for line in result.output.splitlines() if line.startswith(("ok", "warn", "fail"))}

    assert result.exit_code == 0, result.output
    for what in ("workers", "jobs", "statistics", "periodic"):
        assert re.match(rf"warn +{what} +not checked", lines[what])
    assert "list_workers.lua" in lines["workers"]
    assert "mail: paused" in lines["queue"]
    assert {"clock", "rights"} <= lines.keys()


def test_durability_needs_no_more_than_the_lines_of_the_page(connect: Callable[..., Client], raw: redis.Redis) -> None:
    if version_of(raw) < (7, 2):
        pytest.skip("WAITAOF came with Redis 7.2")
    with pytest.raises(OutcomeUnknown, match="appendonly is disabled"):
        connect("producer", durability="fsync").queue("mail").push("x")
    with pytest.raises(OutcomeUnknown, match="not on a replica"):
        connect("producer", durability="replicated", durability_timeout=0.05).queue("mail").push("x")


def test_with_the_workers_user_nobody_logs_in_and_changes_are_noted_on_stderr_alone(
    connect: Callable[..., Client], raw: redis.Redis
) -> None:
    client = connect("worker")
    client.queue("mail").push("x")
    links = LoginLinks()
    browser = Browser(create_app(client, auth=links))

    login = browser.get(f"/login?token={links.new_token()}")
    assert login.status_code == 502, login.text
    assert browser.get("/", headers={"accept": "application/json"}).status_code == 401
    words = ["queues", "pause", "mail", "--url", client.settings.url, "--prefix", client.settings.prefix]
    paused = subprocess.run([sys.executable, "-m", "jobrunner", *words], capture_output=True, text=True, check=True)
    assert client.queue("mail").is_paused()
    assert not raw.exists(keys_of(client).audit)
    assert "the audit log on the server has no entry of the last action" in paused.stderr
    assert f"queue.pause mail by {audit.operator()[0]} (command line)" in paused.stderr, "the entry itself"


def test_a_viewer_cannot_wait_for_a_result(connect: Callable[..., Client]) -> None:
    use(connect("producer"))
    task = Add(x=1).enqueue()

    with pytest.raises(ServerRefused):
        connect("viewer").task(task.id).result(timeout=5)


def test_a_worker_whose_user_lacks_a_command_does_not_start_and_the_doctor_names_it(
    connect: Callable[..., Client],
) -> None:
    """It began, ran its tasks, and each report ended half way: the tasks were deleted, and stayed pending."""
    queue = use(connect("producer")).queue("mail")
    task = Add(x=1).enqueue()
    weak = connect("worker", "-hincrby")
    with pytest.raises(ServerRefused, match="it may not run HINCRBY, as a worker of queue 'mail' does"):
        Worker(client=weak, queues=["mail"]).run(burst=True)
    found = command(weak, "doctor").output
    assert re.search(r"^warn +rights +no worker can run as this user: it may not run HINCRBY; see", found, re.MULTILINE)
    assert queue.counts()["waiting"] == 1

    Worker(client=connect("worker", "+hincrby"), queues=["mail"]).run(burst=True)
    assert task.result(timeout=20) == 2
    for role, line in (("worker", "has all that a worker needs"), ("operator", "has all"), ("viewer", "may only read")):
        assert re.search(rf"rights .*{line}", command(connect(role), "doctor").output), role


def test_a_worker_whose_user_lacks_the_keys_of_one_of_its_queues_does_not_start(
    connect: Callable[..., Client], keys: Any
) -> None:
    rules = ("resetkeys", f"~{keys.prefix}:{{mail}}:*", f"~{keys.prefix}:{{/*", f"~{keys.prefix}:[a-z]*")
    Worker(client=connect("worker", *rules), queues=["mail"]).run(burst=True)
    with pytest.raises(ServerRefused, match=rf"rights.lua on {keys.prefix}:\{{other\}}:other:waiting"):
        Worker(client=connect("worker"), queues=["mail", "other"]).run(burst=True)
