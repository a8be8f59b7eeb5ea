"""The producer's buffer: it accepts tasks while the server is away, sends them later, and reports those it refuses."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jobrunner import Client, Unique, chain, group, job
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import keys_of
from jobrunner.client.current import forget, use
from jobrunner.client.item import Item
from jobrunner.errors import BufferFull, InvalidName, InvalidOption, ServerUnavailable, TaskGone
from tests.support.clock import Clock
from tests.support.server import Server
from tests.support.waiting import wait_for
from tests.unit.client.conftest import Awaited


@job(name="buffer.noop", queue="mail")
def noop(n: int = 0) -> None:
    """Nothing."""


@job(name="buffer.once", queue="mail", unique=Unique())
def once() -> None:
    """There is one of it."""


@job(name="buffer.keyed", queue="mail", partition_by="name")
def keyed(name: str) -> None:
    """Those with the same name are in one partition."""


@job(name="buffer.text", queue="mail")
def large(text: str) -> None:
    """Its payload is in the payload store."""


@pytest.fixture
def own(start_server: Callable[..., Server]) -> Server:
    """A server that the test may kill; its data on disk survives."""
    return start_server(appendonly="yes", appendfsync="always")


@pytest.fixture
def connect(own: Server) -> Iterator[Callable[..., Client]]:
    """connect(buffer_tasks=9, …): a client with a buffer, the current one."""
    made: list[Client] = []

    def make(**options: Any) -> Client:
        made.append(use(Client(own.url, retry_timeout=0, **{"buffer_tasks": 1000, "buffer_flush": 0} | options)))
        return made[-1]

    yield make
    forget()
    for client in made:
        client.close()


def numbers(client: Client) -> list[Any]:
    """The waiting payloads, in order."""
    return [popped.payload for popped in client.queue("mail").pop(1000)]


def _server_is_back(client: Client) -> bool:
    try:
        return bool(client.queue("small").counts())
    except ServerUnavailable:
        return False


def test_what_was_enqueued_while_the_server_was_away_comes_in_order_behind_what_was_there(
    connect: Callable[..., Client], own: Server
) -> None:
    client = connect()
    queue = client.queue("mail")
    queue.push(0)
    own.kill()

    ids = [queue.push(n) for n in range(1, 700)]
    ids += queue.push_many(range(700, 800))
    assert client._buffer is not None
    assert len(client._buffer) == 799
    own.start()
    wait_for(lambda: not len(client._buffer or ()), timeout_s=30)

    assert queue.ids("waiting", limit=1000)[1:] == ids
    assert numbers(client) == list(range(800))
    assert queue.push("straight") not in ids


@pytest.mark.parametrize("partitions", [1, 3])
def test_an_enqueue_that_may_wait_for_room_is_buffered_as_any_other(
    connect: Callable[..., Client], own: Server, partitions: int
) -> None:
    client = connect()
    client.queue("mail").configure(partitions=partitions, max_size=9)
    client.queue("mail").push(0)
    own.kill()
    client.queue("mail").push(1, wait=60)
    assert noop.using(wait=60).enqueue(2).durability == "buffered"
    own.start()
    wait_for(lambda: not len(client._buffer or ()), timeout_s=30)
    assert sum(client.stats()[name].waiting for name in client.queues()) == 3


def test_jobs_tell_by_their_handle_that_they_wait_here(connect: Callable[..., Client], own: Server) -> None:
    connect()
    assert noop.enqueue(0).durability == "none"
    own.kill()

    tasks = [noop.enqueue(1), *noop.enqueue_many([noop.bind(2), noop.bind(3)])]
    assert {task.durability for task in tasks} == {"buffered"}
    own.start()

    for task in tasks:
        wait_for(lambda task=task: task.exists(), timeout_s=30)


def test_a_task_that_had_arrived_after_all_is_there_once(connect: Callable[..., Client], own: Server) -> None:
    client = connect()
    client.queue("mail").push("a", id="mine")
    own.kill()
    client.queue("mail").push("again", id="mine")
    client.queue("mail").push("b")
    own.start()
    wait_for(lambda: not len(client._buffer or ()), timeout_s=30)

    assert numbers(client) == ["a", "b"]


@pytest.mark.parametrize("limits", [{"buffer_tasks": 3}, {"buffer_bytes": 3}])
def test_a_full_buffer_refuses_and_keeps_what_it_has(
    connect: Callable[..., Client], own: Server, limits: dict[str, int]
) -> None:
    client = connect(**limits)
    own.kill()
    for n in range(3):
        client.queue("mail").push(n)

    with pytest.raises(BufferFull, match="3 tasks"):
        client.queue("mail").push(3)
    own.start()
    wait_for(lambda: not len(client._buffer or ()), timeout_s=30)

    assert numbers(client) == [0, 1, 2]


@pytest.mark.parametrize("refused", ["a full queue", "no memory"])
def test_what_the_server_refuses_stays_and_so_does_all_behind_it(
    connect: Callable[..., Client], own: Server, refused: str, caplog: Any
) -> None:
    client = connect()
    small, mail = client.queue("small"), client.queue("mail")
    if refused == "a full queue":
        small.configure(max_size=1)
        small.push(0)
    own.kill()
    pushed = small.push(1)
    mail.push(2)
    if refused == "no memory":
        own._options["maxmemory"] = "1"
    own.start()
    wait_for(lambda: "refuses tasks" in caplog.text, timeout_s=30)
    mail.push(3)
    if refused == "a full queue":
        assert group(noop.bind(4)).enqueue().tasks[0].cancel(), "flows and unique tasks overtake"
        assert once.enqueue().cancel()

    assert client._buffer is not None
    assert len(client._buffer) == 3, "the server is back, and the third waits behind the others"
    assert mail.counts()["waiting"] == 0
    with own.connect() as raw:
        raw.config_set("maxmemory", "0")
    small.configure(max_size=None)
    wait_for(lambda: not len(client._buffer or ()), timeout_s=30)
    assert small.ids("waiting")[-1] == pushed
    assert numbers(client) == [2, 3]


def test_a_full_queue_does_not_have_tasks_of_other_queues_sent_again(
    connect: Callable[..., Client], own: Server
) -> None:
    """They were, every 2 s, and added once more as soon as the server had forgotten the call, after ten seconds."""
    client = connect()
    small, mail = client.queue("small"), client.queue("mail")
    small.configure(max_size=1)
    small.push(0)
    sent = [queue._ref.task(Item(n)) for n, queue in enumerate([mail, small, mail], 1)]
    own.kill()
    client.enqueue_many(sent)
    own.start()
    wait_for(lambda: _server_is_back(client) and mail.counts()["waiting"], timeout_s=30)

    assert numbers(client) == [1, 3]
    wait_for(lambda: len(client._buffer or ()) == 1, timeout_s=30)
    with own.connect() as raw:
        assert raw.delete(*raw.keys("*:sent:*")), "as time does it"
    small.configure(max_size=None)
    wait_for(lambda: not len(client._buffer or ()), timeout_s=30)
    assert small.ids("waiting")[1:] == [sent[1].id]
    assert numbers(client) == []


def test_an_outage_writes_each_payload_to_the_store_once(
    connect: Callable[..., Client], own: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try wrote an object for every task, for as long as the server was away."""
    client = connect(payload_store=f"file://{tmp_path}", payload_store_above=1000, payload_limit=3000)
    noop.enqueue()
    assert client._buffer is not None
    tries, greeted = [], client._buffer._broker.run_many
    monkeypatch.setattr(client._buffer._broker, "run_many", lambda calls: tries.append(calls) or greeted(calls))
    own.kill()
    tasks = [large.enqueue("x" * 2000), large.enqueue("y" * 2000), asyncio.run(large.aenqueue("z" * 2000))]
    with pytest.raises(InvalidName):
        client.enqueue_many([replace(large.bind("x").task(), queue="no queue")])
    wait_for(lambda: len(tries) > 3, timeout_s=30)
    own.start()
    wait_for(lambda: not len(client._buffer or ()), timeout_s=30)

    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 4, "and one as the first was sent at once"
    read = [client.task(task.id).record().payload for task in tasks]
    assert read == [b'{"text":"%b"}' % (letter * 2000) for letter in (b"x", b"y", b"z")]


