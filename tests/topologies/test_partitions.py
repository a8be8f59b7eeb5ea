"""A queue with partitions on a cluster: all nodes have an equal share of it, and nothing is lost in a reshard."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from jobrunner import Client, Lease, Queue, Worker, job
from jobrunner.broker.cluster import slot_of
from jobrunner.broker.keys import tag_of_id
from jobrunner.broker.shards import shard_names
from jobrunner.client.client import keys_of
from jobrunner.client.current import forget, use
from jobrunner.client.operations import router, routing
from jobrunner.clock import monotonic
from jobrunner.errors import OutcomeUnknown, ReportsRefused, ReportUnknown, ReportUnsent, ServerUnavailable
from jobrunner.etl import Pipeline
from jobrunner.etl.station import StationItem
from tests.support.waiting import wait_for
from tests.topologies.servers import Node, Spread

pytestmark = [pytest.mark.topology, pytest.mark.timeout(180)]


@pytest.fixture
def spread() -> Iterator[Spread]:
    started = Spread()
    yield started
    started.remove()


@pytest.fixture
def lenient() -> Iterator[Spread]:
    """A cluster that serves the slots of the other nodes while one is away."""
    started = Spread(**{"cluster-require-full-coverage": "no"})  # type: ignore[arg-type]
    yield started
    started.remove()


@pytest.fixture
def client(spread: Spread) -> Iterator[Client]:
    with Client(spread.url, "t", retry_timeout=30) as made:
        yield use(made)
    forget()


def node_of(client: Client, spread: Spread, name: str) -> Node:
    return spread.owner(slot_of(keys_of(client).queue(name).waiting))


def test_nodes_get_equal_numbers_of_tasks_whatever_shards_they_have(client: Client, spread: Spread) -> None:
    queue = client.queue("mail")
    queue.configure(partitions=16)
    ids = [queue.push(n) for n in range(300)] + queue.push_many(range(20_000))
    owners = {f"mail@{n}" if n else "mail": node_of(client, spread, f"mail@{n}" if n else "mail") for n in range(16)}
    placed = Counter(owners[tag_of_id(one) or ""].port for one in ids)
    assert len(placed) == 3
    assert max(placed.values()) <= 1.1 * min(placed.values()), placed
    assert queue.counts()["waiting"] == 20_300
    assert queue.purge("waiting") == 20_300


@pytest.mark.parametrize("how", ["reserve", "pop"])
def test_a_dead_node_keeps_nobody_from_the_shards_on_the_others(lenient: Spread, how: str) -> None:
    """What they hand out is had; that the queue has no more is not said while one of its nodes is away."""
    with Client(lenient.url, "t", retry_timeout=1) as client:
        queue = client.queue("mail")
        queue.configure(partitions=8)
        ids = queue.push_many(range(400))
        queue.release_many(queue.reserve(80))  # all shards had tasks when they were last asked
        owners = {name: node_of(client, lenient, name) for name in shard_names("mail", 8)}
        dead = next(owner for owner in owners.values() if owner is not owners["mail"])
        there = {one for one in ids if owners[tag_of_id(one) or ""] is not dead}
        assert 0 < len(there) < 400
        dead.kill()
        taken: list[str] = []

        def take() -> int:
            found = queue.reserve(20) if how == "reserve" else queue.pop(20)
            taken.extend(one.id for one in found)
            return len(found)

        while len(taken) < len(there):
            assert take()
        assert sorted(taken) == sorted(there)
        with pytest.raises(ServerUnavailable):
            take()


@pytest.mark.parametrize("how", ["commit_many", "rollback_many", "extend_many", "release_many", "move_many"])
def test_of_reports_on_a_batch_only_those_to_a_dead_node_fail(lenient: Spread, how: str) -> None:
    """The error was that of the dead node alone; it did not say which reports the other nodes had taken."""
    with Client(lenient.url, "t", retry_timeout=1) as client:
        queue = client.queue("orders/raw")
        queue.configure(partitions=8)
        for number in range(80):  # a batch would leave some shards empty
            queue.push(number)
        held: list[Lease] = []
        while len(held) < 80:
            held += queue.reserve(80)
        owners = {name: node_of(client, lenient, name) for name in {lease.queue for lease in held}}
        dead = next(owner for owner in owners.values() if owner is not owners["orders/raw"])
        queue.move_many(list({lease.queue: lease for lease in held}.values()), "clean")  # the target is known
        held = [lease for lease in held if lease not in {one.queue: one for one in held}.values()]
        dead.kill()
        with pytest.raises(ReportsRefused) as refused:
            getattr(queue, how)(held, *(["clean"] if how == "move_many" else []))
        away = [owners[lease.queue] is dead for lease in held]
        assert [isinstance(one, ReportUnsent | ReportUnknown) for one in refused.value.verdicts] == away
        assert [one is True for one in refused.value.verdicts] == [not one for one in away]
        with pytest.raises((ServerUnavailable, OutcomeUnknown)) as lost:
            queue.commit_many([lease for lease in held if owners[lease.queue] is dead])
        assert not isinstance(lost.value, ReportsRefused)


def test_tasks_go_to_the_other_shards_for_as_long_as_the_first_is_away(
    lenient: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node knows how many shards there are, and is asked each minute."""
    late = [0.0]
    for module in (routing, router):
        monkeypatch.setattr(module, "monotonic", lambda: monotonic() + late[0])
    with Client(lenient.url, "t", retry_timeout=1) as client:
        queue = client.queue("mail")
        queue.configure(partitions=8)
        queue.push_many(range(400))
        first = node_of(client, lenient, "mail")
        away = {name for name in shard_names("mail", 8) if node_of(client, lenient, name) is first}
        first.kill()
        with monkeypatch.context() as unseen:
            unseen.setattr(router.Router, "is_due", property(lambda _: False))
            with pytest.raises(OutcomeUnknown, match=r"may have been added|was applied or it was not"):
                _push_until_a_node_is_met_that_is_away(queue)
        pushed: list[str] = []
        for _ in range(3):
            late[0] += routing.KNOWN_FOR_S + 1
            pushed += [*queue.push_many(range(40)), queue.push(0)]
        assert not {tag_of_id(one) for one in pushed} & away


