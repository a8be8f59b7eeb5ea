"""Large payloads in a payload store: the reference on the server, what workers read, when objects are deleted, and how
tasks survive a store that is away and an object that is missing or was changed."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import redis
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from starlette.testclient import TestClient

from jobrunner import Client, Job, Unique, Worker, chain, group, job
from jobrunner.attempt import Attempt
from jobrunner.broker.call import command
from jobrunner.client import payload_sweep
from jobrunner.client.client import broker_of, encryption_of, keys_of
from jobrunner.client.current import forget, use
from jobrunner.client.payload_sweep import SweepResult, store_of, sweeping
from jobrunner.clock import unix_ms
from jobrunner.errors import (
    InvalidOption,
    OutcomeUnknown,
    PayloadObjectChanged,
    PayloadObjectMissing,
    PayloadStoreUnavailable,
)
from jobrunner.inspector.audit import entries
from jobrunner.jobs.options import JobOptions
from jobrunner.jobs.registry import StationDefinition, forget_station, register_station
from jobrunner.jobs.running_task import JobRun
from jobrunner.outcome import Acknowledged, Moved, Succeeded
from jobrunner.payload_store.store import PayloadStore
from jobrunner.web.app import create_app
from jobrunner.web.auth import Loopback
from jobrunner.worker import payload_cleaner
from tests.support.command_result import CommandResult
from tests.support.server import Server
from tests.support.waiting import wait_for

LARGE = "large " * 20_000
"""120 kB: above the size from which payloads go to the store."""
OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
seen: list[Any] = []


@job(name="stored.note", queue="stored", max_attempts=2, backoff=lambda *_: 0)
class Note(Job):
    """Keeps what it was given; fails the first time when it should."""

    text: str
    fails: bool = False

    def run(self) -> int:
        seen.append(len(self.text))
        if self.fails and len(seen) == 1:
            raise RuntimeError("not yet")
        return len(self.text)


@job(name="stored.note_async", queue="stored")
async def note_async(text: str) -> int:
    """The same in a coroutine."""
    seen.append(len(text))
    return len(text)


@job(name="stored.dies", queue="stored", max_attempts=1)
def dies(text: str) -> None:
    """Dies."""
    seen.append(len(text))
    raise RuntimeError("dead")


@job(name="stored.brief", queue="stored", result_ttl=0)
def brief(text: str) -> None:
    """Is deleted as soon as it succeeds."""
    seen.append(len(text))


@job(name="stored.last", queue="stored", unique=Unique(by=[], on_clash="replace"))
class Last(Job):
    """The last of its kind counts."""

    text: str

    def run(self) -> None:
        seen.append(self.text[-5:])


Connect = Callable[..., Client]


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    seen.clear()
    yield
    forget()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "payloads"
    made.mkdir()
    return made


@pytest.fixture
def connect(server: Server, keys: Any, clock: Any, folder: Path) -> Iterator[Connect]:
    """connect(payload_store=…, …): the client of this process from now on; without arguments one with the folder."""
    made: list[Client] = []

    def make(**options: Any) -> Client:
        forget()
        options = {"payload_store": folder.as_uri()} | options
        made.append(Client(server.url, keys.prefix, now_ms=clock, **options))
        return use(made[-1])

    yield make
    for client in made:
        client.close()


def work(client: Client, **options: Any) -> None:
    Worker(client=client, queues=["stored"], **options).run(burst=True)


def objects(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def stored(client: Client, raw: redis.Redis, task_id: str) -> dict[bytes, bytes]:
    return raw.hgetall(keys_of(client).queue("stored").task(task_id))


def sweep_now(client: Client) -> SweepResult:
    *_, found = sweeping(broker_of(client), keys_of(client), store_of(encryption_of(client)), grace_s=-1)
    return found


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_the_server_has_a_reference_and_the_job_its_payload(
    connect: Connect, raw: redis.Redis, folder: Path, executor: str
) -> None:
    client = connect()
    tasks = [Note(text=LARGE).enqueue(), note_async.enqueue(text=LARGE), Note(text="small").enqueue()]

    fields = stored(client, raw, tasks[0].id)
    token, size, _ = fields[b"payload"].decode().split(" ")
    (path,) = [path for path in objects(folder) if tasks[0].id in path.name]
    assert fields[b"encoding"] == b"stored/1 "
    assert path == folder / f"prefix={client.settings.prefix}/tag=stored/{tasks[0].id}~{token}"
    assert int(size) == path.stat().st_size
    assert max(map(len, fields.values())) <= 64  # else the hash is a table
    assert b"encoding" not in stored(client, raw, tasks[2].id)
    assert len(objects(folder)) == 2

    work(client, executor=executor, concurrency=1, modules=[__name__] if executor == "processes" else [])

    assert [task.result(timeout=0) for task in tasks] == [len(LARGE), len(LARGE), 5]
    assert json.loads(tasks[0].record().payload)["text"] == LARGE
    assert tasks[0].record().placeholder == ""


def test_a_task_without_a_large_payload_is_stored_as_without_a_store(connect: Connect, raw: redis.Redis) -> None:
    with_store = stored(connect(), raw, Note(text="same").enqueue().id)
    without = stored(connect(payload_store=None), raw, Note(text="same").enqueue().id)

    assert set(with_store) == set(without)
    assert with_store[b"payload"] == without[b"payload"]


def test_many_tasks_share_round_trips_and_each_has_its_object(connect: Connect, folder: Path) -> None:
    client = connect()
    store = encryption_of(client).store  # type: ignore[union-attr]
    puts: list[int] = []
    put = store.put
    store.put = lambda contents: (puts.append(len(contents)), put(contents))[1]  # type: ignore[method-assign]

    tasks = Note.enqueue_many([Note(text=f"{LARGE}{n}") for n in range(40)])

    assert (len(objects(folder)), puts) == (40, [40])
    work(client)
    assert sorted(seen) == sorted(len(f"{LARGE}{n}") for n in range(40))
    assert all(task.result(timeout=0) for task in tasks)


def test_any_file_system_of_fsspec_will_do(connect: Connect) -> None:
    files = fsspec.filesystem("memory")
    client = connect(payload_store="memory://bucket/payloads")
    task = Note(text=LARGE).enqueue()
    assert [path for path in files.find("/bucket/payloads") if task.id in path]

    work(client)

    assert task.result(timeout=0) == len(LARGE)
    task_gone(client, task.id)
    sweep_now(client)
    assert not [path for path in files.find("/bucket/payloads") if task.id in path]


def task_gone(client: Client, task_id: str) -> None:
    """Has the hash of a finished task expire now."""
    broker = broker_of(client)
    key = keys_of(client).queue("stored").task(task_id)
    broker.run(command("UNLINK", key, read=int))


@pytest.mark.parametrize(("durability", "synced"), [("none", 0), ("fsync", 4)])
def test_an_object_is_on_the_disk_before_its_task_is_enqueued_where_durability_asks_for_it(
    connect: Connect, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, durability: str, synced: int
) -> None:
    waiting: list[int] = []
    client = connect(durability=durability, durability_timeout=0.5)
    place = keys_of(client).queue("stored").waiting
    monkeypatch.setattr("jobrunner.payload_store.store.os.fsync", lambda _: waiting.append(raw.zcard(place)))

    with suppress(OutcomeUnknown):  # this server may have no file to confirm
        Note(text=LARGE).enqueue()

    assert waiting == [0] * synced


def test_asyncio_enqueues_and_reads_as_threads_do(connect: Connect, folder: Path) -> None:
    client = connect()

    async def enqueue() -> tuple[str, Any]:
        task = await Note(text=LARGE).aenqueue()
        return task.id, json.loads((await task.record()).payload)["text"]

    task_id, payload = asyncio.run(enqueue())

    assert (payload, len(objects(folder))) == (LARGE, 1)
    work(client)
    assert client.task(task_id).result(timeout=0) == len(LARGE)


def test_a_payload_is_encrypted_before_it_is_stored(connect: Connect, folder: Path, raw: redis.Redis) -> None:
    client = connect(payload_keys=[OLD])
    task = Note(text=LARGE).enqueue()

    (path,) = objects(folder)
    assert b"large" not in path.read_bytes()
    assert stored(client, raw, task.id)[b"encoding"].startswith(b"stored/1 sealed ")

    work(client)
    assert task.result(timeout=0) == len(LARGE)
    assert json.loads(task.record().payload)["text"] == LARGE


def test_ciphertext_of_another_task_is_refused_whatever_its_reference_says(
    connect: Connect, folder: Path, raw: redis.Redis
) -> None:
    client = connect(payload_keys=[OLD])
    one, other = Note(text=LARGE).enqueue(), Note(text=f"{LARGE}x").enqueue()
    queue = keys_of(client).queue("stored")
    raw.hset(queue.task(one.id), mapping=stored(client, raw, other.id))

    work(client)

    assert one.record().error.startswith(f"PayloadObjectMissing: the payload of task {one.id}, object ")
    assert seen == [len(LARGE) + 1]


@pytest.mark.parametrize("keys_of_client", [[NEW], []], ids=["keys", "no keys"])
def test_a_station_passes_a_stored_payload_on(connect: Connect, keys_of_client: list[str]) -> None:
    """With keys the item died: "authentication failed; do not trust it"."""
    client = connect(payload_keys=keys_of_client)

    def build(attempt: Attempt, run: JobRun) -> Any:
        return SimpleNamespace(run=lambda: Moved(queue="storedline/out"))

    register_station(
        "storedline/in",
        StationDefinition(
            name="storedline/in", origin="test", queue="storedline/in", options=JobOptions(queue="storedline/in"),
            build=build, is_async=False,
        ),
    )  # fmt: skip
    try:
        task = Note(text=LARGE).using(queue="storedline/in").enqueue()
        Worker(client=client, queues=["storedline/in"]).run(burst=True)
    finally:
        forget_station("storedline/in")

    record = task.record()
    assert (record.state, record.queue, record.unread) == ("waiting", "storedline/out", None)
    assert json.loads(record.payload)["text"] == LARGE


def test_a_retry_reads_the_object_again(connect: Connect, folder: Path) -> None:
    client = connect()
    task = Note(text=LARGE, fails=True).enqueue()

    work(client)

    assert (task.result(timeout=0), seen) == (len(LARGE), [len(LARGE)] * 2)


def test_a_dead_task_keeps_its_object_and_is_requeued_with_it(connect: Connect, folder: Path) -> None:
    client = connect()
    dies.enqueue(text=LARGE)
    work(client)
    assert sweep_now(client) == SweepResult(objects=1, young=0, used=1, unused=0)

    assert client.queue("stored").requeue_dead() == 1
    work(client)

    assert seen == [len(LARGE)] * 2
    assert client.queue("stored").purge("dead") == 1
    assert sweep_now(client) == SweepResult(objects=1, young=0, used=0, unused=1)
    assert objects(folder) == []


@pytest.mark.parametrize("payload_keys", [[], [OLD]], ids=["plain", "encrypted"])
def test_a_dead_task_gets_new_parameters_in_a_new_object(
    connect: Connect, folder: Path, payload_keys: list[str]
) -> None:
    client = connect(payload_keys=payload_keys)
    task = dies.enqueue(text=LARGE)
    work(client)

    client.queue("stored").requeue_dead([task.id], payload={"text": LARGE * 2})
    assert sweep_now(client).unused == 1
    assert [b"large" in path.read_bytes() for path in objects(folder)] == [not payload_keys]
    work(client)

    assert seen == [len(LARGE), 2 * len(LARGE)]


def test_with_keys_a_dead_task_without_its_object_gets_no_new_parameters(connect: Connect, folder: Path) -> None:
    """Its job and headers may have been changed on the server, and would be encrypted anew."""
    for keys_of_client in ({}, {"payload_keys": [NEW]}):
        client = connect(**keys_of_client)
        task = dies.enqueue(LARGE)
        work(client)
        (object_,) = objects(folder)
        object_.unlink()
        queue = client.queue("stored")
        if keys_of_client:
            with pytest.raises(PayloadObjectMissing, match="enqueue it again"):
                queue.requeue_dead([task.id], payload={"text": "x"})
        else:
            assert queue.requeue_dead([task.id], payload={"text": "x"}) == 1
            work(client)
        assert task.record().state == "dead"


def test_a_replay_from_history_has_an_object_of_its_own(connect: Connect, folder: Path) -> None:
    client = connect()
    queue = client.queue("stored")
    queue.configure(history=60)
    task = brief.enqueue(text=LARGE)
    work(client)
    assert [one.placeholder for one in queue.history()] == [f"(in the payload store: {len(LARGE) + 11:,} bytes)"]

    again = queue.replay(task.id)
    task_gone(client, task.id)
    assert (sweep_now(client).unused, len(objects(folder))) == (1, 1)
    work(client)

    assert seen == [len(LARGE)] * 2
    assert again != task.id


def test_a_missing_object_keeps_no_other_task_from_being_replayed(
    connect: Connect,
    folder: Path,
    cli: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = connect()
    client.queue("stored").configure(history=60)
    ids = [brief.enqueue(text=LARGE).id for _ in range(3)]
    work(client)
    next(path for path in objects(folder) if ids[0] in path.name).unlink()
    monkeypatch.setenv("JOBRUNNER_PAYLOAD_STORE", folder.as_uri())
    capsys.readouterr()  # the log of the worker

    result = cli("history", "replay", "stored", *ids, "gone", "--json")

    assert (result.code, list(result.value["replayed"])) == (1, ids[1:])
    refused = json.loads(result.err)["error"]
    assert refused["message"] == "not in the history of queue stored: gone"
    assert refused["hint"].startswith(f"not replayed: {ids[0]}: the payload of task {ids[0]}")
    work(client)
    assert seen == [len(LARGE)] * 5


def test_a_replay_without_the_store_is_refused_and_changes_nothing(connect: Connect) -> None:
    queue = connect().queue("stored")
    queue.configure(history=60)
    task = brief.enqueue(text=LARGE)
    work(connect())

    with pytest.raises(PayloadStoreUnavailable, match=f"payload of task {task.id} is in a payload store and none is"):
        connect(payload_store=None).queue("stored").replay(task.id)


def test_a_unique_task_that_replaces_another_keeps_its_object(connect: Connect, folder: Path) -> None:
    client = connect()
    first = Last(text=f"{LARGE}first").enqueue()
    second = Last(text=f"{LARGE}other").enqueue()

    assert second.id == first.id
    assert (sweep_now(client).used, len(objects(folder))) == (1, 1)
    work(client)
    assert seen == ["other"]


def test_steps_of_a_flow_run_also_when_their_payloads_are_large(connect: Connect, folder: Path) -> None:
    client = connect()
    flow = chain(Note(text=LARGE), Note(text=f"{LARGE}b")).enqueue()
    sweep_now(client)

    work(client)

    assert flow.result(timeout=0) == len(LARGE) + 1


@pytest.mark.parametrize("damage", ["missing", "changed", "longer", "empty"])
def test_a_missing_or_changed_object_kills_the_task_with_its_url_and_nothing_is_lost(
    connect: Connect, folder: Path, damage: str
) -> None:
    client = connect()
    task = Note(text=LARGE).enqueue()
    (path,) = objects(folder)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"changed": content.swapcase(), "longer": content + b" ", "empty": b""}[damage])

    work(client)

    record = task.record()
    named = f"the payload of task {task.id}, object {folder.as_uri()}/{path.relative_to(folder)},"
    kind = PayloadObjectMissing if damage == "missing" else PayloadObjectChanged
    assert record.error.startswith(f"{kind.__name__}: {named} {'is' if damage == 'missing' else 'was'} ")
    assert (record.state, record.retry_count, seen) == ("dead", 1, [])
    assert (type(record.unread), record.placeholder) == (kind, f"(in the payload store: {len(content):,} bytes)")

    path.write_bytes(content)
    task.requeue()
    work(client)
    assert task.result(timeout=0) == len(LARGE)


def test_while_the_store_is_away_tasks_are_handed_back_and_run_when_it_returns(
    connect: Connect, start: Any, folder: Path
) -> None:
    client = connect()
    tasks = [Note(text=LARGE).enqueue(), note_async.enqueue(text=LARGE)]
    folder.rename(folder.with_name("away"))

    worker = Worker(client=client, queues=["stored"])
    worker.start()
    try:
        wait_for(lambda: all(b"unknown_since" in read_fields(client, task.id) for task in tasks))
        assert [(task.record().state, task.record().retry_count) for task in tasks] == [("scheduled", 0)] * 2
        folder.with_name("away").rename(folder)
        assert [task.result(timeout=20) for task in tasks] == [len(LARGE)] * 2
    finally:
        worker.stop(grace=0)


class Buckets(DirFileSystem):  # type: ignore[misc]
    """Buckets in a folder: as in S3, a bucket has to be made first, and the folders in it come with their objects."""

    protocol = "buckets"
    cachable = False  # each try of the test has a folder of its own
    folder = ""

    def __init__(self, **_: Any) -> None:
        super().__init__(path=self.folder, fs=LocalFileSystem(auto_mkdir=True))

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        if not self.exists(path.partition("/")[0]):
            raise FileNotFoundError("The specified bucket does not exist.")
        super().pipe_file(path, value)


def test_a_bucket_that_is_missing_is_a_store_that_is_away(
    connect: Connect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has the name of another bucket, or credentials that lead elsewhere: no task is to blame."""
    monkeypatch.setattr(Buckets, "folder", str(folder))
    fsspec.register_implementation("buckets", Buckets, clobber=True)
    client = connect(payload_store="buckets://acme/mail")
    with pytest.raises(PayloadStoreUnavailable, match="written to: The specified bucket does not exist; its task or"):
        Note(text=LARGE).enqueue()

    (folder / "acme").mkdir()
    assert sweep_now(client).objects == 0
    task, missing = Note(text=LARGE).enqueue(), Note(text=LARGE).enqueue()
    next(path for path in objects(folder) if missing.id in path.name).unlink()
    (folder / "acme").rename(folder / "other")
    with pytest.raises(PayloadStoreUnavailable, match="cannot be listed: the bucket acme does not exist: create it;"):
        sweep_now(client)

    worker = Worker(client=client, queues=["stored"])
    worker.start()
    try:
        wait_for(lambda: all(b"unknown_since" in read_fields(client, one.id) for one in (task, missing)))
        assert [one.record().state for one in (task, missing)] == ["scheduled"] * 2
        (folder / "other").rename(folder / "acme")
        assert task.result(timeout=20) == len(LARGE)
        wait_for(lambda: missing.record().state == "dead")
    finally:
        worker.stop(grace=0)
    assert missing.record().error.startswith("PayloadObjectMissing: ")


