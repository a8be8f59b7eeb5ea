"""Type checkers accept the examples of the documentation and reject wrong parameters.

What mypy found out about the package stays from run to run, as its own cache of a working copy does: it is looked up by
the content of files.
"""

import subprocess
import sys
from pathlib import Path

import pytest

GOOD = '''
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from jobrunner import (
    AsyncClient, AsyncQueue, AsyncTaskHandle, Backoff, Cancel, Client, Fail, FlowHandle, Job, PeriodicJob, Queue,
    RateLimit, Retry, Snooze, TaskHandle, Worker, chain, configure, current_task, group, job,
)
from jobrunner.types import (
    BoundCall, Event, FlowProgress, FunctionJob, ItemRecord, PeriodicRecord, RunningTask, TaskRecord, WorkerRecord,
)


@job(queue="mail", max_attempts=5, backoff=Backoff(base=1), timeout=timedelta(seconds=5))
class SendWelcomeEmail(Job):
    """Greets a new user."""

    address: str
    locale: str = "en"

    def run(self) -> str:
        self.progress(1, 2, "half")
        self.log.info("sending", attempt=self.task.attempt, deadline=self.task.deadline)
        self.metadata.increment("sent")
        return f"sent to {self.address}"


@job(queue="maths")
def add(x: int, y: int = 0) -> int:
    return x + y


@job()
async def fetch(url: str) -> str:
    return url


@job(every=timedelta(minutes=5), overlap="allow", catch_up=3)
class Heartbeat(PeriodicJob):
    def run(self) -> None: ...


@job
class CountRows(Job):
    path: str
    limit: int = 0
    columns: list[str] = field(default_factory=list)

    def run(self) -> int:
        return self.limit


@job
class FetchRows(Job):
    path: str

    async def run(self) -> list[int]:
        return []


@job
class Untyped(Job):
    def run(self):  # type: ignore[no-untyped-def]
        return 1


@job
def bare(x: int) -> str:
    return str(x)


@job
async def bare_async(x: int) -> bytes:
    return b""


@job
def steers(x: int) -> int | Snooze:
    return x or Snooze(in_=5)


@job
class Steers(Job):
    async def run(self) -> list[str] | None | Retry | Fail | Cancel:
        return None


@job(cron="0 3 * * *", tz="Europe/Madrid")
class Nightly(PeriodicJob):
    async def run(self) -> None: ...


def enqueue_all() -> None:
    task = SendWelcomeEmail(address="a@b.c").enqueue()
    SendWelcomeEmail(address="a@b.c").enqueue(in_=timedelta(minutes=3))
    SendWelcomeEmail("a@b.c", locale="es").enqueue(in_=5, priority=2, queue="vip", id="my-own-id")
    SendWelcomeEmail(address="a@b.c").enqueue(at=datetime.now(UTC))
    SendWelcomeEmail.enqueue_many([SendWelcomeEmail(address=a) for a in ("x", "y")])
    SendWelcomeEmail.using(in_=5, queue="vip").enqueue(address="a@b.c")
    SendWelcomeEmail(address="a@b.c").using(in_=5).enqueue()
    assert_type(add(1, y=2), int)
    assert_type(add.enqueue(1, y=2), TaskHandle[int])
    assert_type(add.using(in_=60, priority=2).enqueue(1).result(timeout=30), int)
    assert_type(fetch.enqueue("u").result(), str)
    add.enqueue_many([add.bind(1), add.bind(2, y=3)])
    assert_type(CountRows(path="x").enqueue(), TaskHandle[int])
    assert_type(CountRows(path="x").enqueue(in_=5, timeout=30, headers={"a": "b"}).result(), int)
    assert_type(CountRows(path="x").using(max_attempts=1, result_ttl=timedelta(hours=1)).enqueue().result(), int)
    assert_type(CountRows.using(expires_in=60).enqueue("x", limit=3).result(), int)
    assert_type(CountRows.using(expires_in=60).using(timeout=5).bind(path="x").using(in_=5).enqueue().result(), int)
    assert_type(CountRows.enqueue_many([CountRows("x"), CountRows("y")]), list[TaskHandle[int]])
    assert_type(CountRows.enqueue_many([CountRows("x").using(queue="q")]), list[TaskHandle[int]])
    assert_type(CountRows.using(in_=5).enqueue_many([CountRows(path="x")], priority=2), list[TaskHandle[int]])
    CountRows.enqueue_many([CountRows("x"), CountRows("y").using(queue="vip")], in_=60)
    FetchRows.enqueue_many([FetchRows("x"), FetchRows("y").using(queue="vip")])
    assert_type(FetchRows(path="x").enqueue().result(), list[int])
    assert_type(FetchRows(path="x").using(in_=5).enqueue().result(), list[int])
    assert_type(FetchRows.using(in_=5).enqueue(path="x").result(), list[int])
    assert_type(FetchRows.enqueue_many([FetchRows(path="x")])[0].result(), list[int])
    assert_type(SendWelcomeEmail(address="a").enqueue().result(), str)
    assert_type(Nightly().enqueue().result(), None)
    print(Untyped().enqueue().result())
    assert_type(bare(1), str)
    assert_type(bare.enqueue(1).result(), str)
    assert_type(bare_async.enqueue(1).result(), bytes)
    assert_type(steers(1), int | Snooze)
    assert_type(steers.enqueue(1).result(), int)
    assert_type(steers.using(in_=5).enqueue_many([steers.bind(1)])[0].result(timeout=5), int)
    assert_type(Steers().enqueue().result(), list[str] | None)
    assert_type(add.bind(1, y=2).using(timeout=5).enqueue().result(), int)
    assert_type(add.enqueue_many([add.bind(1), add.bind(2).using(in_=5)], queue="slow"), list[TaskHandle[int]])
    flow = chain(CountRows("x").using(queue="slow"), group(add.bind(1).using(timeout=5), CountRows("y")))
    flow.enqueue()
    print(task.id, task.state, task.attempts, task.retry_count, task.enqueue_time, task.error)
    task.record()
    task.cancel()
    task.requeue()


def use_queue(orders: Queue) -> None:
    assert_type(orders.push({"a": 1}, in_=timedelta(minutes=3), priority=2, headers={"a": "b"}), str)
    orders.configure(max_inflight=10, rate=RateLimit(15, per=3600), max_size=None, history=timedelta(days=1))


def use_clients(file: dict[str, Any]) -> None:
    configure("redis://h", "shop", durability="fsync", durability_timeout=timedelta(seconds=1), redact=["iban"])
    assert_type(Client(buffer_tasks=10, payload_keys=("k",), middleware=[print], payload_store=None), Client)
    AsyncClient(retry_timeout=5, payload_encryption="sign", require_encryption=True)
    configure(**file)
    Worker(["tasks"], concurrency=4, executor="processes", grace=timedelta(minutes=1), gates=["memory=90%"])


def annotate(client: Client, flow: FlowHandle) -> tuple[list[TaskRecord], FlowProgress, RunningTask, BoundCall[int]]:
    workers: list[WorkerRecord] = client.workers()
    periodics: list[PeriodicRecord] = client.periodics()
    for event in client.events():
        assert_type(event, Event)
    items: list[ItemRecord] = client.queue("mail").tasks("dead")
    task: FunctionJob[..., int, int] = add
    records = [add.enqueue(1).record(), *items]
    print(workers[0].running, periodics[0].recent, task)
    return records, flow.progress(), current_task(), add.bind(1)


def add_periodic_jobs(client: Client) -> None:
    client.add_periodic("a", add.bind(1), every=timedelta(hours=6))
    client.add_periodic("b", add.using(queue="slow").bind(1, y=2), cron="0 7 * * 1-5", tz="Europe/Madrid")
    client.add_periodic("c", SendWelcomeEmail("a@b.c"), every=60)
    client.add_periodic("d", FetchRows(path="x"), every=60)
    client.add_periodic("e", FetchRows(path="x").using(queue="slow"), every=60, overlap="allow", catch_up=3)
    client.add_periodic("f", CountRows.using(timeout=5).bind(path="x"), every=60)


async def add_periodic_jobs_async(client: AsyncClient) -> None:
    await client.add_periodic("a", SendWelcomeEmail("a@b.c"), every=60)


async def use_async_queue(orders: AsyncQueue) -> None:
    assert_type(await orders.push(b"x", id="mine", expires_in=60, wait=5), str)
    await orders.configure(fair=True, backoff=Backoff(base=3), partitions=4)


async def enqueue_async() -> None:
    handle = await SendWelcomeEmail(address="a@b.c").aenqueue()
    await handle.result(timeout=30)
    assert_type(await fetch("u"), str)
    assert_type(await (await CountRows(path="x").aenqueue(timeout=5)).result(), int)
    assert_type(await (await FetchRows(path="x").using(in_=5).aenqueue()).result(), list[int])
    assert_type((await CountRows.aenqueue_many([CountRows(path="x")]))[0], AsyncTaskHandle[int])
    assert_type((await add.aenqueue_many([add.bind(1)]))[0], AsyncTaskHandle[int])
    await CountRows.aenqueue_many([CountRows("x"), CountRows("y").using(queue="vip")])
    assert_type(await (await add.aenqueue(1)).result(), int)
    assert_type(await (await steers.aenqueue(1)).result(), int)
    assert_type(await (await Steers().aenqueue()).result(), list[str] | None)
'''

