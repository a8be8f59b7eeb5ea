"""On a cluster: calls find their nodes while slots move and nodes die."""

import asyncio
import itertools
import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from jobrunner import AsyncClient, Client, Worker, job, queue
from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import leases, new_tasks, queues
from jobrunner.broker.calls.leader import leader_scan
from jobrunner.broker.calls.server import FORMAT, check_format, confirmation
from jobrunner.broker.calls.stats import bulk_counts
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.notifier import Notifier, WakeListener
from jobrunner.broker.slots import slot_of
from jobrunner.cli.main import jobrunner as command_line
from jobrunner.client.client import broker_of
from jobrunner.client.current import within
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import queue_names
from jobrunner.clock import monotonic
from jobrunner.errors import NewerFormat, OutcomeUnknown, ServerRefused, ServerUnavailable
from jobrunner.etl import Pipeline
from jobrunner.inspector.doctor.environment import check_server
from jobrunner.inspector.jobs import job_views
from jobrunner.inspector.live_snapshot import recent_failures
from jobrunner.inspector.search import search
from jobrunner.inspector.search_filter import Filter
from jobrunner.inspector.snapshot import overview
from jobrunner.jobs.registry import forget as forget_job
from jobrunner.redaction import names_hidden_in_errors
from jobrunner.task import Task
from jobrunner.web.live import LiveUpdates
from tests.support.waiting import wait_for
from tests.topologies.servers import Spread

pytestmark = pytest.mark.topology
KEYS = Keys("t")
NAMES = [f"q{n}" for n in range(12)]
LINES = [KEYS.queue(name) for name in NAMES]
_LONG_S = 60.0


@pytest.fixture(scope="module")
def spread() -> Iterator[Spread]:
    started = Spread()
    yield started
    started.remove()


@pytest.fixture
def broker(spread: Spread) -> Iterator[Broker]:
    made = Broker(Endpoint(spread.url), retry_timeout_s=20)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _empty(spread: Spread) -> Iterator[None]:
    yield
    for node in spread.primaries():
        node.ask("FLUSHALL")


def enqueue(line: QueueKeys, *ids: str):
    return new_tasks.enqueue(line, [Task(id=one, queue=line.name, payload=b"") for one in ids])


def everything(broker: Broker) -> list[int]:
    return [counts.waiting for counts in broker.run_many([queues.counts(line) for line in LINES])]


def test_calls_of_many_queues_go_to_their_nodes_and_answer_in_order(spread: Spread, broker: Broker) -> None:
    assert len({spread.owner(slot_of(line.waiting)) for line in LINES}) == 3
    calls = [enqueue(line, *map(str, range(n + 1))) for n, line in enumerate(LINES)]

    assert broker.run_many(calls) == [[True] * (n + 1) for n in range(12)]
    assert everything(broker) == list(range(1, 13))
    assert asyncio.run(_counted(spread)) == list(range(1, 13))


async def _counted(spread: Spread) -> list[int]:
    broker = AsyncBroker(Endpoint(spread.url), retry_timeout_s=20)
    try:
        found = await broker.run_many([queues.counts(line) for line in LINES])
    finally:
        await broker.close()
    return [one.waiting for one in found]


def test_one_call_about_many_queues_is_divided_and_put_together(broker: Broker) -> None:
    broker.run_many([enqueue(line, *map(str, range(n))) for n, line in enumerate(LINES) if n])

    (found,) = broker.run_many(bulk_counts(LINES))

    assert [one.counts.waiting for one in found] == list(range(12))


def test_the_leader_looks_at_all_queues_and_workers_in_one_call(broker: Broker) -> None:
    for n, line in enumerate(LINES):
        broker.run(command("HSET", line.counters, "dead", n, read=int))
    broker.run(command("HSET", LINES[3].outbox, "x", "y", read=int))
    broker.run(command("ZADD", LINES[8].finishing, 1, "x", read=int))
    broker.run(command("ZADD", KEYS.workers, 1, "gone", read=int))

    (found,) = broker.run_many(leader_scan(KEYS, [line.name for line in LINES]))

    assert (found.posted, found.finishing, found.silent) == (["q3"], ["q8"], ["gone"])
    assert found.dead == {line.name: n for n, line in enumerate(LINES)}