def read_fields(client: Client, task_id: str) -> dict[bytes, bytes]:
    return {name.encode(): value for name, value in client.task(task_id).record().fields.items()}


@pytest.mark.parametrize(
    "keys_of_client", [{}, {"payload_keys": [NEW]}, {"payload_keys": [NEW], "payload_encryption": "sign"}]
)
def test_a_worker_without_the_store_hands_tasks_back_for_one_that_has_it(
    connect: Connect, keys_of_client: dict[str, Any]
) -> None:
    task = Note(text=LARGE).enqueue() if connect(**keys_of_client) else None
    worker = Worker(client=connect(payload_store=None, **keys_of_client), queues=["stored"])
    worker.start()
    try:
        other = connect(**keys_of_client)
        wait_for(lambda: b"unknown_since" in read_fields(other, task.id))
    finally:
        worker.stop(grace=0)

    assert other.task(task.id).record().retry_count == 0
    worker = Worker(client=other, queues=["stored"])
    worker.start()
    try:
        assert other.task(task.id).result(timeout=20) == len(LARGE)
    finally:
        worker.stop(grace=0)


def test_a_reference_of_a_later_version_is_left_for_a_later_release(connect: Connect, raw: redis.Redis) -> None:
    client = connect()
    task = Note(text=LARGE).enqueue()
    raw.hset(keys_of(client).queue("stored").task(task.id), "encoding", "stored/2 ")

    assert isinstance(task.record().unread, PayloadStoreUnavailable)
    assert "'stored/2', this release reads 'stored/1'" in str(task.record().unread)


