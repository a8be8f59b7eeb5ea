"""The roles of docs/security.md: their commands are taken from there, do all their work, and nothing else."""

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from msgspec.structs import replace
from starlette.testclient import TestClient

from jobrunner import Client, Job, PeriodicJob, Worker, group, job
from jobrunner.broker.calls import coordination
from jobrunner.cli.main import jobrunner as command_line
from jobrunner.client.current import forget, use
from jobrunner.errors import ServerRefused
from jobrunner.web.app import create_app
from tests.conftest import Server, version_of, wait_for

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@job(name="roles.add", queue="roles", max_attempts=1)
class Add(Job):
    """Adds, counts itself, says how far it is."""

    x: int
    y: int = 1

    def run(self) -> int:
        self.metadata.increment("runs")
        self.progress(1, 1)
        return self.x + self.y


@job(name="roles.fail", queue="roles", max_attempts=1)
class Fails(Job):
    """Fails."""

    def run(self) -> None:
        raise ValueError("no")


@job(name="roles.once", queue="roles", unique=True)
class Once(Job):
    """There is one of it."""

    def run(self) -> None:
        return None


@job(name="roles.tick", queue="roles", every=timedelta(milliseconds=200))
class Tick(PeriodicJob):
    """Fires."""

    def run(self) -> None:
        self.metadata.increment("ticks")


