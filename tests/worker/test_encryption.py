"""Encrypted and signed tasks through workers, clients, pipelines, flows and pages: without a key they can be neither
read nor swapped nor changed, and a task that cannot be decrypted loses nothing: it waits for the key, or is dead."""

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import redis
import structlog
from click.testing import CliRunner
from starlette.testclient import TestClient

from jobrunner import Client, Item, Job, PeriodicJob, Unique, Worker, chain, group, job
from jobrunner.broker.broker import Broker
from jobrunner.cli.main import jobrunner as command_line
from jobrunner.client import flow_results
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import broker_of, encryption_of, keys_of
from jobrunner.client.current import forget, use
from jobrunner.clock import from_ms
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.errors import (
    DecryptionFailed,
    EncryptionKeyMissing,
    InvalidOption,
    NotEncrypted,
    OutcomeUnknown,
    QueueFull,
    ServerUnavailable,
    UnknownOption,
)
from jobrunner.etl import Drop, Pipeline, To
from jobrunner.web.app import create_app
from jobrunner.web.auth import Loopback
from tests.support.server import Server
from tests.support.waiting import wait_for

OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
SECRET = "keep-it-secret"
seen: list[Any] = []


@job(name="sealed.note", queue="sealed", max_attempts=3)
class Note(Job):
    """Keeps what it was given."""

    text: str

    def run(self) -> str:
        seen.append(self.text)
        return f"{self.text} noted"


@job(name="sealed.other", queue="sealed")
class Other(Job):
    """Has the parameters of Note."""

    text: str

    def run(self) -> None:
        seen.append(("other", self.text))


@job(name="sealed.join", queue="sealed-join")
class Join(Job):
    """Joins what a flow gave it."""

    text: str

    def run(self) -> str:
        return ",".join([self.text, *self.task.results])


@job(name="sealed.join_async", queue="sealed-join", max_attempts=1)
class JoinAsync(Job):
    """The same as a coroutine, at the first attempt or not at all."""

    text: str

    async def run(self) -> str:
        return ",".join([self.text, *self.task.results])


@job(name="sealed.last", queue="sealed", unique=Unique(by=[], on_clash="replace"))
class Last(Job):
    """The last of its kind counts."""

    text: str

    def run(self) -> None:
        seen.append(self.text)


@job(name="sealed.tick", queue="ticks", every=timedelta(seconds=1))
class Tick(PeriodicJob):
    """Fires."""

    text: str = SECRET

    def run(self) -> None:
        seen.append(self.text)


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    seen.clear()
    yield
    forget()


