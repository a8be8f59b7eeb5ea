"""The roles of docs/security.md: their commands are taken from there, do all their work, and nothing else."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from msgspec.structs import replace
from starlette.testclient import TestClient

from jobrunner import Client, Job, PeriodicJob, Worker, group, job
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.cli.main import jobrunner as command_line
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.current import use
from jobrunner.errors import ServerRefused
from jobrunner.inspector import audit
from jobrunner.web.app import create_app
from jobrunner.web.auth import Loopback
from jobrunner.web.login import LoginLinks
from tests.security.roles import roles_of
from tests.support.server import Server, version_of
from tests.support.waiting import wait_for
from tests.unit.web.conftest import Browser

pytestmark = pytest.mark.processes


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
    with roles_of(server, raw, keys.prefix) as connect_as:
        yield connect_as


@pytest.fixture
def refusals(raw: redis.Redis) -> Callable[[], list[str]]:
    """The commands that the server refused since the test began, with their users."""
    raw.execute_command("ACL", "LOG", "RESET")

    def told() -> list[str]:
        # Before 7.2 a server knows no CLIENT SETINFO; redis-py asks for it and does without.
        known = [one for one in raw.acl_log() if one["object"] != "client" or version_of(raw) >= (7, 2)]
        return [f"{one['username']} {one['object']} ({one['reason']})" for one in known]

    return told


@pytest.mark.parametrize("role", ["producer", "worker", "operator", "viewer"])
@pytest.mark.parametrize(
    "command",
    [
        ("SET", "elsewhere", "1"), ("GET", "elsewhere"), ("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "SET", "save", ""),
        ("CONFIG", "GET", "*"), ("SHUTDOWN",), ("ACL", "LIST"), ("SCRIPT", "FLUSH"), ("CLIENT", "LIST"), ("MONITOR",),
        ("PUBLISH", "elsewhere", "1"), ("EVAL", "return redis.call('SET', 'elsewhere', 1)", "0"),
        ("EVAL", "return redis.call('SCAN', 0)", "0"), ("EVAL", "return redis.call('FUNCTION', 'FLUSH')", "0"),
        ("FUNCTION", "FLUSH"), ("FUNCTION", "LOAD", "#!lua name=x\nredis.register_function('x', function() end)"),
        ("FUNCTION", "LIST"), ("FUNCTION", "DUMP"), ("FCALL", "x", "0"), ("FCALL_RO", "x", "0"), ("SCAN", "0"),
        ("RANDOMKEY",), ("DBSIZE",), ("SELECT", "1"), ("SWAPDB", "0", "1"), ("MOVE", "elsewhere", "1"),
        ("CLIENT", "TRACKING", "ON", "BCAST"), ("CLIENT", "KILL", "ID", "1"), ("PUBSUB", "CHANNELS"), ("FLUSHDB",),
        ("SORT", "elsewhere"), ("MIGRATE", "127.0.0.1", "1", "k", "0", "1"), ("DEBUG", "JMAP"), ("ACL", "SETUSER", "x"),
        ("SUBSCRIBE", "elsewhere"), ("PSUBSCRIBE", "*"), ("COPY", "elsewhere", "elsewhere2"), ("DUMP", "elsewhere"),
        ("RENAME", "elsewhere", "elsewhere2"), ("SLOWLOG", "GET"), ("LATENCY", "LATEST"), ("REPLICAOF", "NO", "ONE"),
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
    wait_for(lambda: dead.record().state == "dead")
    assert dead.requeue()
    queue = producer.queue("bare")
    queue.push("x", wait=1)
    (lease,) = queue.reserve(wait=30)
    assert lease.commit()

    wait_for(lambda: broker_of(working).run(_ticks(working)) >= 2, timeout_s=20)
    wait_for(lambda: [one.id for one in working.workers()] == [worker.id])  # unless its heartbeat is late
    wait_for(lambda: [one for one in working.events() if one.kind == "task_died"])
    working.queue("roles").pause()
    working.queue("roles").resume()
    working.queue("roles").configure(history=60, max_inflight=5)
    wait_for(lambda: dead.record().state == "dead")
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


GUARDED = ("audit", "sessions", "{login_attempts}:x")
"""The keys below `jobrunner/`, which protect the dashboard."""


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_who_works_or_enqueues_can_neither_read_nor_erase_audit_and_logins(
    connect: Callable[[str], Client], server: Server, keys: Any, raw: redis.Redis, role: str
) -> None:
    raw.xadd(keys.audit, {"who": "ann"})
    raw.hset(keys.sessions, "x", "y")
    assert connect

    with server.connect(username=role, password="password") as plain:
        for name in GUARDED:
            key = f"{keys.prefix}/{name}"
            for command in (
                ("DEL", key), ("UNLINK", key), ("EXPIRE", key, "1"), ("RENAME", key, f"{keys.prefix}:{{x}}:y"),
                ("COPY", key, f"{keys.prefix}:{{x}}:y"), ("XTRIM", key, "MAXLEN", "0"), ("XADD", key, "*", "a", "b"),
                ("XRANGE", key, "-", "+"), ("HGETALL", key), ("SET", key, "1"), ("DUMP", key), ("TYPE", key),
                ("EVAL", "return redis.call('DEL', KEYS[1])", "1", key),
                ("EVAL", "return redis.call('DEL', ARGV[1])", "0", key),
            ):  # fmt: skip
                with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)permission|NOPERM|can't access"):
                    plain.execute_command(*command)
    assert raw.xlen(keys.audit) == 1
    assert raw.hgetall(keys.sessions) == {b"x": b"y"}


def test_a_producer_reads_the_format_and_sets_it_only_where_there_is_none(
    connect: Callable[[str], Client], server: Server, keys: Any, raw: redis.Redis
) -> None:
    connect("producer").queue("bare").push("x")
    noted = raw.get(keys.format)
    assert noted is not None

    with server.connect(username="producer", password="password") as plain:
        assert plain.get(keys.format) == noted
        assert plain.setnx(keys.format, "99") == 0
        for command in (("SET", keys.format, "99"), ("DEL", keys.format), ("GETDEL", keys.format),
                        ("APPEND", keys.format, "9"), ("INCR", keys.format), ("RENAME", keys.format, "x"),
                        ("EVAL", "return redis.call('SET', KEYS[1], 99)", "1", keys.format)):  # fmt: skip
            with pytest.raises(redis.exceptions.ResponseError):
                plain.execute_command(*command)
    assert raw.get(keys.format) == noted
    assert connect("viewer").queue("bare").counts()["waiting"] == 1


def test_a_producer_touches_nothing_of_workers_periodics_events_and_metadata(
    connect: Callable[[str], Client], server: Server, keys: Any
) -> None:
    assert connect
    with server.connect(username="producer", password="password") as plain:
        for key in (keys.events, keys.audit, keys.job("x"), keys.worker("x"), keys.commands("x"), keys.leader,
                    keys.operation("x"), keys.stats_total):  # fmt: skip
            for command in (("GET", key), ("DEL", key), ("SET", key, "1")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    plain.execute_command(*command)


@pytest.mark.parametrize("role", ["operator", "viewer"])
def test_operators_and_viewers_log_in_at_the_dashboard(
    connect: Callable[[str], Client], keys: Any, raw: redis.Redis, refusals: Callable[[], list[str]], role: str
) -> None:
    client = connect(role)
    raw.sadd(keys.queues, "bare")
    links = LoginLinks()
    browser = Browser(create_app(client, auth=links))

    assert browser.get("/login?token=wrong").status_code == 403
    assert browser.get(f"/login?token={links.new_token()}").status_code == 303
    assert browser.get("/", headers={"accept": "application/json"}).status_code == 200
    paused = browser.post_form("/queues/bare/pause", headers={"accept": "application/json"})
    assert paused.status_code == (200 if role == "operator" else 502)
    told = [one["action"] for one in browser.get("/audit", headers={"accept": "application/json"}).json()["entries"]]
    assert told == ["queue.pause", "login", "login.failed"]
    assert browser.post_form("/logout").status_code == 303
    assert browser.get("/", headers={"accept": "application/json"}).status_code == 401
    assert bool(refusals()) == (role == "viewer")


def test_commands_note_who_did_what_with_the_operators_user(
    connect: Callable[[str], Client], keys: Any, raw: redis.Redis
) -> None:
    use(connect("operator"))
    Fails().enqueue(id="a")
    later = Add(x=2).enqueue(in_=60)
    Worker(client=connect("worker"), queues=["roles"]).run(burst=True)
    client = connect("operator")
    for words in (["queues", "pause", "roles"], ["queues", "resume", "roles"],
                  ["queues", "limit", "roles", "--max-inflight", "3"], ["dead", "requeue", "roles", "--all"],
                  ["queues", "purge", "roles", "--yes"], ["tasks", "cancel", later.id]):  # fmt: skip
        done = CliRunner().invoke(command_line, [*words, "--url", client.settings.url, "--prefix", keys.prefix])
        assert done.exit_code == 0, (words, done.output)

    found = audit.entries(client)
    assert [one.action for one in reversed(found)] == ["queue.pause", "queue.resume", "queue.limit", "dead.requeue",
                                                       "queue.purge", "task.cancel"]  # fmt: skip
    who, host = audit.operator()
    assert {(one.who, one.address, one.role) for one in found} == {(who, host, "command line")}

    worker = connect("worker")
    words = ["queues", "pause", "roles", "--url", worker.settings.url, "--prefix", keys.prefix]
    assert CliRunner().invoke(command_line, words).exit_code == 0
    assert len(audit.entries(client)) == 6


def test_a_viewer_sees_all_pages_and_changes_nothing(
    connect: Callable[[str], Client], keys: Any, refusals: Callable[[], list[str]], raw: redis.Redis
) -> None:
    working = use(connect("worker"))
    task, later = Add(x=1).enqueue(), Add(x=2).enqueue(in_=60)
    Fails().enqueue()
    working.queue("bare").push("x")
    Worker(client=working, queues=["roles"]).run(burst=True)
    viewer = connect("viewer")
    page = TestClient(create_app(viewer, auth=Loopback()), base_url="http://127.0.0.1", client=("127.0.0.1", 50000))
    page.get("/")  # which writes the visitor to the audit log
    for key in raw.scan_iter():
        raw.persist(key)  # a key that expires meanwhile is no change by the viewer
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
    found = leader_calls.metadata_get(keys_of(client), "roles.tick", "ticks")
    return replace(found, read=lambda raw: int(raw or 0))