def test_nothing_is_enqueued_while_the_store_is_away(connect: Connect, folder: Path, raw: redis.Redis) -> None:
    client = connect()
    folder.rmdir()

    with pytest.raises(PayloadStoreUnavailable, match=r"cannot be written to: the folder .* create it, or mount it"):
        Note(text=LARGE).enqueue()

    assert client.queue("stored").counts()["waiting"] == 0
    Note(text="small").enqueue()


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_store_that_goes_away_midway_takes_no_part_of_a_flow_on(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A thousand steps ran, and their callback never came; who tried again ran them twice."""
    client = connect(payload_store_above=10)
    put, times = PayloadStore.put, iter(range(9))

    def put_once(self: PayloadStore, contents: Any) -> None:
        if next(times):
            raise PayloadStoreUnavailable("away")
        put(self, contents)

    monkeypatch.setattr(PayloadStore, "put", put_once)
    flow = group(*(Note(text="fifteen letters") for _ in range(1001)), on_complete=Note(text="all"))
    with pytest.raises(PayloadStoreUnavailable):
        asyncio.run(flow.aenqueue()) if kind == "asyncio" else flow.enqueue()

    assert client.queue("stored").totals()["enqueued"] == 1000
    assert client.queue("stored").counts()["waiting"] == 0
    work(client)
    assert seen == []


def test_an_object_is_deleted_when_its_task_is_gone_and_not_before(
    connect: Connect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_cleaner, "_TURN_S", 0.01)
    client = connect()
    tasks = [brief.enqueue(text=LARGE), Note(text=LARGE).enqueue()]

    worker = Worker(client=client, queues=["stored"])
    worker.start()
    try:
        wait_for(lambda: len(objects(folder)) == 1)
        assert tasks[1].id in objects(folder)[0].name
        assert json.loads(tasks[1].record().payload)["text"] == LARGE
    finally:
        worker.stop(grace=0)


def test_a_sweep_spares_what_is_young_what_is_used_and_what_is_not_ours(
    connect: Connect,
    folder: Path,
    cli: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = connect()
    gone = Note(text=LARGE).enqueue()
    client.queue("stored").purge("waiting")
    kept = Note(text=LARGE).enqueue()
    foreign = next(path for path in objects(folder) if gone.id in path.name).with_name("notes.txt")
    foreign.write_text("not ours")
    monkeypatch.setenv("JOBRUNNER_PAYLOAD_STORE", folder.as_uri())

    young = cli("payloads", "sweep", "--json")
    assert json.loads(young.out) == {"objects": 2, "young": 2, "used": 0, "unused": 0, "left": 0}
    monkeypatch.setattr(payload_sweep, "unix_ms", lambda: unix_ms() + 604_800_000)  # a week later
    assert "1 of tasks, 0 younger than 86400 s, 1 would be deleted" in cli("payloads", "sweep", "--dry-run").out
    assert len(objects(folder)) == 3

    assert cli("payloads", "sweep", "--json").value == {"objects": 2, "young": 0, "used": 1, "unused": 1, "left": 0}
    assert [path.name.partition("~")[0] for path in objects(folder)] == sorted([kept.id, "notes.txt"])


def test_a_sweep_is_in_the_audit_log_also_one_that_ctrl_c_cuts_off(
    connect: Connect, folder: Path, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    for _ in range(3):
        Note(text=LARGE).enqueue()
    client.queue("stored").purge("waiting")
    monkeypatch.setenv("JOBRUNNER_PAYLOAD_STORE", folder.as_uri())
    monkeypatch.setattr(payload_sweep, "_AT_ONCE", 1)
    monkeypatch.setattr(payload_sweep, "unix_ms", lambda: unix_ms() + 604_800_000)  # a week later
    deletes = PayloadStore.delete

    def pressed(store: PayloadStore, keys: list[str]) -> dict[str, str]:
        if len(objects(folder)) == 2:
            raise KeyboardInterrupt
        return deletes(store, keys)

    with monkeypatch.context() as patched:
        patched.setattr(PayloadStore, "delete", pressed)
        assert cli("payloads", "sweep").code == 130
    assert cli("payloads", "sweep", "--dry-run").code == cli("payloads", "sweep").code == 0

    assert [(one.action, one.outcome) for one in entries(client)] == [
        ("payloads.sweep", "2 deleted"),
        ("payloads.sweep", "broke off: 1 deleted, or about that"),
    ]


def test_a_turn_of_the_leader_sweeps_a_part_of_the_store(
    connect: Connect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that swept it all took longer than a minute in a large store: `/health` then failed, and the worker was
    restarted before the sweep had ended. What was due meanwhile had to wait."""
    client = connect()
    tasks = [Note(text=LARGE).enqueue() for _ in range(4)]
    reserved = client.queue("stored").reserve()[0].attempt
    client.queue("stored").purge("waiting")
    task_gone(client, reserved.id)
    monkeypatch.setattr(payload_sweep, "unix_ms", lambda: unix_ms() + 604_800_000)  # a week later
    monkeypatch.setattr(payload_sweep, "_AT_ONCE", 1)
    monkeypatch.setattr(payload_cleaner, "_FIRST_SWEEP_S", 0.0)
    store = store_of(encryption_of(client))
    cleaner = payload_cleaner.PayloadCleaner(broker_of(client), keys_of(client), store, lambda: True)

    assert (cleaner.step(), len(objects(folder))) == (0.0, len(tasks)), "a listing is a turn"
    assert (cleaner.step(), len(objects(folder))) == (0.0, 3)
    cleaner.note([(reserved, Acknowledged())], ["ok"])
    left = []
    while cleaner.step() == 0.0:
        left.append(len(objects(folder)))

    assert left[0] in (1, 2), "the one that is due, and the next of the sweep"
    assert left[-1] == 0
    assert all(more - fewer <= 1 for more, fewer in pairwise(left))


@pytest.mark.parametrize("count", [1, 30])
def test_an_object_that_the_store_keeps_keeps_no_other_there(
    connect: Connect, folder: Path, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A bucket may lock objects, or have some of another owner. It is not taken for a store that is away."""
    client = connect()
    for _ in range(count):
        Note(text=LARGE).enqueue()
    client.queue("stored").purge("waiting")
    locked = str(objects(folder)[0])
    delete = LocalFileSystem.rm_file

    def refuse(files: LocalFileSystem, path: str) -> None:
        if path == locked:
            raise PermissionError(13, "the object is locked", path)
        delete(files, path)

    monkeypatch.setattr(LocalFileSystem, "rm_file", refuse)
    monkeypatch.setenv("JOBRUNNER_PAYLOAD_STORE", folder.as_uri())
    monkeypatch.setattr(payload_sweep, "unix_ms", lambda: unix_ms() + 604_800_000)  # a week later
    for before in (count, 1):
        said = cli("payloads", "sweep").out
        assert f"{before - 1} deleted, 1 that the store does not delete" in said
        assert [str(path) for path in objects(folder)] == [locked]

    monkeypatch.setattr(LocalFileSystem, "rm_file", delete)
    assert sweep_now(client).left == 0
    assert objects(folder) == []


def test_objects_of_all_partitions_are_deleted_when_their_tasks_are_gone(
    connect: Connect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_cleaner, "_TURN_S", 0.01)
    client = connect()
    client.queue("stored").configure(partitions=4)
    brief.enqueue_many([brief.bind(text=LARGE) for _ in range(64)])
    kept = [task.id for task in Note.enqueue_many([Note(text=LARGE) for _ in range(64)], in_=3600)]
    client.queue("stored").purge("scheduled")
    assert {path.parent.name for path in objects(folder)} == {f"tag=stored{end}" for end in ("", "@1", "@2", "@3")}
    worker = Worker(client=client, queues=["stored"])
    worker.start()
    try:
        wait_for(lambda: len(objects(folder)) == len(kept))
    finally:
        worker.stop(grace=0)
    monkeypatch.setattr(payload_sweep, "unix_ms", lambda: unix_ms() + 604_800_000)  # a week later
    *_, found = sweeping(broker_of(client), keys_of(client), store_of(encryption_of(client)))
    assert found == SweepResult(objects=64, young=0, used=0, unused=64)
    assert objects(folder) == []


def test_a_damaged_task_keeps_no_objects_of_other_queues(connect: Connect, folder: Path, raw: redis.Redis) -> None:
    client = connect()
    damaged, other = brief.enqueue(text=LARGE), brief.using(queue="others").enqueue(text=LARGE)
    raw.rename(key := keys_of(client).queue("stored").task(damaged.id), "aside")
    raw.set(key, "no hash")
    client.queue("others").purge("waiting")
    task_gone(client, other.id)

    assert sweep_now(client) == SweepResult(objects=2, young=0, used=1, unused=1)

    assert [path.parent.name for path in objects(folder)] == ["tag=stored"]


def test_the_object_of_a_task_that_is_kept_for_a_waiting_client_is_deleted_a_little_later(
    connect: Connect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_cleaner, "_LATER_S", 0.0)
    client = connect()
    task = brief.enqueue(text=LARGE)
    store = store_of(encryption_of(client))
    cleaner = payload_cleaner.PayloadCleaner(broker_of(client), keys_of(client), store, lambda: False)
    reserved = client.queue("stored").reserve()[0].attempt
    cleaner.note([(reserved, Succeeded())], ["ok"])

    cleaner.step()
    assert len(objects(folder)) == 1
    task_gone(client, task.id)
    cleaner.step()
    assert objects(folder) == []


def test_the_leader_sweeps_what_workers_forgot(
    connect: Connect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_sweep, "unix_ms", lambda: unix_ms() + 604_800_000)
    monkeypatch.setattr(payload_cleaner, "_FIRST_SWEEP_S", 0.0)
    client = connect()
    Note(text=LARGE).enqueue()
    client.queue("stored").purge("waiting")
    kept = Note(text=LARGE).enqueue()
    leads = False
    store = store_of(encryption_of(client))
    cleaner = payload_cleaner.PayloadCleaner(broker_of(client), keys_of(client), store, lambda: leads)

    cleaner.step()
    assert len(objects(folder)) == 2

    leads = True
    while cleaner.step() == 0.0:
        pass
    assert [path.name.partition("~")[0] for path in objects(folder)] == [kept.id]


def test_pages_and_commands_show_a_stored_payload_and_lists_do_not_read_it(
    connect: Connect, folder: Path, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    task = Note(text=f"needle {LARGE}").enqueue()
    note = "(in the payload store: 120,032 bytes)"

    def page() -> str:
        site = TestClient(create_app(client, auth=Loopback()), base_url="http://127.0.0.1", client=("127.0.0.1", 50000))
        return str(site.get(f"/tasks/{task.id}").text)

    monkeypatch.setenv("JOBRUNNER_PAYLOAD_STORE", folder.as_uri())
    assert "needle" in page()
    assert cli("tasks", "show", task.id, "--json").value["payload"]["text"].startswith("needle")
    assert cli("tasks", "list", "stored", "--json").value[0]["payload"] == note
    assert [row.placeholder for row in client.queue("stored").tasks("waiting")] == [note]

    monkeypatch.delenv("JOBRUNNER_PAYLOAD_STORE")
    client = connect(payload_store=None)
    assert note in page()
    assert cli("tasks", "show", task.id, "--json").value["payload"] == note


def test_a_sweep_needs_a_store(cli: Callable[..., CommandResult]) -> None:
    found = cli("payloads", "sweep")

    assert found.code == 2
    assert "no payload store is configured; set JOBRUNNER_PAYLOAD_STORE" in found.err


def test_the_doctor_lists_the_store(
    cli: Callable[..., CommandResult], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[dict[str, str]]:
        return [check for check in cli("doctor", "--json").value if check["what"] == "payloads"]

    assert found() == []
    monkeypatch.setenv("JOBRUNNER_PAYLOAD_STORE", folder.as_uri())
    assert [(check["verdict"], check["found"]) for check in found()] == [
        ("ok", f"the payload store {folder.as_uri()} can be listed")
    ]
    folder.rmdir()
    (check,) = found()
    assert (check["verdict"], check["advice"].partition(",")[0]) == ("warn", "see whether it can be reached from here")
    assert check["found"].endswith(f"cannot be listed: the folder {folder} does not exist: create it, or mount it")


def test_what_is_no_url_is_refused_and_a_password_is_in_no_message(server: Server) -> None:
    with pytest.raises(InvalidOption, match=r"payload_store='payloads': give a URL"):
        Client(server.url, payload_store="payloads")
    with pytest.raises(InvalidOption, match=r"payload_store='file://payloads' would be .*; write the whole path"):
        Client(server.url, payload_store="file://payloads")
    with pytest.raises(InvalidOption, match=r"payload_store: Protocol not known: nowhere"):
        Client(server.url, payload_store="nowhere://bucket")
    with pytest.raises(InvalidOption, match=r"payload_store: threads cannot share the one connection of sftp; mount"):
        Client(server.url, payload_store="sftp://ada:hunter2@host/payloads")
    assert "hunter2" not in repr(Client(server.url, payload_store="memory://ada:hunter2@bucket").settings)


def test_the_store_may_be_named_in_the_environment_or_the_file_of_the_project(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.jobrunner]\npayload_store = "memory://file"\npayload_store_above = 7\n'
    )
    settings = Client(server.url).settings
    assert (settings.payload_store, settings.payload_store_above) == ("memory://file", 7)

    monkeypatch.setenv("JOBRUNNER_PAYLOAD_STORE", "memory://environment")
    monkeypatch.setenv("JOBRUNNER_PAYLOAD_STORE_ABOVE", "8")
    settings = Client(server.url, payload_store_above=9).settings
    assert (settings.payload_store, settings.payload_store_above) == ("memory://environment", 9)

    monkeypatch.setenv("JOBRUNNER_PAYLOAD_STORE_ABOVE", "64k")
    with pytest.raises(InvalidOption, match=r"JOBRUNNER_PAYLOAD_STORE_ABOVE='64k': give a whole number"):
        Client(server.url)