def test_format_and_registry_are_looked_after_wherever_they_are(broker: Broker) -> None:
    assert slot_of(KEYS.format) != slot_of(KEYS.queues)
    for _ in range(2):
        broker.run(queues.register_queues(KEYS, ["q0", "q1"]))
    assert run_operation(broker, queue_names(KEYS)) == ["q0", "q1"]

    broker.run(command("SET", KEYS.format, FORMAT + 1, read=bytes))
    with pytest.raises(NewerFormat):
        broker.run(queues.register_queues(KEYS, ["q0"]))


def test_no_client_writes_below_a_newer_format(spread: Spread, broker: Broker) -> None:
    broker.run(command("SET", KEYS.format, FORMAT + 1, read=bytes))

    async def push_async(name: str) -> None:
        async with AsyncClient(spread.url, "t") as client:
            await client.queue(name).push(1)

    for name in NAMES:
        with Client(spread.url, "t") as client, pytest.raises(NewerFormat):
            client.queue(name).push(1)
        with pytest.raises(NewerFormat):
            asyncio.run(push_async(name))
    assert [key for node in spread.primaries() for key in node.ask("KEYS", "*")] == [KEYS.format]


def test_a_format_that_changed_while_the_connections_were_broken_is_refused(spread: Spread, broker: Broker) -> None:
    with Client(spread.url, "t") as client:
        for name in NAMES:
            client.queue(name).push(1)
        broker.run(command("SET", KEYS.format, FORMAT + 1, read=bytes))
        for node in spread.primaries():
            node.ask("CLIENT", "KILL", "TYPE", "normal")
        with pytest.raises(OutcomeUnknown, match=f"format {FORMAT + 1}"):
            client.queue(NAMES[0]).push(1)  # it was sent on the connection that is broken
        for name in NAMES:
            with pytest.raises(NewerFormat):
                client.queue(name).push(1)
    assert everything(broker) == [1] * len(NAMES)


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
def test_a_format_that_changed_while_dead_connections_rested_is_refused(
    spread: Spread, broker: Broker, is_async: bool
) -> None:
    """A patient client sees that they are dead before it sends anything, so no call fails."""
    patient = {"retry_timeout_s": 20, "greeting": check_format(KEYS)}

    async def ask() -> None:
        asked = (AsyncBroker if is_async else Broker)(Endpoint(spread.url), **patient)  # type: ignore[arg-type]

        async def add(task: str) -> None:
            found = asked.run(enqueue(LINES[0], task))
            if not isinstance(found, list):
                await found

        await add("a")
        broker.run(command("SET", KEYS.format, FORMAT + 1, read=bytes))
        for node in spread.primaries():
            node.ask("CLIENT", "KILL", "TYPE", "normal")
        await add("b")
        with pytest.raises(NewerFormat):
            await add("c")
        if (closed := asked.close()) is not None:
            await closed

    asyncio.run(ask())


def test_what_scripts_name_together_is_in_one_slot(broker: Broker) -> None:
    assert broker.run(leader_calls.take_leadership(KEYS, "me", ttl_ms=1000)).epoch
    broker.run(leader_calls.announce(KEYS, "me", {"a": 1}, ttl_ms=1000))
    broker.run(leader_calls.define_periodics(KEYS, {"p": b"{}"}))
    assert broker.run(leader_calls.set_added_periodic(KEYS, "p", expected=b"", definition=b"{}")) == "set"
    broker.run_many(leader_calls.retire(KEYS, "me"))


def test_the_least_that_a_node_confirmed_counts(spread: Spread) -> None:
    broker = Broker(Endpoint(spread.url), confirmation=confirmation("replicated", 0.1))

    with pytest.raises(OutcomeUnknown):
        broker.write([enqueue(line, "a") for line in LINES])
    assert everything(broker) == [1] * 12
    broker.close()


def test_a_dead_node_keeps_no_caller_from_the_others() -> None:
    """R35: none of its replicas could take over, as it has none."""
    spread = Spread(**{"cluster-require-full-coverage": "no"})  # type: ignore[arg-type]
    broker = Broker(Endpoint(spread.url), retry_timeout_s=0)
    try:
        everything(broker)
        dead = spread.owner(slot_of(b""))
        gone = [spread.owner(slot_of(line.waiting)) is dead for line in LINES]
        dead.kill()
        broker.connect()
        found = broker.run_each([queues.counts(line) for line in LINES])
    finally:
        broker.close()
        spread.remove()

    assert [isinstance(one, ServerUnavailable) for one in found] == gone
    assert any(gone)


def _declare_tick(queue: str, name: str, ran: Counter[str]) -> None:
    @job(queue=queue, name=name, every=1)
    def tick() -> None:
        ran[queue] += 1