def test_reading_a_task_that_waits_here_raises_until_it_has_arrived(
    connect: Callable[..., Client], own: Server
) -> None:
    client = connect()
    client.queue("small").configure(max_size=1)
    client.queue("small").push(0)
    own.kill()
    client.queue("small").push(1)
    task = noop.enqueue(2)
    with pytest.raises(ServerUnavailable):
        task.record()
    own.start()
    wait_for(lambda: _server_is_back(client), timeout_s=30)
    with pytest.raises(TaskGone):
        task.record()
    client.queue("small").configure(max_size=None)

    wait_for(task.exists, timeout_s=30)
    assert task.record().state == "waiting"


def test_a_delay_counts_from_when_the_task_arrives(own: Server, clock: Clock) -> None:
    began = clock.set()
    with Client(own.url, retry_timeout=0, buffer_tasks=9, now_ms=clock) as client, own.connect() as raw:
        own.kill()
        client.queue("mail").push(1, in_=60)
        clock.advance(3_600_000)
        own.start()
        wait_for(lambda: not len(client._buffer or ()), timeout_s=30)
        (found,) = raw.zrange(keys_of(client).queue("mail").scheduled, 0, -1, withscores=True)
    assert found[1] == began + 3_600_000 + 60_000


def test_closing_waits_for_the_server_as_long_as_it_may(connect: Callable[..., Client], own: Server) -> None:
    client = connect(buffer_flush=30)
    own.kill()
    id_ = client.queue("mail").push(1)
    starting = threading.Timer(0.2, own.start)
    starting.start()
    client.close()
    starting.join()

    with Client(own.url) as other:
        assert other.queue("mail").ids("waiting") == [id_]


