"""Which shard of a queue with `partitions` a new task goes to.

A client asks for the number of shards when it registers a queue, in the same round trip, then once a minute, and after
a shard was full. What it knows may be out of date for so long: a task that it sends to another shard than it would now
runs all the same, as workers serve every shard there ever was.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heapreplace
from itertools import chain, islice
from types import TracebackType
from typing import Any

from msgspec.structs import force_setattr

from jobrunner.broker.call import in_slices
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.shards import UNKNOWN, WITHOUT, ShardCounts, backlog, making_shards, scheduled, shard_counts
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys, QueueKeys, tag_of_id
from jobrunner.broker.shards import in_partition_of, shard_names, shard_of_key, tag_of, whole_queue
from jobrunner.client.operations.operation import Calls, EachReply, Operation
from jobrunner.client.outgoing import forget_unknown, remember_unknown
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption, JobrunnerError, OutcomeUnknown, QueueFull, ServerUnavailable
from jobrunner.task import Task

BROKEN_OFF = (OutcomeUnknown, ServerUnavailable)
KNOWN_FOR_S = 60.0
_UNKNOWN_FOR_S = 5.0
_ASKED_AGAIN_S = 1.0
"""How old numbers of shards are before they are asked for again as a shard was full."""
_MEASURED_FOR_S = 1.0
_MEASURED_IF_BOUNDED_S = 0.1
"""With `max_size` a shard that is fuller than it seems refuses a task that others would take. So the first task waits
for a look, too, and so does one for which no shard seems to have room, and the next after a refusal."""
_UNMEASURED = 64
"""So many tasks are spread without a look at the backlogs, so that a slow producer does not ask for each task."""
_CALLS, _LEAST, _MOST = 4, 16, 250
"""Tasks of one enqueue go to so many shards, if each gets at least and none more than so many at a time: a call costs
client and server as much as some ten tasks."""
_TIME_AND_PROCESS = 28
"""Digits of a made id before its tag."""
_AWAY = _NEVER = float("inf")


def may_go_anywhere(task: Task) -> bool:
    """Whether a task belongs to no shard: it has no key, no lock and no id of the user's own."""
    return task.key is None and task.lock is None and not task.sending


