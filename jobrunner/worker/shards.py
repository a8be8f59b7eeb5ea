"""Which shards of its queues a worker serves (docs/queues.md, partitions)."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from jobrunner.broker.broker import Broker, run_each_of_nodes
from jobrunner.broker.call import Call
from jobrunner.broker.calls.shards import UNKNOWN, ShardCounts, shard_counts
from jobrunner.broker.keys import Keys
from jobrunner.errors import JobrunnerError
from jobrunner.logs import SafeLogger

_MOST_ASKED = 100
_LOST = "the server has lost the partitions of a queue"
_LOST_HINT = "configure the queue with as many again, or tasks in the others are in no count, and new workers take none"
_log = SafeLogger("jobrunner.worker")


class ServedShards:
    """The shards of the queues that the fetch loop serves, by weight. Heartbeats ask how many there are, and `take` the
    replies; the fetch loop takes over what changed when it finds `has_changed`.

    A queue keeps its weight, whatever the number of its shards: they share it.
    """

    def __init__(self, keys: Keys, weights: Mapping[str, int], counts: Sequence[ShardCounts]) -> None:
        self._keys = keys
        self._weights = dict(weights)
        self._counts = dict(zip(weights, counts, strict=True))
        self._next = deque(weights)
        self._asked: list[str] = []
        self._lost: set[str] = set()
        """The queues of which the server has fewer shards than are served."""
        self.has_changed = False
        self.on_change: Callable[[], object] = lambda: None
        """Called when there is something for the fetch loop to take over."""
        self.on_limits: Callable[[], object] = lambda: None
        """Called when shards have slices of limits that had none before."""

    @property
    def weights(self) -> dict[str, int]:
        """All shards by weight, each queue itself before its other shards."""
        most = max((counts.served for counts in self._counts.values()), default=1)
        return {
            name: max(weight * most // self._counts[queue].served, 1)
            for queue, weight in self._weights.items()
            for name in self._counts[queue].names(queue)
        }

    @property
    def limited(self) -> dict[str, int]:
        """The queues whose shards have slices of limits, and how many shards each has."""
        return {queue: counts.served for queue, counts in self._counts.items() if counts.is_limited}

    def asking(self) -> list[Call[ShardCounts]]:
        """Calls that ask for the shards of a hundred queues at most, the next time of the next hundred."""
        self._asked = list(islice(self._next, _MOST_ASKED))
        self._next.rotate(-len(self._asked))
        return [shard_counts(self._keys.queue(queue)) for queue in self._asked]

    def take(self, replies: Sequence[ShardCounts]) -> None:
        """Takes in the replies to the calls that were made last. A queue never has fewer shards to serve."""
        for queue, found in zip(self._asked, replies, strict=False):
            known = self._counts[queue]
            self._note_loss(queue, found, known)
            if found.served > known.served:
                _log.info("a queue has more partitions: serving them", queue=queue, partitions=found.partitions)
                self.has_changed = True
            self._counts[queue] = found if found.served >= known.served else replace(known, is_limited=found.is_limited)
            if self._counts[queue].is_limited and not known.is_limited:
                self.on_limits()
        if self.has_changed:
            self.on_change()

    def _note_loss(self, queue: str, found: ShardCounts, known: ShardCounts) -> None:
        if found.served >= known.served:
            self._lost.discard(queue)
        elif found is not UNKNOWN and queue not in self._lost:
            self._lost.add(queue)
            _log.warning(_LOST, queue=queue, partitions=known.partitions, hint=_LOST_HINT)


def served_shards(broker: Broker, keys: Keys, weights: Mapping[str, int]) -> ServedShards:
    """The current shards; for a queue whose node is away only the first shard, until a heartbeat reads the number.
    Raises ServerError."""
    return ServedShards(keys, weights, read_shard_counts(broker, keys, list(weights)))


def read_shard_counts(broker: Broker, keys: Keys, queues: Sequence[str]) -> list[ShardCounts]:
    """How many shards these queues have; UNKNOWN for those whose node of a cluster is away. Raises ServerError."""
    found = run_each_of_nodes(broker, [shard_counts(keys.queue(queue)) for queue in queues])
    return [UNKNOWN if isinstance(one, JobrunnerError) else one for one in found]
