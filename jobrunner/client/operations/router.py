"""Chooses the shard of a queue with `partitions` for each new task."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace

from msgspec.structs import force_setattr

from jobrunner.broker.call import in_slices
from jobrunner.broker.calls.shards import ShardCounts, backlog, scheduled
from jobrunner.broker.keys import Keys, QueueKeys, tag_of_id
from jobrunner.broker.shards import in_partition_of, shard_names, shard_of_key, tag_of, whole_queue
from jobrunner.client.operations.operation import Calls, EachReply, Operation
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption, JobrunnerError
from jobrunner.forks import call_in_forks
from jobrunner.task import Task

_MEASURED_FOR_S = 1.0
_MEASURED_IF_BOUNDED_S = 0.1
"""With `max_size` a shard that is fuller than it seems refuses a task that others would take. So backlogs are measured
before the first task, before a task for which no shard seems to have room, and after a refusal."""
_UNMEASURED = 64
"""How many tasks are spread without measuring the backlogs, so that a slow producer does not measure for each task."""
_CALLS, _LEAST, _MOST = 4, 16, 250
"""The number of shards that one enqueue uses, and the least and most tasks in a row for one shard: a call costs client
and server as much as some ten tasks."""
_TIME_AND_PROCESS = 28
"""The number of digits of a made id before its tag."""
_AWAY = _NEVER = float("inf")


class Router:
    """Spreads the tasks of one queue over its shards.

    Tasks with equal keys, equal locks or equal ids always go to the same shard. Other tasks go to the shard with the
    least backlog on the node with the least backlog, so that nodes get equal shares, however many shards each has; a
    node that does not answer gets none of these. In a queue with `max_size` they go to the shard with most room.
    """

    def __init__(self, keys: Keys, queue: str, counts: ShardCounts, node_of: Callable[[bytes], object]) -> None:
        self.counts = counts
        self.shards = counts.names(queue)[1:]
        """All shards but the first, also shards that get no new tasks any more."""
        self._queue = queue
        self._names = shard_names(queue, counts.partitions)
        self._keyed = shard_names(queue, counts.keyed)
        self._keys = [keys.queue(name) for name in self._names]
        self._node_of = node_of
        self._measured_at = 0.0
        self._sent = _UNMEASURED if counts.max_size else 0
        self._since: Counter[int] = Counter()
        """The tasks placed in each shard since the last measurement began; used with `max_size`, where each task
        counts."""
        self._counting = threading.Lock()
        """Threads share the heaps. Between reading the least shard and replacing it, another thread may replace it."""
        self._nodes: list[tuple[float, float, list[tuple[float, float, int]]]] = []
        """A heap of nodes by backlog, each with a heap of its shards by backlog. The second numbers are random, so that
        equal entries take turns."""
        self._take([0] * len(self._names))
        call_in_forks(self._begin_in_fork)

    def _begin_in_fork(self) -> None:
        """Replaces the lock in a forked child, and forgets a measurement under way: threads of the parent had them."""
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
        """With `max_size`: the least full shard when it seems to have no room either; else None."""
        held, _, number = self._nodes[0][2][0]
        return None if held < 0 else self._keys[number]

    def measuring(self) -> Operation[None]:
        """Measures the backlogs if that is due. A node that is away is left out until the next measurement.

        Other threads go on with the known backlogs, however long this takes: with two measurements at once each would
        drop the tasks counted for the other, and fill a shard beyond its part of `max_size`.
        """
        with self._counting:  # if two threads find it due, one measures
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
        """Makes a measurement due, as a task was refused and the known backlogs are wrong."""
        self._sent, self._measured_at = _UNMEASURED, 0.0

    def place_one(self, task: Task) -> None:
        """As `place`, for one task."""
        if task.may_go_anywhere:
            self._place_free((task,))
        else:
            self._place_bound(task)

    def place(self, tasks: Sequence[Task]) -> None:
        """Sets the shard of each task, and an id with the shard's tag. Raises InvalidOption for a unique task whose
        lock does not cover its key, and for an id that names a shard that does not exist."""
        free = [task for task in tasks if task.may_go_anywhere]
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
        """Places a task that belongs to one shard; ignores a task that may go anywhere."""
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
        if self.counts.max_size:  # the task takes room from others
            with self._counting:
                _, _, shards = self._nodes[0]
                for place, (held, turn, number) in enumerate(shards):
                    if self._names[number] == name:
                        shards[place] = (held + 1, turn, number)
                        self._since[number] += 1
                heapify(shards)

    def _take(self, backlogs: Sequence[float]) -> None:
        """Builds the heaps from the backlogs and the tasks placed since these were requested."""
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


def _put(task: Task, name: str) -> None:
    """Changes the task in place, so that after an error it is sent again to the same shard under the same id."""
    if task.queue != name:
        if not task.sending:
            force_setattr(task, "id", f"{task.id[:_TIME_AND_PROCESS]}-{tag_of(name)}")
        force_setattr(task, "queue", name)