class Router:
    """Spreads the tasks of one queue over its shards.

    Tasks with equal keys, equal locks or equal ids go to one shard, always the same. Any other goes to the shard with
    the least backlog on the node with the least backlog, so that nodes get equal shares, however many shards each has;
    a node that does not answer gets none of these. In a queue with `max_size` it is the shard with most room.
    """

    def __init__(self, keys: Keys, queue: str, counts: ShardCounts, node_of: Callable[[bytes], object]) -> None:
        self.counts = counts
        self.shards = counts.names(queue)[1:]
        """All but the first, also those that new tasks no longer go to."""
        self._queue = queue
        self._names = shard_names(queue, counts.partitions)
        self._keyed = shard_names(queue, counts.keyed)
        self._keys = [keys.queue(name) for name in self._names]
        self._node_of = node_of
        self._measured_at = 0.0
        self._sent = _UNMEASURED if counts.max_size else 0
        self._since: Counter[int] = Counter()
        """How many each shard was given since the last measure began: with `max_size`, where each of them counts."""
        self._counting = threading.Lock()
        """Threads share the heaps. Between reading the least shard and replacing it, another thread may replace it."""
        self._nodes: list[tuple[float, float, list[tuple[float, float, int]]]] = []
        """A heap of the nodes by their backlog; of each, a heap of its shards by theirs. The second numbers are random,
        so that equal ones take turns."""
        self._take([0] * len(self._names))
        from jobrunner.forks import call_in_forks  # most queues have no partitions

        call_in_forks(self._begin_in_fork)

    def _begin_in_fork(self) -> None:
        """Frees the lock in a forked child: a thread of its parent may have held it, or may have measured."""
        self._counting = threading.Lock()
        self._measured_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the backlogs are to be measured before the next task is placed."""
        if not self.counts.max_size:
            return self._sent >= _UNMEASURED and monotonic() >= self._measured_at + _MEASURED_FOR_S
        has_room = self._nodes[0][2][0][0] < 0
        is_seen = has_room and self._sent < _UNMEASURED
        return not is_seen and monotonic() >= self._measured_at + _MEASURED_IF_BOUNDED_S

    @property
    def full_shard(self) -> QueueKeys | None:
        """With `max_size`: the least full shard, when that seems to have no room either."""
        held, _, number = self._nodes[0][2][0]
        return None if held < 0 else self._keys[number]

    def measuring(self) -> Operation[None]:
        """Measures the backlogs, if that is due. A node that is away is left out until the next measure.

        Others go on with what is known, however long this takes: a second measure beside it would have each forget what
        was placed before the other began, and fill a shard beyond its part of `max_size`.
        """
        with self._counting:  # of two threads that find it due, one measures
            if not self.is_due:
                return
            began = measured_at = monotonic()
            self._sent, self._measured_at = 0, _NEVER
            self._since.clear()
        asked: Calls = [backlog(keys) for keys in self._keys]
        if self.counts.max_size:
            asked += [scheduled(keys) for keys in self._keys]
        try:
            found = yield EachReply(asked)
            held: list[float] = [_AWAY if isinstance(one, JobrunnerError) else one for one in found]
            count = len(self._keys)
            self._take([sum(held[number::count]) for number in range(count)])
            measured_at = monotonic() + 10 * (monotonic() - began)
        finally:
            self._measured_at = measured_at

    def measure_again(self) -> None:
        """A task was refused, so what is known of the backlogs is wrong."""
        self._sent, self._measured_at = _UNMEASURED, 0.0

    def place_one(self, task: Task) -> None:
        """As `place`."""
        if may_go_anywhere(task):
            self._place_free((task,))
        else:
            self._place_bound(task)

    def place(self, tasks: Sequence[Task]) -> None:
        """Gives each task its shard, and an id that says so. Raises InvalidOption for a unique task with a key whose
        lock does not cover that, and for an id that names a shard which is not there."""
        free = [task for task in tasks if may_go_anywhere(task)]
        if len(free) < len(tasks):
            for task in tasks:
                self._place_bound(task)
        size = 1 if self.counts.max_size else min(max(len(free) // _CALLS, _LEAST), _MOST)
        for some in in_slices(free, size):
            self._place_free(some)

    def _place_free(self, tasks: Sequence[Task]) -> None:
        """Places tasks that may go anywhere, all into one shard."""
        count = len(tasks)
        with self._counting:
            of_node, _, shards = self._nodes[0]
            heapreplace(self._nodes, (of_node + count, random.random(), shards))
            of_shard, _, number = shards[0]
            heapreplace(shards, (of_shard + count, random.random(), number))
            if self.counts.max_size:
                self._since[number] += count
        self._sent += count
        if number:
            name = self._names[number]
            end = "-" + self._keys[number].tag
            for task in tasks:
                force_setattr(task, "id", task.id[:_TIME_AND_PROCESS] + end)
                force_setattr(task, "queue", name)

    def _place_bound(self, task: Task) -> None:
        """Places a task that belongs to one shard; leaves one that may go anywhere."""
        if task.key is not None:
            if task.lock is not None and not task.lock.covers_key:
                raise InvalidOption(
                    f"job {task.type!r} is unique by parameters that its key (partition_by) is not among, and queue "
                    f"{self._queue!r} has {self.counts.partitions} partitions: tasks with different keys are in "
                    "different slots, where no lock is shared; add the key to Unique(by=…), or use a queue without "
                    "partitions"
                )
            self._put(task, shard_of_key(task.key, self._keyed))
        elif task.lock is not None:
            self._put(task, shard_of_key(task.lock.digest, self._keyed))
        elif task.sending:
            own = tag_of_id(task.id)
            is_own = own is not None and whole_queue(own) == self._keys[0].tag
            name = in_partition_of(own or "", self._queue) if is_own else shard_of_key(task.id, self._keyed)
            if name != self._queue and name not in self.shards:
                raise InvalidOption(
                    f"id={task.id!r} is that of a task in a partition that queue {self._queue!r} does not have (it has "
                    f"{self.counts.served}), as of another server: no worker would take it; give another id, or none"
                )
            self._put(task, name)

    def _put(self, task: Task, name: str) -> None:
        _put(task, name)
        if self.counts.max_size:  # what it takes, no other task has
            with self._counting:
                _, _, shards = self._nodes[0]
                for place, (held, turn, number) in enumerate(shards):
                    if self._names[number] == name:
                        shards[place] = (held + 1, turn, number)
                        self._since[number] += 1
                heapify(shards)

    def _take(self, backlogs: Sequence[float]) -> None:
        """Notes the backlogs, with what was placed since they were asked for."""
        nodes: dict[object, list[tuple[float, float, int]]] = {}
        parts = self.counts.parts(self.counts.max_size)
        of_nodes = [None if self.counts.max_size else self._node_of(keys.waiting) for keys in self._keys]
        with self._counting:
            for number, (node, waiting) in enumerate(zip(of_nodes, backlogs, strict=True)):
                held = waiting + self._since[number] - (parts[number] or 0)
                nodes.setdefault(node, []).append((held, random.random(), number))
            for shards in nodes.values():
                heapify(shards)
            heap = [(sum(one[0] for one in shards), random.random(), shards) for shards in nodes.values()]
            heapify(heap)
            self._nodes = heap


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


def _put(task: Task, name: str) -> None:
    """A task is changed in place: sent again after an error, it goes to the same shard under the same id."""
    if task.queue != name:
        if not task.sending:
            force_setattr(task, "id", f"{task.id[:_TIME_AND_PROCESS]}-{tag_of(name)}")
        force_setattr(task, "queue", name)
