"""run_now: a scheduled task waits at once; in any other state nothing changes."""

from typing import Any

import pytest

from jobrunner.client.client import keys_of
from jobrunner.errors import InvalidName, TaskGone


@pytest.fixture
def queue(way: Any) -> Any:
    return way.queue("mail")


def test_a_scheduled_task_waits_behind_those_that_wait(way: Any, queue: Any) -> None:
    later = queue.push("later", in_=3600)
    tomorrow = queue.push("tomorrow", in_=86_400)
    queue.push("first")

    assert (queue.run_now(tomorrow), way.task(later).run_now()) == (True, True)
    assert queue.counts() == {"waiting": 3, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}
    assert [lease.payload for lease in queue.reserve(3)] == ["first", "tomorrow", "later"]


def test_a_failed_task_need_not_wait_for_its_next_try(way: Any, queue: Any) -> None:
    task_id = queue.push("x")
    queue.reserve()[0].rollback(delay=600)

    assert way.task(task_id).run_now()
    (lease,) = queue.reserve()
    assert (lease.id, lease.attempts) == (task_id, 2)


@pytest.mark.parametrize("state", ["waiting", "pending", "dead", "done"])
def test_in_any_other_state_nothing_changes(way: Any, queue: Any, state: str) -> None:
    queue.configure(history=3600, max_attempts=1)
    task_id = queue.push("x")
    leases = [] if state == "waiting" else queue.reserve()
    if state == "dead":
        leases[0].rollback(error="no")
    elif state == "done":
        leases[0].commit()
    before = queue.counts()

    assert (queue.run_now(task_id), way.task(task_id).run_now()) == (False, False)
    assert queue.counts() == before
    assert before[state] == 1


def test_a_second_time_there_is_nothing_to_do(queue: Any) -> None:
    task_id = queue.push("x", in_=60)

    assert (queue.run_now(task_id), queue.run_now(task_id)) == (True, False)
    assert queue.counts()["waiting"] == 1


def test_a_task_that_is_not_there_is_an_error(way: Any, queue: Any) -> None:
    queue.push("x", id="of-mail", in_=60)

    with pytest.raises(TaskGone, match="no task of-mail in queue 'other'"):
        way.queue("other").run_now("of-mail")
    with pytest.raises(TaskGone, match="no task nothing"):
        queue.run_now("nothing")
    with pytest.raises(TaskGone, match="no task nothing"):
        way.task("nothing", queue="mail").run_now()
    with pytest.raises(InvalidName):
        queue.run_now("not an id")
    assert way.queues() == ["mail"]
    assert queue.counts()["scheduled"] == 1


def test_a_queue_that_goes_by_partition_hands_it_out(queue: Any) -> None:
    queue.configure(fair=True, max_inflight_per_partition=1)
    later = queue.push("later", partition="a", in_=60)
    queue.push("now", partition="b")

    assert queue.run_now(later)
    assert sorted(lease.payload for lease in queue.reserve(5)) == ["later", "now"]


def test_a_damaged_task_stays_where_it_is(way: Any, queue: Any, raw: Any) -> None:
    task_id = queue.push("x", in_=60)
    raw.delete(keys_of(way).queue("mail").task(task_id))

    with pytest.raises(TaskGone):
        queue.run_now(task_id)
    assert queue.counts()["scheduled"] == 1
