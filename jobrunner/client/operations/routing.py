"""What a client knows of the queues that it sends tasks to: whether they are registered, and their shards.

A client asks for the number of shards when it registers a queue, in the same round trip, then once a minute, and after
a shard was full. What it knows may be out of date for so long: a task that it sends to another shard than it would now
runs all the same, as workers serve every shard there ever was.
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
from jobrunner.errors import JobrunnerError, OutcomeUnknown, QueueFull, ServerUnavailable
from jobrunner.task import Task

if TYPE_CHECKING:
    from jobrunner.client.operations.router import Router

BROKEN_OFF = (OutcomeUnknown, ServerUnavailable)
KNOWN_FOR_S = 60.0
_UNKNOWN_FOR_S = 5.0
_ASKED_AGAIN_S = 1.0
"""How old numbers of shards are before they are asked for again as a shard was full."""
_NEVER = float("inf")


class Routes:
    """What a client knows of the queues that it uses. Threads share it."""

    def __init__(self, keys: Keys, endpoint: Endpoint) -> None:
        self._keys = keys
        self._endpoint = endpoint
        self.registered: set[str] = set()
        """Queues that are in the registry of all queues."""
        self.routers: dict[str, Router] = {}
        """Of the queues with shards."""
        self._known_until: dict[str, float] = {}
        self._trusted_until: dict[str, float] = {}
        """Until when a full shard casts no doubt on the number of shards."""

    @property
    def on_several_nodes(self) -> bool:
        """Whether a node may be away while others take what they are sent."""
        return self._endpoint.cluster is not None

    def are_needed(self, queue: str) -> bool:
        """Whether `placing` has anything to do for a task of this queue."""
        return (
            queue in self.routers
            or queue not in self.registered
            or self._known_until.get(queue, 0.0) < monotonic()
        )  # fmt: skip

    def placed_at_once(self, task: Task) -> bool:
        """Gives a task its shard when that needs nothing of the server; returns whether it did."""
        queue = task.queue
        router = self.routers.get(queue)
        if router is None or router.is_due or queue not in self.registered:
            return False
        if self._known_until.get(queue, 0.0) < monotonic():
            return False
        router.place_one(task)
        return True

    def placing(self, tasks: Sequence[Task]) -> Operation[bool]:
        """Registers the queues that are new here, asks for their shards, and gives the tasks their shards. Returns
        whether a queue was registered."""
        names = {task.queue for task in tasks}
        is_new = yield from self._learning(names)
        for name in names & self.routers.keys():
            yield from self.routers[name].measuring()
        self.place_as_known(tasks)
        return is_new

    def _learning(self, names: AbstractSet[str]) -> Operation[bool]:
        """Registers these queues where they are new here, and asks for their shards. Returns whether one was new."""
        now = monotonic()
        new = sorted(names - self.registered)
        stale = sorted(name for name in names if self._known_until.get(name, 0.0) < now)
        if new or stale:
            registering = queues.register(self._keys, new) if new else []
            asked = [self._asking(name) for name in stale]
            replies = iter((yield EachReply([*registering, *chain.from_iterable(asked)])))
            _raise_first(islice(replies, len(registering)))
            self.registered.update(new)
            for name, calls in zip(stale, asked, strict=True):
                self._note(name, *islice(replies, len(calls)))
            if shards := self._unmade(names):
                self.registered -= names  # so that the next call makes them if this one fails
                yield making_shards(self._keys, shards)
                self.registered.update(names, shards)
        return bool(new)

    def full_shard(self, name: str) -> Operation[QueueKeys | None]:
        """Returns a shard of a queue that has no room, as none of them seems to have; None where one has. Registers the
        queue when it is new here, and measures."""
        yield from self._learning({name})
        router = self.routers.get(name)
        if router is None or not router.counts.max_size:
            return None
        yield from router.measuring()
        return router.full_shard

    def place_as_known(self, tasks: Sequence[Task]) -> None:
        """Gives the tasks their shards by what is known, however old that is. Asks the server for nothing."""
        for name in {task.queue for task in tasks} & self.routers.keys():
            self.routers[name].place([task for task in tasks if task.queue == name])

    def counting(self, queue: str) -> Operation[ShardCounts]:
        """Returns how many shards a queue has; asks at most once a minute, and registers nothing."""
        if self._known_until.get(queue, 0.0) < monotonic():
            self._note(queue, *(yield EachReply(self._asking(queue))))
        router = self.routers.get(queue)
        return WITHOUT if router is None else router.counts

    def _asking(self, queue: str) -> Calls:
        """The first shard knows. Others are asked something, too: when its node is away and theirs are not, what was
        known goes on."""
        others = self.routers[queue].shards if queue in self.routers else ()
        return [shard_counts(self._keys.queue(queue)), *[backlog(self._keys.queue(one)) for one in others]]

    def bounded(self, names: Iterable[str]) -> list[str]:
        """Those of these queues that have partitions and a max_size."""
        return [name for name in names if name in self.routers and self.routers[name].counts.max_size]

    def measure_again(self, names: Iterable[str]) -> None:
        """Tasks of these queues were refused, so what is known of their backlogs is wrong."""
        for name in names:
            if name in self.routers:
                self.routers[name].measure_again()

    def ask_again(self, names: Iterable[str]) -> None:
        """A shard of these queues, or the queue itself, was full. With more partitions each has a smaller part of
        `max_size` than this client knows, and with fewer the last ones have none; others may have room."""
        now = monotonic()
        for name in names:
            if self._trusted_until.get(name, 0.0) < now:
                self._known_until.pop(name, None)

    def forget(self, queue: str) -> None:
        """The shards of this queue, or of its whole pipeline, were changed here, or it was deleted."""
        pipeline = tag_of(queue) if "/" in queue else None
        for name in {queue, *self.registered, *self._known_until}:
            if whole_queue(name) == queue or whole_queue(tag_of(name)) == pipeline:
                self._known_until.pop(name, None)
                self.registered.discard(name)
                self.routers.pop(name, None)

    def _note(self, queue: str, counts: Any, *_of_others: object) -> None:
        _raise_first([counts])
        if counts is UNKNOWN:  # where a node is away, to ask costs the time that a client waits for it
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
                self.registered.update(shards)  # when they were made

    def _unmade(self, names: Iterable[str]) -> list[str]:
        """The shards of queues of pipelines to register: a queue that is newer than the partitions of its pipeline has
        none yet."""
        of_pipelines = [self.routers[name].shards for name in names if "/" in name and name in self.routers]
        return [name for shards in of_pipelines for name in shards if name not in self.registered]

    def _node_of(self, key: bytes) -> object:
        cluster = self._endpoint.cluster
        return None if cluster is None else cluster.last_known(key)


class NotedOutcome:
    """Around the sending of tasks: notes whether it is known what became of them.

    When the sending breaks off, is cancelled or interrupted, or finds a shard full, the shards are looked at before the
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