WRONG = {
    "a parameter of the wrong type": 'SendWelcomeEmail(address=5)',
    "a missing parameter": "SendWelcomeEmail()",
    "an unknown parameter": 'SendWelcomeEmail(adress="x")',
    "a wrong argument of a function job": 'add.enqueue("1")',
    "an unknown argument of a function job": "add.enqueue(1, z=2)",
    "a wrong argument of bind": 'add.bind("1")',
    "a wrong option of enqueue": 'SendWelcomeEmail(address="x").enqueue(soon=True)',
    "a wrong option of using": 'SendWelcomeEmail.using(soon=True)',
    "a wrong option of enqueue_many": 'add.enqueue_many([add.bind(1)], soon=True)',
    "an option of the wrong type": 'add.using(timeout="soon")',
    "headers that are no strings": 'add.using(headers={"a": 1})',
    "a method of another framework": "add.delay(1)",
    "a result of the wrong type": 'x: int = SendWelcomeEmail(address="x").enqueue().result()',
    "a wrong parameter before using": 'SendWelcomeEmail(address=5).using(in_=5)',
    "text instead of a datetime": 'SendWelcomeEmail(address="x").enqueue(at="tomorrow")',
    "a wrong option of push": 'Client().queue("mail").push(1, in_="soon")',
    "an unknown option of push": 'Client().queue("mail").push(1, soon=True)',
    "a wrong setting of a queue": 'Client().queue("mail").configure(max_inflight="many")',
    "an unknown setting of a queue": 'Client().queue("mail").configure(max_inflght=3)',
    "a periodic job without its parameters": 'Client().add_periodic("a", add, every=60)',
    "a periodic class without its parameters": 'Client().add_periodic("a", SendWelcomeEmail, every=60)',
    "a flow as a periodic job": 'Client().add_periodic("a", chain(add.bind(1)), every=60)',
    "an unknown option of a client": 'configure(durabilty="fsync")',
    "a wrong option of a client": 'Client(durability=1)',
    "a wrong option of an asyncio client": 'AsyncClient(buffer_tasks="many")',
    "an unknown option of a worker": 'Worker(concurency=3)',
    "a wrong option of a worker": 'Worker(grace="long")',
    "an unknown option of @job": "job(quue='mail')",
    "a wrong option of @job": "job(max_attempts='many')",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the good examples, and one file for each wrong line."""
    place = tmp_path_factory.mktemp("typing")
    (place / "good.py").write_text(GOOD)
    for number, line in enumerate(WRONG.values()):
        ours = "from jobrunner import AsyncClient, Client, Worker, chain, configure, job"
        (place / f"wrong_{number}.py").write_text(f"from good import SendWelcomeEmail, add\n{ours}\n\n{line}\n")
    root = Path(__file__).parents[2]
    (place / "pyrightconfig.json").write_text(
        f'{{"typeCheckingMode": "standard", "extraPaths": ["{root}"], "pythonVersion": "3.11"}}'
    )
    return place


def complaints(command: list[str], folder: Path, kept: Path) -> str:
    """The output of a type checker for the files of a folder."""
    root = Path(__file__).parents[2]
    words = [word.format(kept=kept) for word in command]
    run = subprocess.run(
        [sys.executable, "-m", *words, *sorted(path.name for path in folder.glob("*.py"))],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "MYPYPATH": str(root), "HOME": str(folder)},
        timeout=110,
        check=False,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return run.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    "command",
    [["mypy", "--strict", "--no-error-summary", "--follow-imports=silent", "--cache-dir={kept}"],
     ["pyright", "--pythonpath", sys.executable]],
    ids=["mypy", "pyright"],
)  # fmt: skip
def test_the_examples_are_accepted_and_wrong_parameters_rejected(
    command: list[str], folder: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    cache = getattr(pytestconfig, "cache", None)  # there is none with -p no:cacheprovider
    found = complaints(command, folder, cache.mkdir("typing") if cache else tmp_path)
    assert "good.py" not in found, found
    for number, what in enumerate(WRONG):
        assert f"wrong_{number}.py" in found, f"{what} went unnoticed:\n{found}"
