"""Reads the list of queues, and the shards of many queues at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from jobrunner.broker.broker import run_each_of_nodes, run_each_or_errors
from jobrunner.broker.call import in_slices
from jobrunner.broker.calls.queues import together
from jobrunner.broker.calls.shards import shard_counts
from jobrunner.broker.calls.stats import QueueSummary, by_type_and_together
from jobrunner.broker.shards import is_shard, whole_queue
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import queue_names
from jobrunner.errors import NO_ANSWER, JobrunnerError
from jobrunner.inspector.stats import whole

_QUEUES_AT_ONCE = 500
"""Queues whose settings are read in one round trip, so that other clients wait for a few milliseconds at most."""


OTHERS = "(others)"
"""Stands for queues without a name of their own: all that are not known while the list of queues cannot be read. No
queue can have this name."""
_last_listed: WeakKeyDictionary[Client, list[str]] = WeakKeyDictionary()
"""The last list of queues that each client read, with their shards."""


def with_shards(client: Client, names: Sequence[str] | None, unread: dict[str, str] | None = None) -> list[str]:
    """All queues, or `names`, each followed by its shards.

    With `unread`, the node of a cluster that has the list of queues may be away: the queues are then those of the last
    list that this client read and those that workers serve, and `unread` gets OTHERS with the reason. A queue whose own
    node is away counts as without shards. Raises ServerError.
    """
    if names is None:
        try:
            every = run_operation(broker_of(client), queue_names(keys_of(client)))
        except NO_ANSWER as error:
            if unread is None or broker_of(client).is_away(error):
                raise
            unread[OTHERS] = str(error)
            return sorted({*_last_listed.get(client, ()), *with_shards(client, _served(client), unread)})
        _last_listed[client] = every
        return every
    every = []
    for some in in_slices(names, _QUEUES_AT_ONCE):
        calls = [shard_counts(keys_of(client).queue(name)) for name in some]
        counts = broker_of(client).run_many(calls) if unread is None else run_each_of_nodes(broker_of(client), calls)
        for name, of_queue in zip(some, counts, strict=True):
            every += [name] if isinstance(of_queue, JobrunnerError) else of_queue.names(name)
    return every


def known_queues(client: Client, unread: dict[str, str]) -> list[str]:
    """Full names of all queues, sorted, without shards; `unread` as in `with_shards`. Raises ServerError."""
    return [name for name in with_shards(client, None, unread) if not is_shard(name)]


def _served(client: Client) -> list[str]:
    """The queues that workers serve, sorted; none while the list of workers cannot be read either."""
    try:
        return sorted({queue for worker in client.workers() for queue in worker.queues})
    except NO_ANSWER:
        return []


@dataclass(frozen=True, slots=True)
class EndTotals:
    """Counts of ended attempts at the tasks of a queue, since it exists."""

    by_type: dict[str, int] = field(default_factory=dict)
    """Counts by ``<type> <outcome>``, for tasks whose type is counted."""
    together: dict[str, int] = field(default_factory=dict)
    """Counts of all tasks by name of the total, read at the same instant."""


def end_totals(client: Client, names: Sequence[str]) -> list[EndTotals | JobrunnerError]:
    """The totals of these queues, with their shards added up; the error for a queue that cannot be read."""
    every = with_shards(client, names)
    calls = [by_type_and_together(keys_of(client).queue(name)) for name in every]
    found: dict[str, EndTotals | JobrunnerError] = {name: EndTotals() for name in names}
    for shard, reply in zip(every, run_each_or_errors(broker_of(client), calls), strict=True):
        whole_name = shard if shard in found else whole_queue(shard)
        sums = found[whole_name]
        if isinstance(sums, JobrunnerError):
            continue
        if isinstance(reply, JobrunnerError):
            found[whole_name] = reply
            continue
        for of_all, of_shard in zip((sums.by_type, sums.together), reply, strict=True):
            for name, count in of_shard.items():
                of_all[name] = of_all.get(name, 0) + whole(count)
    return [found[name] for name in names]


def queue_of(shard: str) -> str:
    """The name of the whole queue, from the name of a shard or of the queue itself."""
    return whole_queue(shard)


def pipeline_of(queue: str) -> str:
    """The name of the pipeline of a queue or shard; "" for a queue outside of pipelines."""
    return whole_queue(queue).rpartition("/")[0]


def merged(first: QueueSummary | str, other: QueueSummary | str) -> QueueSummary | str:
    """Merges two shards of a queue; `first` is the queue itself, whose settings and pause apply. An error of either
    shard is the result."""
    if isinstance(first, str) or isinstance(other, str):
        return first if isinstance(first, str) else other
    oldest = [due for due in (first.oldest_due_ms, other.oldest_due_ms) if due is not None]
    return QueueSummary(
        counts=together(first.counts, other.counts),
        pause_ends_ms=first.pause_ends_ms,
        oldest_due_ms=min(oldest, default=None),
        limits=first.limits,
    )
