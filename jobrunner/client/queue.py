"""Queues as queues: push, reserve, report. For programs that want the queue and not the job class."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.client import dead_steps, history_steps, lease_steps, queue_steps
from jobrunner.client.buffer import Buffer
from jobrunner.client.item import Item, Popped
from jobrunner.client.lease import Lease
from jobrunner.client.line import Line
from jobrunner.client.steps import Steps, run_steps
from jobrunner.settings import Duration, QueueSettings
from jobrunner.task import TaskRecord
from jobrunner.tracepoint import sending

T = TypeVar("T")


class Queue:
    """One queue by name. Reading a queue that was never used finds it empty and creates nothing."""

    def __init__(self, broker: Broker, keys: Keys, name: str, payload_limit: int, buffer: Buffer | None = None) -> None:
        self.name = name
        self.broker = broker
        self.keys = keys.queue(name)
        self._buffer = buffer
        self._line = Line(keys, name, payload_limit)

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    def push(self, payload: Any, *, wait: Duration = 0, **options: Any) -> str:
        """Adds one item (bytes, or any JSON value) and returns its id. Options are those of `Item`.

        An id that is in the queue already is returned and its item left as it was. A full queue raises QueueFull, with
        `wait` when there was no room for so long.
        """
        return self.push_many([Item(payload, **options)], wait=wait)[0]

    def push_many(self, payloads: Iterable[Any], *, wait: Duration = 0) -> list[str]:
        """Adds payloads or `Item`s in order, all or none, and returns their ids; waits so long for room for all."""
        with sending(queue_steps.tasks_of(self._line, payloads)) as tasks:
            if self._buffer is None:
                return self._run(queue_steps.push_many(self._line, tasks, wait))
            self._buffer.through(tasks, lambda: self._run(queue_steps.push_many(self._line, tasks, wait)))
            return [task.id for task in tasks]

    def reserve(
        self, n: int = 1, *, keepalive: Duration | None = None, wait: Duration = 0, committing: Iterable[Lease] = ()
    ) -> list[Lease]:
        """Up to `n` items, first in line, each under a lease; [] when empty or paused.

        With `wait` it waits so long for the first item, without asking the server again and again. The leases in
        `committing` are committed in the same round trip; when one of them is refused it raises ReportsRefused, as
        `commit_many` does, and nothing is reserved.
        """
        taken = self._run(lease_steps.reserve(self._line, n, keepalive, wait, committing))
        return [Lease(self.broker, self._line, attempt) for attempt in taken]

    def reserve_many(
        self, n: int, *, keepalive: Duration | None = None, wait: Duration = 0, committing: Iterable[Lease] = ()
    ) -> list[Lease]:
        """The same as `reserve`, which takes a batch in one round trip; named like its `commit_many`."""
        return self.reserve(n, keepalive=keepalive, wait=wait, committing=committing)

    def commit_many(self, leases: Iterable[Lease], results: Iterable[Any] | None = None) -> list[bool]:
        """Commits leases of this queue in one round trip; `results` are beside them.

        Returns bools beside the leases, False for an item that is already gone. When some are refused (NotReserved,
        LeaseLost) the others are carried out all the same, and ReportsRefused tells which: its `verdicts` has a bool
        or an error for each lease.
        """
        return self._run(lease_steps.commit_many(self._line, leases, results))

    def rollback_many(self, leases: Iterable[Lease], delay: Duration | None = None, error: str = "") -> list[bool]:
        """Rolls leases of this queue back in one round trip, or two without `delay`: the backoff is read before.

        Answers as `commit_many`.
        """
        return self._run(lease_steps.rollback_many(self._line, leases, delay, error))

    def release_many(self, leases: Iterable[Lease]) -> list[bool]:
        """Puts items of this queue back to their places in one round trip. Answers as `commit_many`."""
        return self._run(lease_steps.release_many(self._line, leases))

    def extend_many(self, leases: Iterable[Lease]) -> list[bool]:
        """Renews leases of this queue in one round trip. Answers as `commit_many`."""
        return self._run(lease_steps.extend_many(self._line, leases))

    def pop(self, n: int = 1) -> list[Popped]:
        """Takes up to `n` items out for good: at most once, a crash after it loses them."""
        return self._run(queue_steps.pop(self._line, n))

    def delete(self, task_id: str) -> bool:
        """Acknowledges a reserved item by id alone. False when there is none; NotReserved when nobody holds it."""
        return self._run(queue_steps.delete(self._line, task_id))

    def counts(self) -> dict[str, int]:
        """How many items are waiting, scheduled, pending and dead, and kept as history (done)."""
        return self._run(queue_steps.counts(self._line))

    def totals(self) -> dict[str, int]:
        """What happened since the queue exists: enqueued, succeeded, failed, dead, recovered, orphaned, ..."""
        return self._run(queue_steps.totals(self._line))

    def pause(self, for_: Duration | None = None) -> None:
        """Hands nothing out until `resume`, or `for_` so long; pushing and reporting go on."""
        self._run(queue_steps.pause(self._line, for_))

    def resume(self) -> None:
        """Ends a pause."""
        self._run(queue_steps.resume(self._line))

    @property
    def paused(self) -> bool:
        """Whether the queue is paused."""
        return self._run(queue_steps.is_paused(self._line))

    def configure(self, **options: Any) -> None:
        """Changes the settings named, leaves the others; None brings back the default.

        Options are the fields of QueueSettings. Raises UnknownOption, InvalidOption, InvalidName.
        """
        self._run(queue_steps.configure(self._line, options))

    @property
    def settings(self) -> QueueSettings:
        """The settings in force."""
        return self._run(queue_steps.settings(self._line))

    def ids(self, state: str, *, limit: int = 100, start: int = 0) -> list[str]:
        """Ids of one state, first in line first, at most `limit`."""
        return self._run(queue_steps.ids(self._line, state, limit, start))

    def tasks(self, state: str = "dead", *, limit: int = 100, after: str | None = None) -> list[TaskRecord]:
        """Records of one state, first in line first, at most `limit` (up to 1 000); [] only at the end of the line.

        `after` is the id of the last record of the page before. Raises TaskGone when that item has left the state
        since: then begin again without it. Items that leave while the page is read are left out.
        """
        return self._run(queue_steps.list_tasks(self._line, state, limit, after))

    def requeue_dead(
        self, ids: Iterable[str] | None = None, *, rate: float | None = None, payload: Any = msgspec.UNSET
    ) -> int:
        """Puts dead items back into the queue (None: all that are dead now) and returns how many.

        With `rate`, items per second, they come back one behind the other; with `payload` they come back with that one.
        """
        return self._run(dead_steps.requeue_dead(self._line, ids, rate, payload))

    def history(self, limit: int = 100) -> list[TaskRecord]:
        """Finished items that the queue keeps (see `configure(history=…)`), the last one first."""
        return self._run(history_steps.history(self._line, limit))

    def replay(self, task_id: str) -> str:
        """Adds a finished item again, as a new one with header `replayed_from`; returns its id. Raises TaskGone."""
        return self._run(history_steps.replay(self._line, task_id))

    def purge(self, state: str, *, progress: Callable[[int], None] | None = None) -> int:
        """Deletes all waiting, scheduled, dead or done items, in slices, and returns how many.

        `progress` is called after each slice with how many are deleted by then.
        """
        return self._run(queue_steps.purge(self._line, state, progress))

    def _run(self, steps: Steps[T]) -> T:
        return run_steps(self.broker, steps)
