"""Waiting for room in a full queue, for threads and asyncio: refused, or blocked with a deadline and woken by room."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from jobrunner import Client, Item, job
from jobrunner.broker.calls.new_tasks import EnqueueReply
from jobrunner.broker.calls.tasks import stored_payload
from jobrunner.broker.keys import Keys
from jobrunner.client.operations import capacity
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption, OutcomeUnknown, QueueFull, ServerFull, ServerUnavailable
from jobrunner.jobs.enqueue_options import EnqueueOptions
from tests.support.waiting import wait_for


@job(name="room.noop", queue="mail")
def noop(n: int = 0) -> None:
    """Nothing."""


@pytest.fixture
def full(client: Client) -> Any:
    """A queue with room for two that has two."""
    queue = client.queue("mail")
    queue.configure(max_size=2)
    queue.push_many([1, 2])
    return queue


def is_waited_for(raw: redis.Redis, keys: Keys, queue: str = "mail") -> Callable[[], bool]:
    """Whether a client blocks on the notification of capacity."""
    return lambda: any(one["cmd"] == "bzpopmin" for one in raw.client_list()) and raw.hexists(
        keys.queue(queue).settings, "capacity_wanted"
    )


def test_a_full_queue_is_refused_at_once_without_a_wait(way: Any, full: Any) -> None:
    with pytest.raises(QueueFull):
        way.queue("mail").push(3)
    assert full.counts()["waiting"] == 2


@pytest.mark.parametrize("how", ["reserve", "pop"])
def test_who_waits_is_woken_when_there_is_room_and_not_by_looking_again_and_again(
    way: Any, full: Any, raw: redis.Redis, keys: Keys, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "_RECHECK_S", 60.0)

    def make_room() -> None:
        wait_for(is_waited_for(raw, keys))
        getattr(full, how)()

    helper = threading.Thread(target=make_room)
    helper.start()
    way.queue("mail").push(3, wait=40)
    helper.join()

    assert full.counts()["waiting"] == 2


def test_the_deadline_ends_the_wait_and_nothing_was_added(way: Any, full: Any) -> None:
    began = monotonic()

    with pytest.raises(QueueFull):
        way.queue("mail").push_many([3, Item(4)], wait=0.2)

    assert 0.2 <= monotonic() - began < 30
    assert full.counts()["waiting"] == 2


def test_a_batch_waits_until_all_of_it_fits(way: Any, full: Any, raw: redis.Redis, keys: Keys) -> None:
    def make_room() -> None:
        for _ in range(2):
            wait_for(is_waited_for(raw, keys))
            full.pop()

    helper = threading.Thread(target=make_room)
    helper.start()
    way.queue("mail").push_many([3, 4], wait=20)
    helper.join()

    assert [popped.payload for popped in full.pop(9)] == [3, 4]


def test_a_batch_is_sent_again_when_all_of_it_fits_and_not_for_each_place(
    way: Any, full: Any, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "_RESENT_S", 60.0)
    full.configure(max_size=20)
    full.push_many(range(18))

    def make_room() -> None:
        for _ in range(20):
            wait_for(is_waited_for(raw, keys))
            full.pop()

    helper = threading.Thread(target=make_room)
    helper.start()
    raw.config_resetstat()
    way.queue("mail").push_many(range(20), wait=40)
    helper.join()

    assert raw.info("commandstats")["cmdstat_exists"]["calls"] <= 2, "of the scripts, only enqueue asks this"
    assert full.counts()["waiting"] == 20


def test_a_batch_of_which_some_exist_needs_no_room_for_these(
    way: Any, full: Any, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "_RESENT_S", 0.05)
    full.configure(max_size=4)
    way.queue("mail").push_many([Item(1, id="one"), Item(2, id="two")])
    helper = threading.Thread(target=lambda: (wait_for(is_waited_for(raw, keys)), full.pop(1)))
    helper.start()
    way.queue("mail").push_many([Item(1, id="one"), Item(2, id="two"), Item(3, id="three")], wait=20)
    helper.join()

    assert full.counts()["waiting"] == 4


def test_room_that_came_before_anybody_waited_is_seen(way: Any, full: Any, raw: redis.Redis, keys: Keys) -> None:
    full.configure(max_size=None)

    way.queue("mail").push(3, wait=20)

    assert not raw.hexists(keys.queue("mail").settings, "capacity_wanted")


def test_ten_producers_on_a_queue_of_two_all_get_in(way: Any, full: Any, client: Client) -> None:
    taken: list[Any] = []
    producers = [threading.Thread(target=lambda n=n: client.queue("mail").push(n, wait=60)) for n in range(10)]
    for one in producers:
        one.start()
    while len(taken) < 12:
        taken += [popped.payload for popped in full.pop(2)]
    for one in producers:
        one.join()

    assert sorted(taken) == sorted([1, 2, *range(10)])
    assert way.queue("mail").counts()["waiting"] == 0


def test_jobs_wait_for_room_too(full: Any, current: Client, raw: redis.Redis, keys: Keys) -> None:
    helper = threading.Thread(target=lambda: (wait_for(is_waited_for(raw, keys)), full.pop(2)))
    helper.start()
    noop.using(wait=20).enqueue(1)
    helper.join()
    noop.enqueue_many([noop.bind(2)])

    with pytest.raises(QueueFull):
        noop.using(wait=0.05).enqueue(3)
    with pytest.raises(InvalidOption):
        noop.using(wait=-1).enqueue(3)
    assert current.queue("mail").counts()["waiting"] == 2


@pytest.mark.parametrize("names", [("other", "mail"), ("mail", "other")])
def test_tasks_for_several_queues_go_where_there_is_room_and_are_sent_once(
    full: Any, current: Client, names: tuple[str, ...]
) -> None:
    tasks = [noop.bind(n).task(EnqueueOptions(queue=queue)) for n, queue in enumerate(names)]

    with pytest.raises(QueueFull):
        current.enqueue_many(tasks, wait=0.05)

    assert full.counts()["waiting"] == 2
    assert current.queue("other").totals()["enqueued"] == 1


def test_who_waits_for_several_queues_is_woken_by_each(
    way: Any, client: Client, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listened to the first full one alone, and took the notifications of that from others later."""
    monkeypatch.setattr(capacity, "_RECHECK_S", 60.0)
    names = [f"full{number}" for number in range(4)]
    for name in names:
        client.queue(name).configure(max_size=1)
        client.queue(name).push(0)

    def make_room() -> None:
        for name in names:
            wait_for(is_waited_for(raw, keys, name))
            client.queue(name).pop()
            wait_for(lambda name=name: client.queue(name).counts()["waiting"] == 1)

    helper, began = threading.Thread(target=make_room), monotonic()
    helper.start()
    way.enqueue_many([noop.bind(n).task(EnqueueOptions(queue=name)) for n, name in enumerate(names)], wait=15)
    assert monotonic() - began < 14, "it came in at its end, and by no notification"
    helper.join()
    assert [client.queue(name).totals()["enqueued"] for name in names] == [2] * 4


