"""The bare queue: push, reserve, report. For programs that use a queue without job classes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.client.buffer import Buffer, prepare, send_or_keep
from jobrunner.client.item import ItemKeywords, item_of
from jobrunner.client.item_record import ItemRecord, Popped
from jobrunner.client.lease import Lease
from jobrunner.client.operations import partitions, shard_leases, whole_queue
from jobrunner.client.operations import queue as queue_operations
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Operation, run_operation
from jobrunner.client.operations.queue import OnClash, Progress
from jobrunner.client.operations.routing import NotedOutcome
from jobrunner.client.outgoing import sending
from jobrunner.client.settings_hash import SettingOrigin
from jobrunner.errors import JobrunnerError
from jobrunner.middleware import MiddlewareStack
from jobrunner.observers import OBSERVERS
from jobrunner.option_names import checks_methods, no_attribute
from jobrunner.queue_settings import QueueSettings, SettingKeywords
from jobrunner.settings import Duration
from jobrunner.task import Task

T = TypeVar("T")


@checks_methods
class Queue:
    """One queue by name. A queue that was never used reads as empty, and reading creates nothing."""

    def __new__(cls, broker: object = None, *_: object, **__: object) -> Self:
        """Refuses the arguments of other systems' queues: a name, and a connection."""
        if broker is None or isinstance(broker, str):
            raise queue_operations.not_made("Queue", "Client", broker)
        return super().__new__(cls)

    def __init__(
        self, broker: Broker, ref: QueueRef, buffer: Buffer | None = None, middleware: MiddlewareStack | None = None
    ) -> None:
        self.name = ref.name
        self._broker = broker
        self._keys = ref.keys
        self._buffer = buffer
        self._middleware = middleware
        self._ref = ref

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name):
            raise no_attribute(self, f"{type(self).__name__!r} object", name, "queue")

    def push(
        self, payload: Any, *, wait: Duration = 0, on_clash: OnClash = "existing", **options: Unpack[ItemKeywords]
    ) -> str:
        """Adds one item (bytes, any JSON value, or an `Item`) and returns its id. Options are those of `Item`.

        Options fill unset fields of an Item; an option that contradicts the Item raises InvalidOption.

        An id that exists already, in whatever state (also dead, or kept as finished), is returned, and its item stays
        as it was; with `on_clash="raise"` that raises DuplicateTask, and a callable gets a list of such ids. A full
        queue raises QueueFull, with `wait` after that time without room.
        """
        return self._enqueue(queue_operations.tasks_of(self._ref, [item_of(payload, options)]), wait, on_clash)[0]

    def push_many(self, payloads: Iterable[Any], *, wait: Duration = 0, on_clash: OnClash = "existing") -> list[str]:
        """Adds payloads or `Item`s in order, all or none, and returns their ids; `wait` is the time to wait for room
        for all.

        Items whose ids exist already stay as they were, as by `push`; with `on_clash="raise"` none is added then.
        """
        return self._enqueue(queue_operations.tasks_of(self._ref, payloads), wait, on_clash)

    def push_all(
        self,
        payloads: Iterable[Any],
        *,
        wait: Duration = 0,
        on_clash: OnClash = "existing",
        progress: Progress | None = None,
    ) -> int:
        """Adds any number of payloads or `Item`s in order, also from a generator, and returns how many there were.

        Each slice has up to 1 000 items with up to 1 MiB, all or none; while the server adds a slice, the next is taken
        from `payloads`. `progress` is called after each slice with the number of items added so far. A refused slice
        raises its error, and at most the next slice is added as well; with `wait`, middleware or a `durability` that
        confirms, no later slice is. Items whose ids exist already: as by `push_many`, for each slice.
        """
        from jobrunner.client.push_all import push_all  # most programs push less

        at_once = queue_operations.waits_for_reply(on_clash)
        is_plain = self._middleware is None and not OBSERVERS and (self._buffer is None or at_once)
        is_ahead = is_plain and not wait and on_clash != "raise"
        return push_all(
            self._broker,
            self._ref,
            payloads,
            on_clash,
            progress,
            may_go_ahead=lambda tasks: is_ahead and not self._needs_placing(tasks),
            push=lambda tasks: self._enqueue(tasks, wait, on_clash),
        )

    def reserve(
        self, n: int = 1, *, keepalive: Duration | None = None, wait: Duration = 0, committing: Iterable[Lease] = ()
    ) -> list[Lease]:
        """Reserves up to `n` items, at most 10 000, first in line, each under a lease; [] when empty or paused.

        Fewer than `n` when the queue or a limit has no more, and when their payloads reach 16 MiB.
        With `wait` it waits up to that time for the first item, without polling. The leases in `committing` are
        committed in the same round trip; when one of them is refused it raises ReportsRefused, as `commit_many` does,
        and nothing is reserved.
        """
        taken = self._run(shard_leases.reserve(self._ref, n, keepalive, wait, committing))
        return [Lease(self._broker, self._ref.shard(attempt.queue), attempt) for attempt in taken]

    def commit_many(self, leases: Iterable[Lease], results: Iterable[Any] | None = None) -> list[bool]:
        """Commits leases of this queue in one round trip; `results` has one result per lease.

        Returns one bool per lease, False for an item that no longer exists. When some leases are refused (NotReserved,
        LeaseLost) the others are committed all the same, and it raises ReportsRefused: its `verdicts` has a bool or an
        error for each lease.
        """
        return self._run(shard_leases.commit_many(self._ref, leases, results))

    def rollback_many(self, leases: Iterable[Lease], delay: Duration | None = None, error: str = "") -> list[bool]:
        """Rolls leases of this queue back in one round trip, or two without `delay`: the backoff is read before.

        Returns and raises as `commit_many`.
        """
        return self._run(shard_leases.rollback_many(self._ref, leases, delay, error))

    def release_many(self, leases: Iterable[Lease]) -> list[bool]:
        """Puts items of this queue back to their places in one round trip. Returns and raises as `commit_many`."""
        return self._run(shard_leases.release_many(self._ref, leases))

    def extend_many(self, leases: Iterable[Lease]) -> list[bool]:
        """Renews leases of this queue in one round trip. Returns and raises as `commit_many`."""
        return self._run(shard_leases.extend_many(self._ref, leases))

    def move_many(
        self,
        leases: Iterable[Lease],
        queue: str,
        *,
        payloads: Iterable[Any] | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Duration = 0,
        priority: int | None = None,
        max_hops: int = 0,
    ) -> list[bool]:
        """Moves leases of this queue into another one of the same pipeline in one round trip; `payloads` has one for
        each lease, None leaves all as they are. Returns and raises as `commit_many`.

        `headers` are added to each item's headers; `delay`, `priority` and `max_hops` hold for all. A move may also be
        refused with TargetFull or TooManyHops. Raises PipelineError as `Lease.move`, before anything is moved.
        """
        steps = shard_leases.move_many(self._ref, leases, queue, payloads, headers, delay, priority, max_hops)
        return self._run(steps)

    def pop(self, n: int = 1) -> list[Popped]:
        """Takes up to `n` items out of the queue for good: delivery is at most once, and a crash afterwards loses them.

        Fewer than `n` as by `reserve`.
        `attempts` is 1 for an item that was never handed out before.
        """
        return self._run(shard_leases.pop(self._ref, n))

    def delete(self, task_id: str | msgspec.UnsetType = msgspec.UNSET, *, force: bool = False) -> bool:
        """Acknowledges a reserved item by id alone. False when the item does not exist; raises NotReserved for an item
        without a lease: `client.task(id, queue=…).cancel()` removes a waiting item.

        Without an id it deletes the queue itself, with its settings and totals; False when the queue does not exist.
        Raises QueueNotEmpty while the queue holds anything; with `force` its items are deleted first, for good.
        """
        if isinstance(task_id, msgspec.UnsetType):
            return self._run(whole_queue.delete(self._ref, force=force))
        return self._run(whole_queue.delete_task(self._ref, task_id, force=force))

    def run_now(self, task_id: str) -> bool:
        """Makes a scheduled item due now: it waits behind all waiting items.

        Returns False, and changes nothing, when the item is waiting, pending, dead or finished. Raises TaskGone when
        the queue has no such item, InvalidName.
        """
        return self._run(whole_queue.run_now(self._ref, task_id))

    def counts(self) -> dict[str, int]:
        """How many items are waiting, scheduled, pending and dead, and kept as history (done)."""
        return self._run(whole_queue.counts(self._ref))

    def totals(self) -> dict[str, int]:
        """Event counts since the queue was created: enqueued, succeeded, failed, dead, recovered, orphaned, ..."""
        return self._run(whole_queue.totals(self._ref))

    def pause(self, for_: Duration | None = None) -> None:
        """Hands nothing out until `resume`, or for the time `for_`; pushing and reporting go on."""
        self._run(whole_queue.pause(self._ref, for_))

    def resume(self) -> None:
        """Ends a pause."""
        self._run(whole_queue.resume(self._ref))

    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self._run(queue_operations.is_paused(self._ref))

    def configure(self, **options: Unpack[SettingKeywords]) -> None:
        """Changes the named settings and leaves the others; None restores the default.

        Options are the fields of QueueSettings. A declared setting (`jobrunner.queue`) counts as changed by hand from
        then on: the change is kept until the setting is declared anew. Raises UnknownOption, InvalidOption,
        InvalidName.
        """
        self._run(partitions.configure(self._ref, options))

    def settings(self) -> QueueSettings:
        """The settings in force."""
        return self._run(partitions.settings_of(self._ref))

    def origins(self) -> dict[str, SettingOrigin]:
        """The origins of the settings that are declared or were changed by hand, by name of the setting."""
        return self._run(queue_operations.origins(self._ref))

    def ids(self, state: str, *, limit: int = 100, start: int = 0) -> list[str]:
        """Ids of one state, first in line first, at most `limit`."""
        return self._run(whole_queue.ids(self._ref, state, limit, start))

    def tasks(self, state: str = "dead", *, limit: int = 100, after: str | None = None) -> list[ItemRecord]:
        """Records of one state, first in line first, at most `limit` (up to 1 000); [] only at the end of the line.

        Records have the members of `TaskHandle.record()`. `payload` and `result` are values, as in a lease;
        `raw_payload` and `raw_result` are the bytes.

        `after` is the id of the last record of the previous page. Raises TaskGone when that item has left the state
        since: then begin again without it. Items that leave while the page is read are left out.
        """
        return self._run(whole_queue.list_tasks(self._ref, state, limit, after))

    def requeue_dead(
        self, ids: Iterable[str] | None = None, *, rate: float | None = None, payload: Any = msgspec.UNSET
    ) -> int:
        """Puts dead items back into the queue (None: all that are dead now) and returns how many.

        With `rate`, items per second, they come back one by one; `payload`, which needs `ids`, replaces their payloads.
        """
        return self._run(whole_queue.requeue_dead(self._ref, ids, rate, payload))

    def history(self, limit: int = 100) -> list[ItemRecord]:
        """Finished items that the queue keeps (see `configure(history=…)`), latest first, as records like those of
        `tasks`."""
        return self._run(whole_queue.history(self._ref, limit))

    def replay(self, task_id: str) -> str:
        """Adds a finished item again, as a new item with header `replayed_from`; returns its id. Raises TaskGone, and
        UsageError for a step of a flow that got the results of other steps."""
        return self._run(whole_queue.replay(self._ref, task_id))

    def purge(self, state: str, *, progress: Progress | None = None) -> int:
        """Deletes all waiting, scheduled, dead or done items, in slices, and returns how many.

        `progress` is called after each slice with the number of items deleted so far. A slice whose reply is lost is
        sent again, and only its second call is counted.
        """
        return self._run(whole_queue.purge(self._ref, state, progress))

    def _enqueue(self, made: Sequence[Task], wait: Duration, on_clash: OnClash) -> list[str]:
        buffer = None if queue_operations.waits_for_reply(on_clash) else self._buffer
        left, registered = self._prepared(made, buffer, wait)
        if self._middleware is None and not OBSERVERS:
            return self._push(made, left, on_clash, buffer, registered)
        with sending(made, self._middleware) as tasks:
            return self._push(tasks, left, on_clash, buffer, registered)

    def _prepared(
        self, tasks: Sequence[Task], buffer: Buffer | None, wait: Duration
    ) -> tuple[Duration, bool | JobrunnerError]:
        """As `prepare`; skips it when it has nothing to do."""
        routes = self._ref.routes
        if routes is None or not (wait or self._needs_placing(tasks)):
            return wait, False
        if not wait and len(tasks) == 1 and routes.placed_at_once(tasks[0]):
            return wait, False
        return self._run(prepare(buffer, routes, tasks, wait))

    def _needs_placing(self, tasks: Sequence[Task]) -> bool:
        """Whether the tasks need shards, or their queue has to be registered or its shards read."""
        return bool(tasks) and self._ref.routes is not None and self._ref.routes.are_needed(self.name)

    def _push(
        self,
        tasks: Sequence[Task],
        wait: Duration,
        on_clash: OnClash,
        buffer: Buffer | None,
        registered: bool | JobrunnerError,
    ) -> list[str]:
        send = queue_operations.push_many(self._ref, tasks, wait, on_clash, just_registered=registered is True)
        with NotedOutcome(tasks, self._ref.routes):
            self._run(send_or_keep(buffer, tasks, send, registered))
        return [task.id for task in tasks]

    def _run(self, steps: Operation[T]) -> T:
        return run_operation(self._broker, steps)


def align_shards(queue: Queue) -> None:
    """Gives every shard of a queue the settings of the queue itself. Raises InvalidOption, ServerError."""
    queue._run(partitions.align(queue._ref))  # noqa: SLF001 - its own module


def configure_as(queue: Queue, who: str, options: Mapping[str, Any]) -> None:
    """`Queue.configure` on behalf of user `who`, whose name is stored with the settings. Raises the errors of that."""
    queue._run(partitions.configure(queue._ref, options, by=who))  # noqa: SLF001 - its own module