def _declare_counted(queue: str, ran: Counter[str]) -> Any:
    @job(queue=queue, name=f"counted_{queue}")
    def counted() -> None:
        ran[queue] += 1

    return counted


def _look_at_the_others(client: Client, alive: set[str]) -> None:
    """What an operator sees while a node is away: everything on the others, and what cannot be read."""
    away = set(NAMES) - alive
    seen, ticks = overview(client), {f"tick_{name}": name for name in NAMES}
    assert {queue.name for queue in seen.queues if not queue.problem} & set(NAMES) == alive
    assert {ticks.get(one.name) for one in seen.periodics if one.fired and not one.problem} - {None} == alive
    assert {ticks.get(one.name) for one in seen.periodics if one.problem} - {None} == away
    assert dict(search(client, Filter()).problems).keys() & set(NAMES) == away
    failed = [check for check in check_server(client) if check.verdict == "fail"]
    assert {check.what for check in failed} == {"statistics", "queue"}
    assert {check.found.partition(":")[0] for check in failed} & set(NAMES) == away
    assert recent_failures(client) == {}
    listed = CliRunner().invoke(command_line, ["history", "list", "--url", client.settings.url, "--prefix", "t"])
    assert listed.exit_code == 0
    assert "no queue keeps history" in listed.output
    assert {one.queue for one in job_views(client) if one.succeeded} & set(NAMES) == alive
    for words in (["queues", "list"], ["jobs"], ["tasks", "list"], ["pipeline", "list"]):
        listed = CliRunner().invoke(command_line, [*words, "--url", client.settings.url, "--prefix", "t"])
        assert listed.exit_code == 0, listed.output
        lines = [line for line in listed.stderr.splitlines() if "cannot be read" in line]
        assert len(lines) == 1, "one line, though several queues are away"
        assert all(name in lines[0] for name in (away if words[0] != "pipeline" else ["/raw"]))
    assert re.search(r"^p\d+ +- +1 +- +-$", listed.stdout, re.MULTILINE), "its counts are not 0"
    snapshot = LiveUpdates(client).snapshot()
    assert {queue.name for queue in snapshot.look.queues if not queue.problem} & set(NAMES) == alive
    assert "queues" in {check.what for check in snapshot.warnings}


def test_the_other_nodes_work_and_can_be_looked_at_while_one_is_away() -> None:
    lenient = Spread(**{"cluster-require-full-coverage": "no"})  # type: ignore[arg-type]
    ran: Counter[str] = Counter()
    jobs = {name: f"tick_{name}" for name in NAMES}
    try:
        with Client(lenient.url, "t", retry_timeout=5) as client:
            for queue, name in jobs.items():
                _declare_tick(queue, name, ran)
            worker = Worker(queues=NAMES, client=client, heartbeat=1, sweep=0.5, leader_ttl=3)
            worker.start()
            wait_for(lambda: len(ran) == len(NAMES))
            needed = {lenient.owner(slot_of(key)).port for key in (KEYS.leader, KEYS.queues)}
            dead = next(node for node in lenient.primaries() if node.port not in needed)
            alive = {line.name for line in LINES if lenient.owner(slot_of(line.waiting)) is not dead}
            assert alive != set(NAMES)
            pipeline = next(f"p{n}" for n in range(99) if lenient.owner(slot_of(f"{{p{n}}}".encode())) is dead)
            client.queue(f"{pipeline}/raw").push(1)
            dead.kill()
            ran.clear()
            wait_for(lambda: all(ran[queue] >= 2 for queue in alive))
            assert ran.keys() == alive
            with Client(lenient.url, "t", retry_timeout=0.2) as on_call:
                _look_at_the_others(on_call, alive)
            worker.stop(grace=0)
    finally:
        for name in jobs.values():
            forget_job(name)
        lenient.remove()