@pytest.fixture
def connect(server: Server, keys: Any, raw: redis.Redis) -> Iterator[Callable[[str], Client]]:
    """connect("producer"): a client as that user, made the current one."""
    lines = re.findall(r"^ACL SETUSER (\w+) (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [name for name, _ in lines] == ["producer", "worker", "viewer"]
    made: list[Client] = []
    for name, rules in lines:
        if version_of(raw) < (7, 2):  # as docs/deployment.md says
            rules = rules.replace(" +client|setinfo", "")
        raw.execute_command("ACL", "SETUSER", name, "reset", *rules.replace("jobrunner:", f"{keys.prefix}:").split())

    def connect_as(role: str) -> Client:
        made.append(Client(server.url.replace("unix://", f"unix://{role}:password@"), keys.prefix))
        return made[-1]

    yield connect_as
    forget()
    for client in made:
        client.close()
    for name, _ in lines:
        raw.acl_deluser(name)


@pytest.fixture
def refusals(raw: redis.Redis) -> Callable[[], list[str]]:
    """What the server refused since the test began, by user and command."""
    raw.execute_command("ACL", "LOG", "RESET")

    def told() -> list[str]:
        # Before 7.2 a server knows no CLIENT SETINFO; redis-py asks for it and does without.
        known = [one for one in raw.acl_log() if one["object"] != "client" or version_of(raw) >= (7, 2)]
        return [f"{one['username']} {one['object']} ({one['reason']})" for one in known]

    return told


@pytest.mark.parametrize("role", ["producer", "worker", "viewer"])
@pytest.mark.parametrize(
    "command",
    [
        ("SET", "elsewhere", "1"), ("GET", "elsewhere"), ("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "SET", "save", ""),
        ("CONFIG", "GET", "*"), ("SHUTDOWN",), ("ACL", "LIST"), ("SCRIPT", "FLUSH"), ("CLIENT", "LIST"), ("MONITOR",),
        ("PUBLISH", "elsewhere", "1"), ("EVAL", "return redis.call('SET', 'elsewhere', 1)", "0"),
    ],
)  # fmt: skip
def test_no_role_leaves_its_prefix_or_runs_the_server(
    connect: Callable[[str], Client], server: Server, role: str, command: tuple[str, ...]
) -> None:
    with server.connect(username=role, password="password") as plain, pytest.raises(redis.exceptions.ResponseError):
        plain.execute_command(*command)
    assert connect


def test_producer_and_worker_do_all_their_work_and_nothing_is_refused(
    connect: Callable[[str], Client], refusals: Callable[[], list[str]]
) -> None:
    working = connect("worker")
    worker = Worker(client=working, queues=["roles"], heartbeat=0.1, sweep=0.1)
    worker.start()
    producer = use(connect("producer"))

    assert Add(x=1).enqueue().result(timeout=20) == 2
    assert [task.result(timeout=20) for task in Add.enqueue_many([Add(x=n) for n in range(3)])] == [1, 2, 3]
    assert group(Add(x=1), Add(x=2)).enqueue().result(timeout=20) == [2, 3]
    assert Once().enqueue(in_=60).id == Once().enqueue(in_=60).id
    assert Add(x=1).enqueue(in_=0.05, wait=1).result(timeout=20) == 2
    later = Add(x=5).enqueue(in_=60)
    assert later.cancel()

    async def ask() -> Any:
        return await (await Add(x=2).aenqueue()).result(timeout=20)

    assert asyncio.run(ask()) == 3
    dead = Fails().enqueue()
    wait_for(lambda: dead.state == "dead")
    assert dead.requeue()
    queue = producer.queue("bare")
    queue.push("x", wait=1)
    (lease,) = queue.reserve(wait=1)
    assert lease.commit()

    wait_for(lambda: working.broker.run(_ticks(working)) >= 2, timeout_s=20)
    assert [one.id for one in working.workers()] == [worker.id]
    wait_for(lambda: [one for one in working.events() if one.kind == "task_died"])
    working.queue("roles").pause()
    working.queue("roles").resume()
    working.queue("roles").configure(history=60, max_inflight=5)
    wait_for(lambda: dead.state == "dead")
    assert working.queue("roles").requeue_dead() == 1
    worker.stop()
    assert refusals() == []


def test_a_producer_neither_sees_nor_orders_workers(connect: Callable[[str], Client]) -> None:
    client = connect("producer")

    for ask in (client.workers, client.periodics, lambda: list(client.events())):
        with pytest.raises(ServerRefused, match="refused this user"):
            ask()
    with pytest.raises(ServerRefused):
        Worker(client=client, queues=["roles"]).start()


def test_a_viewer_sees_all_pages_and_changes_nothing(
    connect: Callable[[str], Client], keys: Any, refusals: Callable[[], list[str]], raw: redis.Redis
) -> None:
    working = use(connect("worker"))
    task, later = Add(x=1).enqueue(), Add(x=2).enqueue(in_=60)
    Fails().enqueue()
    working.queue("bare").push("x")
    Worker(client=working, queues=["roles"]).run(burst=True)
    viewer = connect("viewer")
    page = TestClient(create_app(viewer), base_url="http://127.0.0.1", client=("127.0.0.1", 50000))
    before = {key: raw.dump(key) for key in raw.scan_iter()}

    pages = ["/", "/queues", "/queues/roles", f"/tasks/{task.id}", "/tasks?queue=roles&state=dead", "/workers",
             "/periodic", "/pipelines", "/history", "/redis", "/audit", "/metrics"]  # fmt: skip
    assert {path: page.get(path).status_code for path in pages} == dict.fromkeys(pages, 200)
    for words in (["status"], ["top", "--once"], ["queues", "list"], ["tasks", "show", task.id], ["events"],
                  ["tasks", "list", "roles", "--state", "scheduled"], ["dead", "list", "roles"]):  # fmt: skip
        told = CliRunner().invoke(
            command_line, [*words, "--url", viewer.settings.url, "--prefix", keys.prefix], catch_exceptions=False
        )
        assert told.exit_code == 0, (words, told.output)
    assert viewer.task(later.id).state == "scheduled"
    assert {key: raw.dump(key) for key in raw.scan_iter()} == before
    assert refusals() == []

    use(viewer)
    for change in (
        Add(x=1).enqueue, viewer.task(later.id).cancel, viewer.queue("roles").pause, viewer.queue("bare").reserve,
        lambda: viewer.queue("roles").configure(max_inflight=1), lambda: viewer.queue("roles").requeue_dead(),
    ):  # fmt: skip
        with pytest.raises(ServerRefused):
            change()
    assert {key: raw.dump(key) for key in raw.scan_iter()} == before


def _ticks(client: Client) -> Any:
    found = coordination.metadata_get(client.keys, "roles.tick", "ticks")
    return replace(found, read=lambda raw: int(raw or 0))