def _push_until_a_node_is_met_that_is_away(queue: Queue) -> None:
    for _ in range(20):
        queue.push_many(range(400))


def test_nothing_is_lost_or_done_twice_while_slots_move_under_load(client: Client, spread: Spread) -> None:
    ran: Counter[int] = Counter()

    @job(queue="moved", name="moved_task")
    def note(n: int) -> None:
        ran[n] += 1

    queue = client.queue("moved")
    queue.configure(partitions=8)
    is_over = threading.Event()
    sent: list[str] = []

    def produce() -> None:
        while not is_over.is_set() or len(sent) < 2000:
            sent.append(note.enqueue(len(sent)).id)

    worker = Worker(queues=["moved"], client=client, concurrency=4)
    worker.start()
    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for number in range(4):
            name = f"moved@{number}" if number else "moved"
            slot = slot_of(keys_of(client).queue(name).waiting)
            target = next(one for one in spread.primaries() if one is not spread.owner(slot))
            spread.move(slot, target)
            assert spread.owner(slot) is target
    finally:
        is_over.set()
        producer.join(120)
        wait_for(lambda: not any(queue.counts()[state] for state in ("waiting", "pending", "scheduled")), timeout_s=90)
        worker.stop()
    assert set(ran) == set(range(len(sent)))
    assert set(ran.values()) == {1}
    assert queue.totals()["enqueued"] == queue.totals()["succeeded"] == len(sent)


def test_a_pipeline_is_on_all_nodes_and_its_items_end_once_while_slots_move(client: Client, spread: Spread) -> None:
    line, seen = Pipeline("line", client), Counter[tuple[str, int]]()

    @line.station("raw", to="clean")
    def parse(item: StationItem) -> int:
        seen["raw", item.payload] += 1
        return int(item.payload)

    @line.station("clean", to="end", fan_out=True)
    def split(item: StationItem) -> list[int]:
        seen["clean", item.payload] += 1
        return [2 * item.payload, 2 * item.payload + 1]

    @line.sink("end")
    def store(item: StationItem) -> None:
        seen["end", item.payload] += 1

    queues = {name: line.queue(name) for name in ("raw", "clean", "end")}
    queues["raw"].configure(partitions=8)
    names = [f"line@{n}/raw" if n else "line/raw" for n in range(8)]
    assert len({node_of(client, spread, name).port for name in names}) == 3
    worker = Worker(queues=[f"line/{name}" for name in queues], client=client, concurrency=4)
    worker.start()
    sent = 0
    try:
        for name in names[:4]:
            sent += len(line.push_many("raw", range(sent, sent + 500)))
            slot = slot_of(keys_of(client).queue(name).waiting)
            spread.move(slot, next(one for one in spread.primaries() if one is not spread.owner(slot)))
        wait_for(lambda: queues["end"].totals().get("succeeded", 0) >= 2 * sent, timeout_s=90)
    finally:
        worker.stop()
    assert set(seen.values()) == {1}
    assert Counter(station for station, _ in seen) == {"raw": sent, "clean": sent, "end": 2 * sent}
    assert queues["raw"].totals()["moved_out"] == queues["clean"].totals()["moved_in"] == sent
    for queue in queues.values():
        assert not any(queue.counts()[state] for state in ("waiting", "scheduled", "pending", "dead"))