def test_a_worker_starts_while_the_node_of_some_of_its_queues_is_away() -> None:
    """It ended with an error, so an outage of one node was one of all workers that were started meanwhile, as those are
    that have had their `max_tasks`. The node has the list of queues, too."""
    lenient = Spread(**{"cluster-require-full-coverage": "no"})  # type: ignore[arg-type]
    ran: Counter[str] = Counter()
    owners = {line.name: lenient.owner(slot_of(line.waiting)) for line in LINES}
    gone, leads = lenient.owner(slot_of(KEYS.queues)), lenient.owner(slot_of(KEYS.leader))
    there, away = next(name for name in NAMES if owners[name] is leads), next(n for n in NAMES if owners[n] is gone)
    pipeline = Pipeline(next(f"p{n}" for n in range(99) if lenient.owner(slot_of(f"{{p{n}}}".encode())) is gone))
    jobs = {}
    try:
        with Client(lenient.url, "t", retry_timeout=2) as client, within(client):
            for name in (there, away):
                queue(name, max_size=1000)
                jobs[name] = _declare_counted(name, ran)
            pipeline.sink("raw", max_attempts=7)(lambda _item: ran.update(["item"]))
            pipeline.queue("raw").configure(partitions=3)
            jobs[there].enqueue()
            gone.kill()
            worker = Worker(queues=[there, away, f"{pipeline.name}/raw"], client=client, heartbeat=0.5)
            worker.start()
            wait_for(lambda: ran[there] == 1)

            gone.start()
            lenient.wait_well()
            wait_for(lambda: client.queue(away).settings().max_size == 1000)
            raw = pipeline.queue("raw")
            raw.configure(partitions=3)  # its node kept nothing
            wait_for(lambda: raw.settings().max_attempts == 7)
            jobs[away].enqueue()
            pipeline.push("raw", 1)
            wait_for(lambda: ran[away] == ran["item"] == 1)
            assert {away, f"{pipeline.name}/raw"} <= set(run_operation(broker_of(client), queue_names(KEYS)))
            worker.stop(grace=0)
    finally:
        lenient.remove()


def test_a_worker_starts_while_the_node_of_all_its_queues_is_away() -> None:
    """Nothing of what it asks at its start has an answer then."""
    lenient = Spread(**{"cluster-require-full-coverage": "no"})  # type: ignore[arg-type]
    ran: Counter[str] = Counter()
    needed = {lenient.owner(slot_of(key)) for key in (KEYS.leader, KEYS.queues)}
    gone = next(node for node in lenient.primaries() if node not in needed)
    away = next(line.name for line in LINES if lenient.owner(slot_of(line.waiting)) is gone)
    try:
        with Client(lenient.url, "t", retry_timeout=2) as client, within(client):
            counted = _declare_counted(away, ran)
            gone.kill()
            worker = Worker(queues=[away], client=client, heartbeat=0.5)
            worker.start()
            gone.start()
            lenient.wait_well()
            counted.enqueue()
            wait_for(lambda: ran[away] == 1)
            worker.stop(grace=0)
    finally:
        lenient.remove()


def test_a_worker_starts_while_the_node_of_the_list_of_workers_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """That node has the names of parameters that errors hide, too. The worker ended with its error."""
    lenient = Spread(**{"cluster-require-full-coverage": "no"})  # type: ignore[arg-type]
    gone = lenient.owner(slot_of(KEYS.workers))
    there = next(line.name for line in LINES if lenient.owner(slot_of(line.waiting)) is not gone)

    @job(queue=there, name="paying", max_attempts=1)
    def pay(n: int) -> None:
        raise ValueError(f"iban='I{n}', city='C{n}'")

    try:
        with Client(lenient.url, "t", retry_timeout=1) as client, within(client):
            client.queue(there).push("so that it is known")
            client.queue(there).purge("waiting")
            gone.kill()
            worker = Worker(queues=[there], client=client, heartbeat=0.2)
            worker.start()
            first = pay.enqueue(1)
            wait_for(lambda: first.record().state == "dead")
            assert first.record().error.startswith("ValueError: ••••••, city=••••••\n")
            assert "I1" not in first.record().error
            told = CliRunner().invoke(command_line, ["tasks", "show", first.id, "--url", lenient.url, "--prefix", "t"])
            assert told.exit_code == 0, told.output
            assert "n=••••••" in told.output
            for words in (["status"], ["queues", "list"], ["jobs"]):
                told = CliRunner().invoke(command_line, [*words, "--url", lenient.url, "--prefix", "t"])
                assert told.exit_code == 0, told.output
                assert there in told.stdout
                assert "the workers cannot be read: node 127.0.0.1" in told.stderr

            gone.start()
            lenient.wait_well()
            client.redact("iban")
            wait_for(lambda: names_hidden_in_errors() == ("iban",))
            second = pay.enqueue(2)
            wait_for(lambda: second.record().state == "dead")
            assert "ValueError: iban=••••••, city='C2'" in second.record().error
            worker.stop(grace=0)
    finally:
        forget_job("paying")
        lenient.remove()
    assert "all parameters are hidden, as it cannot be read which are to be" in caplog.text


