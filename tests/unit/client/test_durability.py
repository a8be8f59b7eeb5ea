"""How safe a task is when enqueueing returns."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner import AsyncClient, Client, Unique, chain, group, job
from jobrunner.client.batches import Batches
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.current import pinned
from jobrunner.client.item import Item
from jobrunner.errors import BatchLost, InvalidOption, OutcomeUnknown
from jobrunner.task import Task, new_id
from tests.support.server import Server, version_of
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes


@job(name="durability.noop", queue="q")
def noop(n: int = 0) -> None:
    """Nothing."""


@job(name="durability.once", queue="q", unique=Unique())
def once() -> None:
    """There is one of it."""


ON_DISK = {"appendonly": "yes", "appendfsync": "everysec"}


@pytest.fixture(scope="module")
def master() -> Iterator[Server]:
    server = Server(**ON_DISK)
    yield server
    server.remove()


@pytest.fixture
def can_tell_disk(master: Server) -> None:
    """Skips on servers without WAITAOF."""
    with master.connect() as raw:
        if version_of(raw) < (7, 2):
            pytest.skip("WAITAOF came with Redis 7.2")


def task() -> Task:
    return Task(id=new_id("q"), queue="q", payload=b"{}")


@pytest.mark.usefixtures("can_tell_disk")
def test_fsync_returns_when_the_task_is_on_disk(master: Server) -> None:
    """MOAB-07"""
    with Client(master.url, "fsync", durability="fsync", durability_timeout=4) as client:
        handles = [client.enqueue(task()), *client.enqueue_many([task() for _ in range(20)])]
        ids = {handle.id for handle in handles}
        assert {handle.durability for handle in handles} == {"fsync"}
        master.kill()
        master.start()
        assert client.queue("q").counts()["waiting"] == 21
        assert set(client.queue("q").ids("waiting")) == ids


@pytest.mark.usefixtures("can_tell_disk")
def test_it_is_the_same_for_asyncio(master: Server) -> None:
    async def main() -> None:
        async with AsyncClient(master.url, "aio", durability="fsync", durability_timeout=4) as client:
            assert (await client.enqueue(task())).durability == "fsync"
        async with AsyncClient(master.url, "aio", durability="replicated", durability_timeout=0.05) as client:
            with pytest.raises(OutcomeUnknown, match="not on a replica"):
                await client.enqueue(task())

    asyncio.run(main())
    with Client(master.url, "aio") as client:
        assert client.queue("q").counts()["waiting"] == 2


def test_replicated_without_a_replica_says_that_the_outcome_is_unknown(master: Server) -> None:
    """MOAB-07: nothing is reported as safe that is not."""
    with Client(master.url, "alone", durability="replicated", durability_timeout=0.05) as client:
        with pytest.raises(OutcomeUnknown, match=r"written, but not on a replica within 0\.05 s"):
            client.enqueue(task())
        assert client.queue("q").counts()["waiting"] == 1


def test_replicated_returns_when_a_replica_has_it(master: Server) -> None:
    """MOAB-07: and says so when the replica is gone."""
    port = _listen(master)
    replica = Server(replicaof=f"127.0.0.1 {port}")
    try:
        with master.connect() as raw:
            wait_for(lambda: raw.info("replication").get("slave0", {}).get("state") == "online", timeout_s=20)
        with Client(master.url, "two", durability="replicated", durability_timeout=3) as client:
            first = client.enqueue(task())
            assert first.durability == "replicated"
            with replica.connect() as copy:
                assert copy.exists(keys_of(client).queue("q").task(first.id))
            replica.kill()
            with pytest.raises(OutcomeUnknown, match="not on a replica within 3 s"):
                client.enqueue(task())
    finally:
        replica.remove()


def test_a_batch_is_not_confirmed_to_two_holders_that_a_failover_gave_one_epoch() -> None:
    """Both would write to the sink as the same attempt."""
    old = Server()
    new = Server(replicaof=f"127.0.0.1 {_listen(old)}")
    address = new.folder / "address"
    address.symlink_to(old.socket)
    try:
        with Client(f"unix://{address}", "p", retry_timeout=20) as client, old.connect() as raw, new.connect() as copy:
            batches = Batches(broker_of(client), keys_of(client).queue("q"))
            client.queue("q").push(1)
            batches.take(1, lease_s=60).release()
            wait_for(lambda: copy.info("replication")["master_link_status"] == "up")
            raw.set("written", "behind the batch")
            assert raw.wait(1, 20_000) == 1
            copy.replicaof("NO", "ONE")
            forgotten = batches.take(1, lease_s=60)
            old.kill()
            address.unlink()
            address.symlink_to(new.socket)
            held = batches.take(1, lease_s=60)
            assert (held.id, held.epoch) == (forgotten.id, forgotten.epoch)

            with pytest.raises(BatchLost):
                forgotten.confirm()
            held.confirm()
    finally:
        new.remove()
        old.remove()


def test_a_server_without_a_file_cannot_confirm_and_the_task_is_there(server: Server, client: Client) -> None:
    with server.connect() as raw:
        reason = "appendonly is disabled" if version_of(raw) >= (7, 2) else "Redis 7.2"
    told = f"cannot say how safely.*{reason}"
    with (
        Client(server.url, keys_of(client).prefix, durability="fsync") as careful,
        pytest.raises(OutcomeUnknown, match=told),
    ):
        careful.enqueue(task())
    assert client.queue("q").counts()["waiting"] == 1


WAYS: dict[str, Callable[[Client], object]] = {
    "enqueue": lambda client: noop.enqueue(1),
    "enqueue_many": lambda client: noop.enqueue_many([noop.bind(n) for n in range(3)]),
    "unique": lambda client: once.enqueue(),
    "push": lambda client: client.queue("q").push(1),
    "push_many": lambda client: client.queue("q").push_many([1, 2], wait=1),
    "push_all": lambda client: client.queue("q").push_all(range(2500)),
    "chain": lambda client: chain(noop.bind(1), noop.bind(2)).enqueue(),
    "a step behind an empty group": lambda client: chain(group(), noop.bind(2)).enqueue(),
}


@pytest.fixture(scope="module")
def quick() -> Iterator[Server]:
    """A server that confirms at once."""
    server = Server(appendonly="yes", appendfsync="always")
    with server.connect() as raw:
        if version_of(raw) < (7, 2):
            pytest.skip("WAITAOF came with Redis 7.2")
    yield server
    server.remove()


def sent(server: Server, act: Callable[[], object]) -> list[str]:
    """The scripts and confirmations that reach the server while something is done."""
    seen: list[str] = []
    with server.connect() as watching, server.connect() as other, watching.monitor() as monitor:
        act()
        other.echo("over")
        while "ECHO" not in seen:
            command: dict[str, Any] = monitor.next_command()
            seen += [command["command"].split()[0].upper()] if command["client_type"] != "lua" else []
    return [one for one in seen if one in {"EVAL", "EVALSHA", "WAITAOF"}]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_that_an_enqueue_writes_is_left_unconfirmed(quick: Server, way: str) -> None:
    """The queue is used already: the registry takes the name of a new one again, behind the confirmation."""
    with Client(quick.url, "ways", durability="fsync") as client, pinned(client), quick.connect() as raw:
        client.queue("q").push(0)
        assert sent(quick, lambda: WAYS[way](client))[-1] == "WAITAOF"
        raw.script_flush()
        assert sent(quick, lambda: WAYS[way](client))[-1] == "WAITAOF", "the scripts had to be sent again"


def test_each_slice_of_a_push_of_all_is_confirmed_before_the_next(quick: Server) -> None:
    with Client(quick.url, "slices", durability="fsync") as client:
        client.queue("q").push(0)
        assert sent(quick, lambda: client.queue("q").push_all(range(2500))) == ["EVALSHA", "WAITAOF"] * 3


def test_a_script_that_has_to_be_sent_again_is_confirmed_in_asyncio_too(quick: Server) -> None:
    async def main() -> None:
        async with AsyncClient(quick.url, "ways", durability="fsync") as client:
            await client.queue("q").push(0)
            raw.script_flush()
            await client.queue("q").push(1)

    with quick.connect() as raw:
        assert sent(quick, lambda: asyncio.run(main()))[-2:] == ["EVAL", "WAITAOF"]


@pytest.fixture
def unsynced(quick: Server) -> Iterator[Server]:
    """A server that was in sync with its disk, and syncs no more."""
    with quick.connect() as raw:
        raw.set("all", "synced")
        raw.config_set("appendfsync", "no")
        yield quick
        raw.config_set("appendfsync", "always")


@pytest.mark.parametrize("again", ["push", "push_many", "unique", "kept job"])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_another_connection_wrote_is_confirmed_too(unsynced: Server, again: str, is_async: bool) -> None:
    """As when a reply is lost and the call is sent again on a new connection: the server adds nothing then."""
    ways: dict[str, Callable[[Any], Any]] = {
        "push": lambda client: client.queue("q").push("x", id="mine"),
        "push_many": lambda client: client.queue("q").push_many([Item("x", id="mine")]),
        "unique": lambda client: client.enqueue(once.bind().task()),
        "kept job": lambda client: client.enqueue(Task(id="kept", queue="q", payload=b"{}", kept_s=60)),
    }

    async def main() -> None:
        async with AsyncClient(unsynced.url, "two", durability="fsync", durability_timeout=0.1) as client:
            await ways[again](client)

    def main_of_threads() -> None:
        with Client(unsynced.url, "two", durability="fsync", durability_timeout=0.1) as client:
            ways[again](client)

    with Client(unsynced.url, "two") as other:
        ways[again](other)
    with pytest.raises(OutcomeUnknown, match="not on the server's disk"):
        asyncio.run(main()) if is_async else main_of_threads()


def test_moves_and_reports_are_not_confirmed(quick: Server) -> None:
    with Client(quick.url, "ways", durability="fsync") as client:
        queue = client.queue("line/q")
        queue.push_many([1, 2])
        first, second = queue.reserve(2)
        assert "WAITAOF" not in sent(quick, lambda: (first.commit(), second.move("next")))


def test_tasks_of_a_flow_have_the_durability_that_was_reached(quick: Server, client: Client) -> None:
    flow = group(noop.bind(1), noop.bind(2))
    with Client(quick.url, "flow", durability="fsync") as careful, pinned(careful):
        assert {one.durability for one in flow.enqueue().tasks} == {"fsync"}
    with pinned(client):
        assert {one.durability for one in flow.enqueue().tasks} == {"none"}


def test_sent_again_because_it_was_not_confirmed_it_is_there_once(master: Server) -> None:
    with Client(master.url, "again", durability="replicated", durability_timeout=0.05) as client:
        queue = client.queue("q")
        for _ in range(3):
            with pytest.raises(OutcomeUnknown):
                queue.push("x", id="mine")
        assert queue.counts()["waiting"] == 1
        assert [one.id for one in queue.pop(9)] == ["mine"]
        with pytest.raises(OutcomeUnknown):
            queue.push("x", id="mine")
        assert queue.counts()["waiting"] == 0, "a consumer was done with it already"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"durability": "forever"}, "durability='forever': choose one of none, fsync, replicated"),
        ({"durability_timeout": 0}, "more than 0"),
        ({"durability_timeout": 60}, "at most 4 s"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(options: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        Client("redis://nowhere", **options)


def _listen(server: Server) -> int:
    """A free port of the loopback on which the server answers from now on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with server.connect() as raw:
        raw.config_set("port", str(port))
        raw.config_set("bind", "127.0.0.1")
    return port
