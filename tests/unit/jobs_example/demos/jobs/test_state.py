"""A snapshot of the demo."""

import pytest

from jobs_example.demos.jobs.state import DemoState, QueueLine, RunningTask


def a_state(ended: int, **counts: int) -> DemoState:
    line = {"waiting": 0, "scheduled": 0, "pending": 0, "dead": 2, "done": 5, **counts}
    queues = (QueueLine(name="q", **line),)
    return DemoState(elapsed_s=1, accepted=7, ended=ended, queues=queues, workers=(), running=())


def test_it_is_quiet_when_all_that_was_accepted_has_ended() -> None:
    assert a_state(ended=7).is_quiet


@pytest.mark.parametrize("state", ["waiting", "scheduled", "pending"])
def test_it_is_not_quiet_while_a_queue_holds_a_task(state: str) -> None:
    assert not a_state(7, **{state: 1}).is_quiet


def test_it_is_not_quiet_when_a_task_is_missing() -> None:
    assert not a_state(ended=6).is_quiet


@pytest.mark.parametrize(
    ("done", "total", "under_way"), [(0, 0, False), (1, 31, False), (10, 31, True), (28, 31, False), (31, 31, False)]
)
def test_a_task_is_under_way_when_some_is_done_and_some_is_left(done: int, total: int, under_way: bool) -> None:
    task = RunningTask(id="1", what="import", worker="A", attempt=1, done=done, total=total)

    assert task.is_under_way is under_way