def test_what_was_written_stays_written_when_its_queue_cannot_be_registered_then(keys: Keys) -> None:
    """The registry may be on a node that is away, or the server may go away just then."""
    reply = EnqueueReply([True])
    reply.is_first = True
    queue = keys.queue("mail")
    steps = capacity.write([], [(queue, stored_payload(queue, "x"))], 0)
    next(steps)
    steps.send([reply])

    with pytest.raises(StopIteration) as returned:
        steps.throw(ServerUnavailable("no server"))

    assert returned.value.value == [reply]


@pytest.mark.parametrize(
    ("error", "raised"), [(ServerUnavailable("no server"), OutcomeUnknown), (ServerFull("no memory"), ServerFull)]
)
def test_an_error_after_a_part_was_written_does_not_say_that_nothing_was(
    keys: Keys, error: Exception, raised: type[Exception]
) -> None:
    """Who sent all again, as nothing had been sent, added the first part twice."""
    calls = [(queue, stored_payload(queue, "x")) for queue in (keys.queue("mail"), keys.queue("other"))]
    steps = capacity.write([], calls, 5)
    next(steps)
    with pytest.raises(type(error), match=r"^no \w+$"):  # nothing was written yet
        steps.throw(error)

    steps = capacity.write([], calls, 5)
    next(steps)
    steps.send([EnqueueReply([True])])
    with pytest.raises(raised, match="others of the same call may have been added"):
        steps.throw(error)