def test_known_queues_are_used_and_paused_while_the_node_of_the_list_of_queues_is_away() -> None:
    """Each program that started meanwhile could enqueue nothing, and a queue on another node could not be paused."""
    lenient = Spread(**{"cluster-require-full-coverage": "no"})  # type: ignore[arg-type]
    gone = lenient.owner(slot_of(KEYS.queues))
    there = next(line.name for line in LINES if lenient.owner(slot_of(line.waiting)) is not gone)
    runner, where = CliRunner(), ["--url", lenient.url, "--prefix", "t"]

    async def push_async() -> None:
        async with AsyncClient(lenient.url, "t", retry_timeout=1) as client:
            await client.queue(there).push(3)

    try:
        with Client(lenient.url, "t") as client:
            client.queue(there).push(1)
        gone.kill()
        with Client(lenient.url, "t", retry_timeout=1) as fresh:
            fresh.queue(there).push(2)
            asyncio.run(push_async())
            assert fresh.queue(there).counts()["waiting"] == 3
            for words in (["queues", "pause", there], ["queues", "resume", there], ["tasks", "list", there]):
                told = runner.invoke(command_line, [*words, *where])
                assert told.exit_code == 0, told.output
    finally:
        lenient.remove()


def test_a_listener_hears_of_queues_on_all_nodes_and_swallows_no_hint(broker: Broker) -> None:
    listener, heard = WakeListener(broker, LINES), []
    thread = threading.Thread(target=lambda: heard.append(listener.wait(20)))
    thread.start()
    wait_for(lambda: all(ear._in_use is not None for ear in listener._ears))
    broker.run(queues.wake(LINES[7]))
    thread.join(30)

    assert heard == ["q7"]
    broker.run(queues.wake(LINES[2]))
    other = WakeListener(broker, LINES[2:3])
    assert other.wait(5) == "q2", "a listener that has ended its wait took a hint"
    assert listener.wait(0.05) == ""
    broker.run_many([queues.wake(LINES[1]), queues.wake(LINES[4])])
    assert {listener.wait(5), listener.wait(5)} == {"q1", "q4"}
    listener.close()
    other.close()


def test_a_worker_hears_of_all_queues_that_have_a_hint_at_once(broker: Broker) -> None:
    """It kept one of them and handed the others back, so each cost it a wait on all nodes: with hundreds of queues it
    heard of the last ones after minutes, and of those behind busy ones not at all."""
    broker.run_many([queues.wake(line) for line in LINES])
    heard: list[str] = []
    notifier = Notifier(broker, KEYS, NAMES, lambda found, _: heard.extend(found or ()))
    notifier.arm()
    notifier.step()
    notifier.close()
    assert sorted(heard) == sorted(NAMES)
    assert not any(broker.run_many([command("ZCARD", line.wake, read=int) for line in LINES]))


