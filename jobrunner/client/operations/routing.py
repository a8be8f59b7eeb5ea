"""A client's cache of the queues that it sends tasks to: whether they are registered, and their shards.

A client reads the number of shards when it registers a queue, in the same round trip, then once a minute, and after a
shard was full. A stale number does no harm: a task in a shard that is no longer used runs all the same, as workers
serve every shard that there ever was.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jobrunner.broker.calls import queues
from jobrunner.broker.calls.shards import UNKNOWN, WITHOUT, ShardCounts, backlog, making_shards, shard_counts
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.shards import tag_of, whole_queue
from jobrunner.client.operations.operation import Calls, EachReply, Operation
from jobrunner.client.outgoing import forget_unknown, remember_unknown
from jobrunner.clock import monotonic
from jobrunner.errors import NO_ANSWER, JobrunnerError, OutcomeUnknown, QueueFull, ServerUnavailable
from jobrunner.task import Task

if TYPE_CHECKING:
    from jobrunner.client.operations.router import Router

KNOWN_FOR_S = 60.0
_UNKNOWN_FOR_S = 5.0
_ASKED_AGAIN_S = 1.0
"""The least age of a number of shards before a full shard causes it to be read again."""
_NEVER = float("inf")


class Routes:
    """The registered queues of a client, and their shards. Threads share it."""

    def __init__(self, keys: Keys, endpoint: Endpoint) -> None:
        self._keys = keys
        self._endpoint = endpoint
        self.registered: set[str] = set()
        """Queues that are in the registry of all queues."""
        self._assumed: set[str] = set()
        """Those of them that have keys, so that some client registered them, while the node of the registry was away.
        They are registered again soon."""
        self.routers: dict[str, Router] = {}
        """The routers of queues with shards, by queue."""
        self._known_until: dict[str, float] = {}
        self._trusted_until: dict[str, float] = {}
        """The instant until which a full shard is no reason to read the number of shards, by queue."""

    @property
    def on_several_nodes(self) -> bool:
        """Whether one node may be away while others accept calls."""
        return self._endpoint.cluster is not None

    def are_needed(self, queue: str) -> bool:
        """Whether `placing` has anything to do for a task of this queue."""
        return (
            queue in self.routers
            or queue not in self.registered
            or self._known_until.get(queue, 0.0) < monotonic()
        )  # fmt: skip

    def placed_at_once(self, task: Task) -> bool:
        """Places a task in its shard when that needs no round trip; returns whether it did."""
        queue = task.queue
        router = self.routers.get(queue)
        if router is None or router.is_due or queue not in self.registered:
            return False
        if self._known_until.get(queue, 0.0) < monotonic():
            return False
        router.place_one(task)
        return True

    def placing(self, tasks: Sequence[Task]) -> Operation[bool]:
        """Registers the queues that are new to this client, reads their shards, and places the tasks in their shards.
        Returns whether a queue was registered."""
        names = {task.queue for task in tasks}
        is_new = yield from self._learning(names)
        for name in names & self.routers.keys():
            yield from self.routers[name].measuring()
        self.place_as_known(tasks)
        return is_new

    def _learning(self, names: AbstractSet[str]) -> Operation[bool]:
        """Registers queues that are new to this client, and reads their shards. Returns whether any queue was new."""
        now = monotonic()
        stale = sorted(name for name in names if self._known_until.get(name, 0.0) < now)
        new = sorted((names - self.registered) | (self._assumed.intersection(stale) if self._assumed else set()))
        if new or stale:
            registering = queues.register(self._keys, new) if new else []
            asked = [self._asking(name) for name in stale]
            replies = iter((yield EachReply([*registering, *chain.from_iterable(asked)])))
            self._assumed.difference_update(new)
            yield from self._registered(new, list(islice(replies, len(registering))))
            self.registered.update(new)
            for name, calls in zip(stale, asked, strict=True):
                self._note(name, *islice(replies, len(calls)))
            self._known_until.update(dict.fromkeys(self._assumed.intersection(new), monotonic() + _UNKNOWN_FOR_S))
            if shards := self._unmade(names):
                self.registered -= names  # so that the next call makes the shards if this call fails
                yield making_shards(self._keys, shards)
                self.registered.update(names, shards)
        return bool(new) and self._assumed.isdisjoint(new)

    def _registered(self, names: list[str], replies: Sequence[object]) -> Operation[None]:
        """Raises the error of a registration, unless only the node of the registry is away and the queues have keys: a
        queue is registered before its first key is written."""
        away = next((reply for reply in replies if isinstance(reply, NO_ANSWER)), None)
        if away is None or not self.on_several_nodes:
            _raise_first(replies)
            return
        found = yield EachReply([queues.exists(self._keys.queue(name)) for name in names])
        for name, count in zip(names, found, strict=True):
            if isinstance(count, JobrunnerError):
                raise count
            if not count:
                raise ServerUnavailable(f"queue {name!r} is new and cannot be registered: {away}") from away
        self._assumed.update(names)

    def full_shard(self, name: str) -> Operation[QueueKeys | None]:
        """Returns the least full shard of a queue when no shard seems to have room; else None. Registers a queue that
        is new to this client, and measures the backlogs."""
        yield from self._learning({name})
        router = self.routers.get(name)
        if router is None or not router.counts.max_size:
            return None
        yield from router.measuring()
        return router.full_shard

    def place_as_known(self, tasks: Sequence[Task]) -> None:
        """Places the tasks in their shards by the cached counts and backlogs, however old. Sends nothing."""
        for name in {task.queue for task in tasks} & self.routers.keys():
            self.routers[name].place([task for task in tasks if task.queue == name])

    def counting(self, queue: str) -> Operation[ShardCounts]:
        """Returns how many shards a queue has; reads at most once a minute, and registers nothing."""
        if self._known_until.get(queue, 0.0) < monotonic():
            self._note(queue, *(yield EachReply(self._asking(queue))))
        router = self.routers.get(queue)
        return WITHOUT if router is None else router.counts

    def _asking(self, queue: str) -> Calls:
        """Calls that read the number of shards, which the first shard has. The calls to the other shards keep the whole
        from failing while the first shard's node is away: then the cached number stays in use."""
        others = self.routers[queue].shards if queue in self.routers else ()
        return [shard_counts(self._keys.queue(queue)), *[backlog(self._keys.queue(one)) for one in others]]

    def bounded(self, names: Iterable[str]) -> list[str]:
        """The queues among `names` that have partitions and a max_size."""
        return [name for name in names if name in self.routers and self.routers[name].counts.max_size]

    def measure_again(self, names: Iterable[str]) -> None:
        """Makes measurements due for these queues: a task was refused, so the known backlogs are wrong."""
        for name in names:
            if name in self.routers:
                self.routers[name].measure_again()

    def ask_again(self, names: Iterable[str]) -> None:
        """Has the numbers of shards of these queues read again, as a shard was full. After a change of partitions each
        shard has a smaller part of `max_size` than this client knows, or none; other shards may have room."""
        now = monotonic()
        for name in names:
            if self._trusted_until.get(name, 0.0) < now:
                self._known_until.pop(name, None)

    def forget(self, queue: str) -> None:
        """Drops the cache of a queue, and of its whole pipeline, after this client changed its shards or deleted it."""
        pipeline = tag_of(queue) if "/" in queue else None
        for name in {queue, *self.registered, *self._known_until}:
            if whole_queue(name) == queue or whole_queue(tag_of(name)) == pipeline:
                self._known_until.pop(name, None)
                self.registered.discard(name)
                self.routers.pop(name, None)

    def _note(self, queue: str, counts: Any, *_of_others: object) -> None:
        _raise_first([counts])
        if counts is UNKNOWN:  # while a node is away, each read costs the client's timeout
            known_for_s = KNOWN_FOR_S if queue in self.routers else _UNKNOWN_FOR_S
            self._known_until[queue] = self._trusted_until[queue] = monotonic() + known_for_s
            return
        self._known_until[queue] = monotonic() + KNOWN_FOR_S
        self._trusted_until[queue] = monotonic() + _ASKED_AGAIN_S
        if counts.served == 1:
            self.routers.pop(queue, None)
        elif queue not in self.routers or self.routers[queue].counts != counts:
            from jobrunner.client.operations.router import Router  # most queues have no partitions

            self.routers[queue] = Router(self._keys, queue, counts, self._node_of)
            shards = self.routers[queue].shards
            self._known_until.update(dict.fromkeys(shards, _NEVER))
            if "/" not in queue:
                self.registered.update(shards)  # they were registered when they were made

    def _unmade(self, names: Iterable[str]) -> list[str]:
        """The shards of pipelines' queues that are to be registered: a queue that is newer than the partitions of its
        pipeline has no shards yet."""
        of_pipelines = [self.routers[name].shards for name in names if "/" in name and name in self.routers]
        return [name for shards in of_pipelines for name in shards if name not in self.registered]

    def _node_of(self, key: bytes) -> object:
        cluster = self._endpoint.cluster
        return None if cluster is None else cluster.last_known(key)


class NotedOutcome:
    """Context of sending tasks: records whether their outcome is known.

    When sending breaks off, is cancelled or interrupted, or finds a shard full, the backlogs are measured before the
    next task.
    """

    __slots__ = ("_routes", "_tasks")

    def __init__(self, tasks: Sequence[Task], routes: Routes | None) -> None:
        self._tasks = tasks
        self._routes = routes

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            forget_unknown(self._tasks)
            return
        if isinstance(error, OutcomeUnknown) or not isinstance(error, Exception):
            remember_unknown(self._tasks)
        elif not isinstance(error, ServerUnavailable | QueueFull):
            return
        if self._routes is not None:
            names = {whole_queue(task.queue) for task in self._tasks}
            self._routes.measure_again(names)
            if isinstance(error, QueueFull):
                self._routes.ask_again(names)


def _raise_first(replies: Iterable[object]) -> None:
    for reply in replies:
        if isinstance(reply, JobrunnerError):
            raise reply
