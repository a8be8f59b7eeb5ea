"""The demo's readings of a real server."""

import json
from collections.abc import Callable
from typing import Any

import redis

from jobrunner import Lease
from jobrunner.client.client import Client, keys_of
from jobs_example.demos.jobs import watch
from jobs_example.demos.jobs.state import QueueLine, RunningTask
from jobs_example.demos.jobs.workload import Accepted
from jobs_example.jobs import signature


def an_import(client: Client) -> tuple[Lease, dict[str, Accepted]]:
    """A task in someone's hands."""
    queue = client.queue("imports")
    task_id = queue.push(b"", keepalive=60)
    return queue.reserve()[0], {task_id: Accepted(id=task_id, queue="imports", what="import 2013-03")}


def say(raw: redis.Redis, client: Client, lease: Lease, *, done: int, note: str) -> None:
    """Leaves what `self.progress` would."""
    said = json.dumps({"done": done, "total": 31, "note": note})
    raw.hset(keys_of(client).queue("imports").task(lease.id).decode(), "progress", said)


def test_a_task_that_said_nothing_yet_has_no_worker_and_no_progress(client: Client) -> None:
    lease, accepted = an_import(client)

    assert list(watch.running_tasks(client, accepted)) == [
        RunningTask(id=lease.id, what="import 2013-03", worker="", attempt=1, done=0, total=0)
    ]


def test_a_task_shows_what_its_present_attempt_said(client: Client, raw: redis.Redis) -> None:
    lease, accepted = an_import(client)
    say(raw, client, lease, done=7, note=signature(1))

    (task,) = watch.running_tasks(client, accepted)

    assert (task.worker, task.done, task.total) == ("unnamed", 7, 31)


def test_what_an_earlier_attempt_said_is_not_taken_for_news(
    client: Client, raw: redis.Redis, wait_until: Callable[..., Any]
) -> None:
    lease, accepted = an_import(client)
    say(raw, client, lease, done=7, note=signature(1))
    lease.rollback(delay=0)
    wait_until(client.queue("imports").reserve)

    (task,) = watch.running_tasks(client, accepted)

    assert (task.attempt, task.worker, task.done) == (2, "", 0)


def test_a_queue_is_counted_with_what_is_done_and_what_is_left(client: Client) -> None:
    an_import(client)
    for number in range(3):
        client.queue("imports").push(number)
    done, failed = client.queue("imports").reserve(2)
    done.commit()
    failed.rollback(delay=60)

    state = watch.look(client, {}, [], elapsed_s=1.5)

    line = QueueLine(name="imports", waiting=1, scheduled=1, pending=1, dead=0, done=1)
    assert line in state.queues
    assert (state.accepted, state.ended, watch.left(client)) == (0, 1, 3)