def test_a_wait_ends_though_its_end_overtakes_its_beginning(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLIENT UNBLOCK comes on another connection than BZPOPMIN, and may come first. It waited five seconds then."""
    listener = WakeListener(broker, LINES[:2])
    late, sent = listener._ears[1], []  # type: ignore[var-annotated]
    send, unblocking, tries = late._send, late.unblocking, itertools.count()

    def send_nothing_yet(command: bytes, *, with_id: bool = False) -> object:
        connection = send(b"", with_id=with_id)
        sent.append(lambda: connection.send(command))
        return connection

    def unblock_too_early() -> object:
        if next(tries) == 1:  # the first found nothing to end
            sent[0]()
        return unblocking()

    monkeypatch.setattr(late, "_send", send_nothing_yet)
    monkeypatch.setattr(late, "unblocking", unblock_too_early)
    broker.run(queues.wake(LINES[0]))

    assert listener.wait(60) == "q0"
    assert late._connection is not None, "its wait was given up"
    assert not late._connection.can_read(timeout=0)
    listener.close()


def test_a_listener_hears_of_healthy_nodes_while_one_is_down() -> None:
    spread = Spread(**{"cluster-require-full-coverage": "no"})  # type: ignore[arg-type]
    broker = Broker(Endpoint(spread.url), retry_timeout_s=0)
    listener = WakeListener(broker, LINES)
    try:
        everything(broker)
        dead = spread.owner(slot_of(LINES[0].wake))
        there = next(line for line in LINES if spread.owner(slot_of(line.wake)) is not dead)
        dead.kill()
        broker.run(queues.wake(there))

        assert listener.wait(20) == there.name
        assert not listener.wait(0.05)
    finally:
        listener.close()
        broker.close()
        spread.remove()


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
def test_a_node_that_hangs_holds_up_nothing_that_goes_to_the_others(is_async: bool) -> None:
    """Only the first exchange waits for it. Each did, for the whole time limit."""
    spread = Spread(node_timeout_ms=600_000)
    calls = [queues.counts(line) for line in LINES]
    try:
        hanging = spread.owner(slot_of(LINES[0].waiting))
        hangs = [spread.owner(slot_of(line.waiting)) is hanging for line in LINES]
        endpoint = Endpoint(spread.url, timeout_s=_LONG_S)
        broker = (AsyncBroker if is_async else Broker)(endpoint, retry_timeout_s=0)

        async def ask() -> list[object]:
            began = monotonic()
            found = broker.run_each(calls)
            replies = found if isinstance(found, list) else await found
            assert monotonic() - began < _LONG_S / 2
            return replies

        async def ask_twice() -> None:
            await ask()
            hanging.stop_still()
            assert endpoint.cluster is not None
            endpoint.cluster.failed(("127.0.0.1", hanging.port), TimeoutError("silent"))  # as the first exchange does
            for _ in range(2):
                assert [isinstance(one, ServerUnavailable) for one in await ask()] == hangs
            hanging.go_on()
            while any(isinstance(one, ServerUnavailable) for one in await ask()):
                pass
            closed = broker.close()
            if closed is not None:
                await closed

        asyncio.run(ask_twice())
    finally:
        spread.remove()


def test_a_slot_that_was_moved_is_followed(spread: Spread, broker: Broker) -> None:
    line = LINES[3]
    broker.run(enqueue(line, "a", "b"))
    slot = slot_of(line.waiting)
    target = next(one for one in spread.primaries() if one is not spread.owner(slot))
    spread.move(slot, target)

    assert broker.run(enqueue(line, "c")) == [True]
    assert broker.run(queues.counts(line)).waiting == 3
    assert spread.owner(slot) is target


def test_a_script_waits_while_its_slot_moves_and_takes_nothing_for_lost(spread: Spread) -> None:
    """Half of the keys are over there: neither side may serve a script, and a single key is found on either."""
    broker = Broker(Endpoint(spread.url), retry_timeout_s=0.3)
    line = LINES[5]
    broker.run(enqueue(line, *map(str, range(20))))
    slot = slot_of(line.waiting)
    source = spread.owner(slot)
    target = next(one for one in spread.primaries() if one is not source)
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", spread.id_of(source))
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", spread.id_of(target))
    moved = [line.task(str(n)) for n in range(10)]
    source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *moved)
    try:
        with pytest.raises((OutcomeUnknown, ServerUnavailable)):
            broker.run(leases.reserve(line, 20, token="a"))
        with pytest.raises(ServerUnavailable, match="being moved"):
            broker.run(enqueue(line, "new"))
        names = [command("HGET", line.task(one), "queue", read=bytes.decode) for one in ("1", "11")]
        assert broker.run_many(names) == [line.name] * 2
    finally:
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for one in (target, source, *spread.primaries()):
            one.ask("CLUSTER", "SETSLOT", slot, "NODE", spread.id_of(target))
    counts = broker.run(queues.counts(line))
    assert counts.waiting + counts.pending == 20
    assert counts.dead == 0
    broker.close()


def test_a_url_of_one_node_is_refused_with_the_one_to_write(spread: Spread) -> None:
    """The error was the slot and an address."""
    told = r"is one node of a cluster: slot \d+ is at 127.0.0.1:\d+; its URL must begin with redis\+cluster://"
    url = f"redis://127.0.0.1:{spread.nodes[0].port}"

    def push_to_all() -> None:
        with Client(url, "t") as client:
            for name in NAMES:
                client.queue(name).push(1)

    async def push_to_all_async() -> None:
        async with AsyncClient(url, "t") as client:
            for name in NAMES:
                await client.queue(name).push(1)

    with pytest.raises(ServerRefused, match=told):
        push_to_all()
    with pytest.raises(ServerRefused, match=told):
        asyncio.run(push_to_all_async())


def test_a_client_sees_every_queue(spread: Spread, broker: Broker) -> None:
    with Client(spread.url, "t") as client:
        for name in NAMES:
            client.queue(name).push("x")
        assert client.queues() == sorted(NAMES)
        assert {name: counts.waiting for name, counts in client.stats().items()} == dict.fromkeys(NAMES, 1)