def test_the_log_does_not_call_tasks_sent_that_are_lost(
    connect: Callable[..., Client], own: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    own.kill()
    client.queue("mail").push(1)
    assert client._buffer is not None
    sending = client._buffer._thread
    client.close()
    assert sending is not None
    sending.join(30)

    assert "are lost" in caplog.text
    assert "were sent" not in caplog.text


def test_of_many_that_are_too_many_none_or_whole_thousands_wait(connect: Callable[..., Client], own: Server) -> None:
    client = connect(buffer_tasks=1200)
    own.kill()
    with pytest.raises(BufferFull, match="500 were not taken"):
        noop.enqueue_many([noop.bind(n) for n in range(1500)])
    with pytest.raises(BufferFull, match="1500 were not taken"):
        client.queue("mail").push_many(range(1500))
    assert client._buffer is not None
    assert len(client._buffer) == 1000


@pytest.mark.parametrize("on_clash", ["raise", lambda ids: None], ids=["raise", "callable"])
def test_a_push_that_asks_for_clashes_does_not_wait(
    connect: Callable[..., Client], own: Server, on_clash: Any
) -> None:
    client = connect()
    own.kill()

    with pytest.raises(ServerUnavailable):
        client.queue("mail").push_many([1], on_clash=on_clash)


def test_flows_do_not_wait(connect: Callable[..., Client], own: Server) -> None:
    client = connect()
    own.kill()

    for flow in (group(noop.bind(1)), chain(noop.bind(1), noop.bind(2))):
        with pytest.raises(ServerUnavailable):
            flow.enqueue()
    assert client._buffer is not None
    assert not len(client._buffer)


def test_unique_tasks_and_reads_do_not_wait(connect: Callable[..., Client], own: Server) -> None:
    client = connect()
    own.kill()

    with pytest.raises(ServerUnavailable):
        once.enqueue()
    with pytest.raises(ServerUnavailable):
        client.queue("mail").counts()


def test_without_the_setting_an_enqueue_raises(own: Server) -> None:
    with Client(own.url, retry_timeout=0) as client:
        own.kill()
        with pytest.raises(ServerUnavailable):
            client.queue("mail").push(1)


def test_an_asyncio_client_has_one_too(own: Server) -> None:
    async def enqueue() -> list[str]:
        async with AsyncClient(own.url, retry_timeout=0, buffer_tasks=9, buffer_flush=20) as client:
            own.kill()
            ids = [await client.queue("mail").push(n) for n in range(3)]
            own.start()
        return ids

    ids = asyncio.run(enqueue())

    with Client(own.url) as client:
        assert client.queue("mail").ids("waiting") == ids


def test_loops_and_threads_of_a_process_share_the_buffer_of_its_client(
    connect: Callable[..., Client], own: Server
) -> None:
    """Each loop had its own: tasks overtook each other, and those of a loop that had ended were lost without a word."""
    client = connect(buffer_tasks=3, buffer_flush=20)
    noop.enqueue(0)
    own.kill()

    async def enqueue(n: int) -> str:
        handle = await noop.aenqueue(n)
        return handle.durability

    assert asyncio.run(enqueue(1)) == "buffered"  # and its end does not wait
    assert noop.enqueue(2).durability == "buffered"
    assert asyncio.run(enqueue(3)) == "buffered"
    with pytest.raises(BufferFull):
        asyncio.run(enqueue(4))
    own.start()
    client.close()
    with Client(own.url) as reader:
        assert numbers(reader) == [b'{"n":%d}' % n for n in range(4)]


@pytest.mark.parametrize("knows", ["all", "what was known an hour ago"])
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_tasks_of_a_key_that_wait_go_to_its_partition_and_middleware_sees_their_ids(
    own: Server, on_loop: Callable[..., Any], kind: str, knows: str
) -> None:
    """All that came while others waited went to the first one, under ids that changed behind middleware."""
    ids: list[str] = []

    class Ids:
        def on_enqueue(self, task: Any, next: Callable[..., Any]) -> None:
            ids.append(task.id)
            next(task)

    made: Any = Client if kind == "threads" else AsyncClient
    way = made(own.url, retry_timeout=0, buffer_tasks=1000, buffer_flush=0, middleware=[Ids()])
    names = "abcdefgh"
    with Client(own.url) as reader, Awaited(way, on_loop) if kind == "asyncio" else way as sender:
        queue = sender.queue("mail")
        queue.configure(partitions=4)
        for name in names:
            queue.push(name, partition=name)
        own.kill()
        if knows != "all":
            way._routes._known_until.clear()
        pushed = [queue.push(name, partition=name) for name in names]
        pushed += [sender.enqueue(keyed.bind(name).task()).id for name in names]
        pushed += queue.push_many([1, 2])
        own.start()
        wait_for(lambda: not len(way._buffer), timeout_s=30)

        found = [record for record in reader.queue("mail").tasks("waiting") if record.fields.get("key")]
        of_key = {name: {r.queue for r in found if r.fields["key"] == name.encode()} for name in names}
        assert len(found) == 3 * len(names)
        assert all(len(queues) == 1 for queues in of_key.values()), of_key
        assert len(set.union(*of_key.values())) > 1
        assert ids[len(names) :] == pushed
        assert all(reader.task(one).exists() for one in pushed)


def test_the_end_of_the_process_waits_for_the_server_and_tells_what_is_lost(own: Server) -> None:
    program = """
import logging, os, sys
from jobrunner import configure
logging.basicConfig(format="%(levelname)s: %(message)s")
client = configure(sys.argv[1], retry_timeout=0, buffer_tasks=9, buffer_flush=float(sys.argv[2]))
client.queue("mail").push(0)
os.kill(int(sys.argv[3]), 9)
while True:
    client.queue("mail").push(1)
    if len(client._buffer):
        break
print("pushed", flush=True)
"""

    def run(flush: float) -> Any:
        return subprocess.Popen(
            [sys.executable, "-c", program, own.url, str(flush), str(own.pid)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    with run(0) as losing:
        _, said = losing.communicate(timeout=60)
    (line,) = (line for line in said.splitlines() if "are lost" in line)
    assert line.startswith("ERROR: "), "a level that every log shows"
    assert "tasks=1" in line
    own.kill()
    own.start()
    with run(60) as waiting:
        assert waiting.stdout is not None
        while "pushed" not in waiting.stdout.readline():
            pass
        own.kill()
        own.start()
        _, said = waiting.communicate(timeout=60)
    assert "are lost" not in said
    with Client(own.url) as client:
        assert numbers(client)[-1] == 1


def test_a_forked_child_sends_nothing_of_its_parents(connect: Callable[..., Client], own: Server) -> None:
    client = connect()
    own.kill()
    client.queue("mail").push(1)
    assert client._buffer is not None

    pid = os.fork()
    if pid == 0:
        os._exit(len(client._buffer))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(client._buffer) == 1


def test_a_forked_child_buffers_though_a_thread_of_its_parent_had_the_lock(
    connect: Callable[..., Client], own: Server
) -> None:
    """As the thread that sends has it, a web server that forks its workers during an outage: they waited for ever."""
    client = connect()
    own.kill()
    client.queue("mail").push(1)
    assert client._buffer is not None

    with client._buffer._changed:
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)  # ends a child that waits for the lock
            client.queue("mail").push_many([2, 3])
            os._exit(len(client._buffer))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2


def test_without_a_thread_to_send_it_nothing_is_taken(
    connect: Callable[..., Client], own: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task was kept although the enqueue raised, and neither it nor a later one was ever sent."""
    own.kill()
    queue = connect(buffer_flush=20).queue("mail")
    start, can_start = threading.Thread.start, False

    def start_if_allowed(self: threading.Thread) -> None:
        if not can_start and self.name == "jobrunner-buffer":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_if_allowed)
    with pytest.raises(BufferFull, match=r"no thread can be started that would send .* \(can't start new thread\)"):
        queue.push(1)
    can_start = True
    queue.push(2)
    own.start()
    wait_for(lambda: not len(queue._buffer or ()), timeout_s=30)
    assert [one.payload for one in queue.pop(9)] == [2]


@pytest.mark.parametrize(
    "options",
    [{"buffer_tasks": -1}, {"buffer_tasks": 1.5}, {"buffer_bytes": 0}, {"buffer_tasks": 1, "durability": "fsync"}],
)
def test_limits_that_make_no_sense_are_refused(server: Server, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="buffer_"):
        Client(server.url, **options)