@pytest.fixture(params=["encrypt", "sign"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(server: Server, keys: Any, clock: Any) -> Iterator[Callable[..., Client]]:
    """connect(keys…): the client of this process from now on, with these payload_keys."""
    made: list[Client] = []

    def make(*payload_keys: str, **options: Any) -> Client:
        forget()
        made.append(Client(server.url, keys.prefix, now_ms=clock, payload_keys=payload_keys, **options))
        return use(made[-1])

    yield make
    for client in made:
        client.close()


def work(client: Client, *queues: str, **options: Any) -> None:
    Worker(client=client, queues=queues or ["sealed"], **options).run(burst=True)


def everything(raw: redis.Redis) -> bytes:
    """All that the server holds."""
    return b"".join(raw.dump(key) or b"" for key in raw.scan_iter())


def keep_uncompressed(raw: redis.Redis) -> None:
    raw.config_set("rdbcompression", "no")


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_task_runs_and_the_server_never_saw_what_it_was_about(
    connect: Callable[..., Client], raw: redis.Redis, executor: str
) -> None:
    keep_uncompressed(raw)
    client = connect(OLD)
    task = Note(text=SECRET).enqueue()
    assert SECRET.encode() not in everything(raw)

    work(client, executor=executor, concurrency=1, modules=[__name__] if executor == "processes" else [])

    assert SECRET.encode() not in everything(raw)
    assert task.result(timeout=0) == f"{SECRET} noted"
    assert (task.record().unread, json.loads(task.record().payload)) == (None, {"text": SECRET})


def test_signed_payloads_stay_readable_and_results_too(connect: Callable[..., Client], raw: redis.Redis) -> None:
    client = connect(OLD, payload_encryption="sign")
    task = Note(text=SECRET).enqueue()

    work(client)

    stored = raw.hgetall(keys_of(client).queue("sealed").task(task.id))
    assert json.loads(stored[b"payload"]) == {"text": SECRET}
    assert json.loads(stored[b"result"])["value"] == f"{SECRET} noted"
    assert task.result(timeout=0) == f"{SECRET} noted"


@pytest.mark.parametrize("lacks", [(), (NEW,)])
def test_a_worker_without_the_key_hands_the_task_back_and_another_runs_it(
    connect: Callable[..., Client], clock: Any, kind: str, lacks: tuple[str, ...]
) -> None:
    clock.set()
    connect()
    Other(text="plain, beside it").enqueue()
    connect(OLD, payload_encryption=kind)
    task_id = Note(text=SECRET).enqueue().id

    with structlog.testing.capture_logs() as lines:
        work(connect(*lacks))
        clock.advance(2_000)
        work(connect(*lacks))

    client = connect(NEW, OLD)
    record = client.task(task_id).record()
    assert (record.state, record.retry_count, record.error) == ("scheduled", 0, "")
    told = [line for line in lines if line["event"].startswith("payloads cannot be read: tasks are handed back")]
    assert len(told) == 2, "once a minute each"
    assert "EncryptionKeyMissing: " in told[0]["error"]
    assert seen == [("other", "plain, beside it")]
    clock.advance(60_000)
    work(client)
    assert client.task(task_id).result(timeout=0) == f"{SECRET} noted"


@pytest.mark.parametrize("step", [Join, JoinAsync])
def test_a_step_whose_results_need_a_key_that_its_worker_lacks_waits_for_another_worker(
    connect: Callable[..., Client], clock: Any, kind: str, step: type[Join | JoinAsync]
) -> None:
    """As while keys are rotated: the step was enqueued with the old key, and those before it ran with the new one."""
    clock.set()
    connect(OLD, payload_encryption=kind)
    chain(group(Note(text="a"), Note(text="b")), step(text="all")).enqueue()
    work(connect(NEW, OLD, payload_encryption=kind))

    for _ in range(3):
        work(connect(OLD, payload_encryption=kind), "sealed-join")
        clock.advance(60_000)

    client = connect(NEW, OLD)
    (held,) = client.queue("sealed-join").tasks("waiting") + client.queue("sealed-join").tasks("scheduled")
    work(client, "sealed-join")
    assert client.task(held.id).result(timeout=0) == "all,a noted,b noted"


@pytest.mark.parametrize("step", [Join, JoinAsync])
def test_a_step_whose_results_cannot_be_read_as_the_server_is_away_spends_no_attempt(
    connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch, step: type[Join | JoinAsync]
) -> None:
    read, tries = flow_results.receive, count()

    def receive(*of: Any) -> Any:
        if next(tries) < 2:
            raise ServerUnavailable("away")
        return read(*of)

    monkeypatch.setattr(flow_results, "receive", receive)
    client = connect(OLD)
    flow = chain(group(Note(text="a"), Note(text="b")), step(text="all")).enqueue()

    work(client, "sealed", "sealed-join")

    assert flow.result(timeout=0) == "all,a noted,b noted"
    assert next(tries) > 2


def test_a_worker_that_drains_waits_for_no_key(connect: Callable[..., Client], kind: str) -> None:
    connect(OLD, payload_encryption=kind)
    task_id = Note.using(max_attempts=1).enqueue(text=SECRET).id
    client = connect(NEW)

    Worker(client=client, queues=["sealed"]).run(drain=True)

    record = client.task(task_id).record()
    assert record.state == "dead"
    assert record.error.startswith("EncryptionKeyMissing")


def test_a_task_whose_key_no_worker_has_is_dead_in_the_end_and_runs_once_the_key_is_there(
    connect: Callable[..., Client], clock: Any, kind: str
) -> None:
    clock.set()
    connect(OLD, payload_encryption=kind)
    task_id = Note(text=SECRET).enqueue().id

    client = connect(NEW)
    work(client)
    for _ in range(3):
        clock.advance(86_400_000)
        work(client)

    task = client.task(task_id)
    assert (task.state, task.attempts) == ("dead", 3)
    assert task.record().error.startswith("EncryptionKeyMissing: ")
    assert seen == []
    client = connect(NEW, OLD)
    assert client.queue("sealed").requeue_dead([task_id]) == 1
    work(client)
    assert client.task(task_id).result(timeout=0) == f"{SECRET} noted"


@pytest.mark.parametrize("what", ["of another task", "as another type", "changed"])
def test_a_payload_that_was_swapped_or_changed_does_not_run(
    connect: Callable[..., Client], raw: redis.Redis, kind: str, what: str
) -> None:
    client = connect(OLD, payload_encryption=kind)
    one, two = Note(text="one").enqueue(), Note(text="two").enqueue()
    first, second = (keys_of(client).queue("sealed").task(task.id) for task in (one, two))
    if what == "of another task":
        raw.hset(first, mapping={name: raw.hget(second, name) for name in ("payload", "encoding")})
    elif what == "as another type":
        raw.hset(first, "type", "sealed.other")
    else:
        raw.hset(first, "payload", raw.hget(first, "payload").replace(b"e", b"f") + b" ")

    work(client)

    assert seen == ["two"]
    assert one.error.startswith("DecryptionFailed: ")
    assert one.record().state == "dead"


def test_who_requires_encryption_runs_nothing_plain(connect: Callable[..., Client], raw: redis.Redis) -> None:
    connect()
    plain = Note(text="plain").enqueue().id
    client = connect(OLD, require_encryption=True)
    protected = Note(text="sealed").enqueue()
    raw.hset(keys_of(client).queue("sealed").task(protected.id), "shade", "blue")

    work(client)

    assert seen == ["sealed"]
    assert client.task(plain).error.startswith("NotEncrypted: ")
    raw.hset(keys_of(client).queue("sealed").task(protected.id), "result", b'"forged"')
    with pytest.raises(NotEncrypted):
        protected.result(timeout=0)


@pytest.mark.parametrize("lacks_result", [False, True])
def test_a_result_is_read_with_its_own_key(connect: Callable[..., Client], kind: str, lacks_result: bool) -> None:
    """Its task was encrypted with the old key, and ran in a worker that has the new one in front."""
    connect(OLD, payload_encryption=kind)
    task_id = Note(text=SECRET).enqueue().id
    work(connect(*((OLD, NEW) if lacks_result else (NEW, OLD)), payload_encryption=kind))
    client = connect(NEW)
    task = client.task(task_id)

    async def result() -> object:
        async with AsyncClient(client.settings.url, client.settings.prefix, payload_keys=[NEW]) as other:
            return await other.task(task_id).result(timeout=0)

    if lacks_result:
        with pytest.raises(EncryptionKeyMissing):
            task.result(timeout=0)
        return
    assert task.result(timeout=0) == asyncio.run(result()) == f"{SECRET} noted"
    assert isinstance(task.record().unread, EncryptionKeyMissing), "of its parameters"


@pytest.mark.parametrize("changed", [{}, {"payload": b"{}"}], ids=["their key is gone", "they were changed"])
def test_a_forged_result_is_refused_also_when_the_parameters_cannot_be_decrypted(
    connect: Callable[..., Client], raw: redis.Redis, changed: dict[str, bytes]
) -> None:
    connect(OLD)
    task_id = Note(text=SECRET).enqueue().id
    work(connect(NEW, OLD))
    client = connect(NEW, *[OLD] * len(changed), require_encryption=True)
    raw.hset(keys_of(client).queue("sealed").task(task_id), mapping={"result": b'"forged"', **changed})

    with pytest.raises(NotEncrypted):
        client.task(task_id).result(timeout=0)


def test_without_that_plain_tasks_go_on_beside_encrypted_ones(connect: Callable[..., Client]) -> None:
    connect()
    Note(text="plain").enqueue()
    client = connect(OLD)
    Note(text="sealed").enqueue()

    work(client)

    assert sorted(seen) == ["plain", "sealed"]


def test_a_result_of_another_task_is_not_given_to_who_waits(
    connect: Callable[..., Client], raw: redis.Redis, kind: str
) -> None:
    client = connect(OLD, payload_encryption=kind)
    one, two = Note(text="one").enqueue(), Note(text="two").enqueue()
    work(client)
    first, second = (keys_of(client).queue("sealed").task(task.id) for task in (one, two))
    raw.hset(first, "result", raw.hget(second, "result"))

    with pytest.raises(DecryptionFailed):
        one.result(timeout=0)
    without = connect()
    with pytest.raises(EncryptionKeyMissing):
        without.task(two.id).result(timeout=0)


def test_items_of_a_bare_queue_are_encrypted_over_moves_requeueing_and_replay(
    connect: Callable[..., Client], raw: redis.Redis, kind: str
) -> None:
    client = connect(OLD, payload_encryption=kind, require_encryption=True)
    first, second = client.queue("etl/first"), client.queue("etl/second")
    second.configure(history=60)
    ids = first.push_many([{"n": 1}, b"\x00\xff", Item("keep", id="mine")])

    for lease, kept in zip(first.reserve(3), [{"n": 1}, b"\x00\xff", "keep"], strict=True):
        assert lease.payload == kept
        lease.move("second", payload="moved") if lease.id == ids[0] else lease.move("second")
    leases = second.reserve(3)
    assert [lease.payload for lease in leases] == ["moved", b"\x00\xff", "keep"]
    leases[0].rollback(error="no", delay=0)
    leases[1].commit(result={"done": 1})
    leases[2].release()

    again = second.replay(ids[1])
    popped: list[str] = []
    wait_for(lambda: popped.extend(str(one.payload) for one in second.pop(9)) or len(popped) >= 3)  # one is due now
    assert sorted(popped) == sorted(["moved", "keep", str(b"\x00\xff")])
    assert again != ids[1]
    assert (raw.hget(keys_of(second).task(ids[1]), "payload") == b"\x00\xff") is (kind == "sign")


def test_a_dead_item_is_mended_with_a_payload_that_is_encrypted_for_it(
    connect: Callable[..., Client], kind: str
) -> None:
    client = connect(OLD, payload_encryption=kind, require_encryption=True)
    queue = client.queue("corrected")
    queue.configure(max_attempts=1)
    ids = queue.push_many(["bad", "worse"])
    for lease in queue.reserve(2):
        lease.rollback(error="no")

    assert queue.requeue_dead(ids, payload="good") == 2

    assert [lease.payload for lease in queue.reserve(2)] == ["good", "good"]


def test_what_was_popped_without_its_key_is_not_lost(connect: Callable[..., Client]) -> None:
    connect(OLD).queue("mail").push("x", id="mine")
    (popped,) = connect().queue("mail").pop()

    with pytest.raises(EncryptionKeyMissing):
        _ = popped.payload
    assert len(popped.stored) == len(b'"x"') + 40


def test_a_lease_whose_key_lacks_says_so_and_can_be_given_back(connect: Callable[..., Client]) -> None:
    connect(OLD).queue("mail").push("x", id="mine")
    (lease,) = connect().queue("mail").reserve()

    with pytest.raises(EncryptionKeyMissing, match="JOBRUNNER_PAYLOAD_KEYS"):
        _ = lease.payload
    assert lease.release()
    assert [lease.payload for lease in connect(OLD).queue("mail").reserve()] == ["x"]


def test_an_asyncio_client_encrypts_and_decrypts_too(connect: Callable[..., Client], kind: str) -> None:
    client = connect(OLD, payload_encryption=kind)

    async def push() -> Any:
        async with AsyncClient.like(client.settings) as twin:
            queue = twin.queue("mail")
            await queue.push({"a": 1})
            (lease,) = await queue.reserve()
            await lease.release()
            task = await Note(text=SECRET).aenqueue()
            return lease.payload, task.id

    payload, task_id = asyncio.run(push())
    work(client)

    assert payload == {"a": 1}
    assert client.task(task_id).result(timeout=0) == f"{SECRET} noted"


def test_many_are_encrypted_one_by_one(connect: Callable[..., Client], raw: redis.Redis) -> None:
    client = connect(OLD, require_encryption=True)
    tasks = Note.enqueue_many([Note(text=str(n)) for n in range(1500)])

    stored = {raw.hget(keys_of(client).queue("sealed").task(task.id), "payload") for task in tasks}
    assert len(stored) == 1500
    work(client)
    assert sorted(map(int, seen)) == list(range(1500))


def test_stations_fork_fan_out_and_keep_their_payloads(connect: Callable[..., Client], kind: str) -> None:
    client = connect(OLD, payload_encryption=kind, require_encryption=True)
    line = Pipeline("sealed-line", client=client)

    @line.station("raw", to="parts")
    def parse(item: Any) -> Any:
        return {"all": item.payload}

    @line.station("parts", to=("kept", "gone"), fan_out=True)
    def split(item: Any) -> Any:
        return [To("kept"), To("gone"), To("kept", item.payload["all"])]

    @line.sink("kept")
    def keep(item: Any) -> None:
        seen.append(item.payload)

    @line.sink("gone")
    def lose(item: Any) -> None:
        raise Drop

    line.push("raw", SECRET)
    work(client, *(f"sealed-line/{name}" for name in ("raw", "parts", "kept", "gone")))

    assert sorted(map(str, seen)) == sorted([str({"all": SECRET}), SECRET])


def test_flows_bring_results_that_only_their_steps_read(
    connect: Callable[..., Client], raw: redis.Redis, kind: str
) -> None:
    keep_uncompressed(raw)
    client = connect(OLD, payload_encryption=kind, require_encryption=True)
    both = group(Note(text="a-secret"), Note(text="b-secret"))
    flow = chain(both, Join(text="c-secret")).enqueue()
    work(client, "sealed", "sealed-join")

    assert flow.result(timeout=30) == "c-secret,a-secret noted,b-secret noted"
    assert (b"-secret" in everything(raw)) is (kind == "sign")


def test_the_payload_that_takes_the_place_of_another_opens_in_its_place(
    connect: Callable[..., Client], kind: str
) -> None:
    client = connect(OLD, payload_encryption=kind, require_encryption=True)
    first = Last(text="first").enqueue()
    second = Last(text="second").enqueue()

    assert first.id == second.id
    work(client)
    assert seen == ["second"]


@pytest.mark.parametrize("error", [ServerUnavailable("no server"), QueueFull("full")])
def test_an_error_about_a_payload_that_takes_the_place_of_another_says_that_others_were_added(
    connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is encrypted once more, for the task whose place it takes. The error of that said that nothing was sent."""
    client = connect(OLD)
    Last(text="first").enqueue()
    write, trips = Broker.write, count(1)

    def write_once(self: Broker, calls: Any) -> list[Any]:
        if next(trips) == 2:
            raise error
        return write(self, calls)

    monkeypatch.setattr(Broker, "write", write_once)
    kind = OutcomeUnknown if isinstance(error, ServerUnavailable) else type(error)
    with pytest.raises(kind, match=r"others of the same call may have been added"):
        Last.enqueue_many([Note(text="other"), Last(text="second")])
    assert client.queue("sealed").counts()["waiting"] == 2


@pytest.mark.parametrize("said", [",", " , ", " "])
def test_a_variable_with_commas_and_no_key_is_refused(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """As "$NEW,$OLD" is where neither is set: payloads would be stored as plain text."""
    monkeypatch.setenv("JOBRUNNER_PAYLOAD_KEYS", said)
    with pytest.raises(InvalidOption, match=r"JOBRUNNER_PAYLOAD_KEYS has commas or blanks and no key"):
        Client("redis://127.0.0.1:1")


def test_tasks_of_periodic_jobs_are_encrypted_by_the_leader(connect: Callable[..., Client], clock: Any) -> None:
    client = connect(OLD, require_encryption=True)
    from jobrunner.broker.calls import leader as leader_calls
    from jobrunner.jobs.build import published
    from jobrunner.jobs.registry import find

    now = clock.set()
    definition = find("sealed.tick")
    signed = published([definition], encryption_of(client))
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), signed))
    fire = PeriodicTicks(broker_of(client), keys_of(client), encryption_of(client))
    fire.step(1, from_ms(now))
    clock.advance(1000)
    fire.step(1, from_ms(now + 1000))

    work(client, "ticks")

    assert set(seen) == {SECRET}


def test_pages_and_commands_show_that_it_is_encrypted_and_with_keys_what_it_is(
    connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(OLD)
    task = Note(text=SECRET).enqueue()
    work(client)

    def shown() -> tuple[str, str]:
        page = TestClient(create_app(client, auth=Loopback()), base_url="http://127.0.0.1", client=("127.0.0.1", 50000))
        told = CliRunner().invoke(
            command_line, ["tasks", "show", task.id, "--url", client.settings.url, "--prefix", keys_of(client).prefix]
        )
        assert told.exit_code == 0, told.output
        return page.get(f"/tasks/{task.id}").text, told.output

    monkeypatch.setenv("JOBRUNNER_PAYLOAD_KEYS", OLD)
    assert all(SECRET in text for text in shown())

    monkeypatch.delenv("JOBRUNNER_PAYLOAD_KEYS")
    client = connect()
    for text in shown():
        assert text.count("(encrypted)") == 2
        assert SECRET not in text


def test_keys_come_from_the_environment_and_never_from_the_file_of_the_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, server: Server
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOBRUNNER_PAYLOAD_KEYS", f"{NEW}, {OLD}")
    with Client(server.url) as client:
        assert client.settings.payload_keys == (NEW, f" {OLD}")
        assert encryption_of(client) is not None
        assert OLD not in repr(client) + repr(client.settings) + repr(keys_of(client).queue("mail"))

    table = '[tool.jobrunner]\npayload_encryption = "sign"\nrequire_encryption = true\n'
    (tmp_path / "pyproject.toml").write_text(table)
    with Client(server.url) as client:
        assert (client.settings.payload_encryption, client.settings.require_encryption) == ("sign", True)
    monkeypatch.delenv("JOBRUNNER_PAYLOAD_KEYS")
    with pytest.raises(InvalidOption, match="payload_keys"):
        Client(server.url)
    (tmp_path / "pyproject.toml").write_text(f'[tool.jobrunner]\npayload_keys = ["{OLD}"]\n')
    with pytest.raises(UnknownOption):
        Client(server.url)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"payload_keys": OLD}, r"payload_keys"),
        ({"payload_keys": ["x"]}, r"openssl rand"),
        ({"payload_keys": [OLD], "payload_encryption": "rot13"}, r"payload_encryption='rot13'"),
        ({"payload_keys": [OLD], "require_encryption": 1}, r"require_encryption=1"),
        ({"require_encryption": True}, r"JOBRUNNER_PAYLOAD_KEYS"),
    ],
)
def test_wrong_settings_are_refused_without_showing_a_key(
    server: Server, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOption, match=said) as caught:
        Client(server.url, **options)
    assert OLD not in str(caught.value)


def test_without_keys_nothing_of_cryptography_is_imported() -> None:
    # redis-py imports other parts of the package wherever it is installed
    program = (
        "import sys, jobrunner.client.client, jobrunner.worker.worker; "
        "print('cryptography.hazmat.primitives.ciphers.aead' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"False\n"
