"""Everything in one snapshot: the server, its queues, the workers, the leader, the periodic jobs. No writes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TypeVar

from jobrunner.broker.call import Call, command, in_slices
from jobrunner.broker.calls.queues import is_registered, origins
from jobrunner.broker.calls.server import ServerFacts, facts, ping, server_time
from jobrunner.broker.calls.stats import QueueSummary, bulk_counts
from jobrunner.broker.reconnect import waiting_once as waiting_once
from jobrunner.broker.redis_errors import refuses_writes
from jobrunner.broker.shards import whole_queue
from jobrunner.client.client import Client, broker_of, endpoint_of, keys_of
from jobrunner.client.records import PeriodicRecord, WorkerRecord
from jobrunner.client.settings_hash import SettingOrigin, read_origins, read_settings
from jobrunner.clock import perf_counter, read_instant
from jobrunner.errors import NO_ANSWER, ServerRefused
from jobrunner.inspector.shards import merged, with_shards
from jobrunner.queue_settings import RateLimit

T = TypeVar("T")
_ORIGINS_AT_ONCE = 500
CALLS_AT_ONCE = 10
"""Commands that look at queues in one round trip: others wait for some ten milliseconds at most."""
CAME = ("enqueued", "moved_in")
"""Totals of a queue, here and below: by what they count."""
ENDED = ("succeeded", "dropped", "cancelled", "dead", "orphaned")
LEFT = (*ENDED, "moved_out")
WENT_WRONG = ("failed", "recovered")
"""Attempts that failed, and leases that ended without a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue: how many tasks are in each state, its totals, and how many workers serve it."""

    name: str
    waiting: int = 0
    scheduled: int = 0
    pending: int = 0
    dead: int = 0
    done: int = 0
    """Finished tasks that it keeps."""
    paused: bool = False
    paused_until: datetime | None = None
    """When the pause ends by itself; None for one that does not."""
    totals: dict[str, int]
    workers: int
    oldest_s: float | None = None
    """For how long that task has been due which waits longest; None when none waits."""
    max_inflight: int = 0
    """How many of its tasks may run at a time; 0: any number."""
    max_size: int | None = None
    rate: RateLimit | None = None
    problem: str = ""
    """Why the server could not count it."""

    @property
    def open(self) -> int:
        """Tasks that are still to do, or being done."""
        return self.waiting + self.scheduled + self.pending

    @property
    def is_unserved(self) -> bool:
        """Whether it has open tasks and no worker serves it."""
        return self.open > 0 and not self.workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One snapshot. `latency_ms` is of one PING; `leader` the id of the coordinating worker."""

    url: str
    prefix: str
    server: ServerFacts | None
    """None when this user may not ask for it."""
    latency_ms: float
    queues: list[QueueView]
    workers: list[WorkerRecord]
    leader: str | None
    periodics: list[PeriodicRecord]
    problems: list[str]
    """The parts that cannot be read, as the node of a cluster that has them is away; they are empty here."""


def overview(client: Client) -> Snapshot:
    """Takes the snapshot. Raises ServerError."""
    problems: list[str] = []
    workers = workers_or_none(client, problems)
    return Snapshot(
        url=shown_url(client),
        prefix=keys_of(client).prefix,
        server=server_facts(client),
        latency_ms=latency_ms(client),
        queues=queue_views(client, workers),
        workers=workers,
        leader=or_noted(client, lambda: leader(client), None, "leader", problems),
        periodics=or_noted(client, client.periodics, [], "periodic jobs", problems),
        problems=problems,
    )


def workers_or_none(client: Client, problems: list[str]) -> list[WorkerRecord]:
    """The live workers. While the node of a cluster that lists them is away: none, and `problems` gets a line that says
    so, as what is on the other nodes can be read."""
    return or_noted(client, client.workers, [], "workers", problems)


def or_noted(client: Client, read: Callable[[], T], otherwise: T, what: str, problems: list[str]) -> T:
    """What `read` returns; `otherwise`, and a line in `problems`, while the node of a cluster that has it is away."""
    try:
        return read()
    except NO_ANSWER as error:
        if broker_of(client).is_away(error):
            raise
        problems.append(f"the {what} cannot be read: {error}")
        return otherwise


def shown_url(client: Client) -> str:
    """The URL without its password; for the embedded server with the folder it stands for."""
    return str(endpoint_of(client)) if endpoint_of(client).embedded is None else endpoint_of(client).shared_url()


def server_facts(client: Client) -> ServerFacts | None:
    """Facts of INFO; None when this user may not run it."""
    try:
        return broker_of(client).run(facts())
    except ServerRefused:
        return None


def latency_ms(client: Client) -> float:
    """How long a question and its answer take, on a connection that is open."""
    began = perf_counter()
    write_refusal(client)
    return (perf_counter() - began) * 1000


def write_refusal(client: Client) -> str:
    """Why the server takes no writes at present, where it cannot write its file; else empty. Such a server refuses a
    PING, too; that is an answer, and commands that only read work."""
    try:
        broker_of(client).run(ping())
    except ServerRefused as error:
        if refuses_writes(error.__cause__):
            return str(error)
        raise
    return ""


def leader(client: Client) -> str | None:
    """Id of the worker that coordinates now."""
    return broker_of(client).run(leader_call(client))


def leader_call(client: Client) -> Call[str | None]:
    """The call that reads the leader; a damaged value counts as none."""
    return command("HGET", keys_of(client).leader, "worker", read=_text, may_fail=True)


def _text(reply: bytes | None) -> str | None:
    return reply.decode("utf-8", "replace") if reply else None


def queue_views(
    client: Client, workers: list[WorkerRecord], names: list[str] | None = None
) -> list[QueueView]:
    """All queues, by name, or these: one command for fifty queues, one round trip for 500. A queue that cannot be
    counted says why; while the list of queues cannot be read, the view OTHERS at the end does, for those not known."""
    return views_and_shards(client, workers, names)[0]


Shards = Mapping[str, QueueSummary | str]
"""The shards of one queue by name, each with its counts, or the error of one that cannot be read."""


def views_and_shards(
    client: Client, workers: list[WorkerRecord], names: list[str] | None = None
) -> tuple[list[QueueView], Mapping[str, Shards]]:
    """The same, and the shards of each queue, itself among them."""
    unread: dict[str, str] = {}
    every, asked = with_shards(client, names, unread), frozenset(names or ())
    shards: dict[str, dict[str, QueueSummary | str]] = {}
    serving = Counter(queue for worker in workers for queue in set(worker.queues))
    summaries: dict[str, tuple[QueueSummary | str, float]] = {}
    calls = bulk_counts([keys_of(client).queue(name) for name in every])
    left = iter(every)
    for some in in_slices(calls, CALLS_AT_ONCE):
        now_ms, *slices = broker_of(client).run_many([server_time(), *some])
        for found in chain.from_iterable(slices):
            name = next(left)
            whole = name if name in asked else whole_queue(name)
            shards.setdefault(whole, {})[name] = found
            known = summaries.get(whole)
            summaries[whole] = (found if known is None else merged(known[0], found), now_ms)
    views = [_view(name, found, now_ms, serving[name]) for name, (found, now_ms) in summaries.items()]
    unlisted = [QueueView(name=name, totals={}, workers=0, problem=problem) for name, problem in unread.items()]
    return [*views, *unlisted], shards


def holding(shards: Shards, *states: str) -> list[str]:
    """The shards that have tasks in one of these states, and those that could not be counted."""
    return [
        name
        for name, found in shards.items()
        if isinstance(found, str) or any(getattr(found.counts, state) for state in states)
    ]


def overridden(client: Client, names: Sequence[str]) -> dict[str, dict[str, SettingOrigin]]:
    """The declared settings that somebody changed by hand, by queue and setting; queues without one are left out."""
    found: dict[str, dict[str, SettingOrigin]] = {}
    for some in in_slices(names, _ORIGINS_AT_ONCE):
        replies = broker_of(client).run_many([origins(keys_of(client).queue(name)) for name in some])
        for name, stored in zip(some, replies, strict=True):
            changed = {setting: one for setting, one in read_origins(stored).items() if one.is_overridden}
            if changed:
                found[name] = changed
    return found


def is_known(client: Client, queue: str) -> bool:
    """Whether a queue was ever used, in one command however many queues there are."""
    return broker_of(client).run(is_registered(keys_of(client), queue))


def counted_queues(client: Client, names: Sequence[str]) -> dict[str, QueueView]:
    """These queues by name, without the workers that serve them. Raises ServerRefused when one cannot be counted."""
    views = queue_views(client, [], list(names))
    for view in views:
        if view.problem:
            raise ServerRefused(f"queue {view.name} cannot be counted: {view.problem}")
    return {view.name: view for view in views}


def _view(name: str, found: QueueSummary | str, now_ms: float, serving: int) -> QueueView:
    if isinstance(found, str):
        return QueueView(name=name, totals={}, workers=serving, problem=found)
    counts, ends, oldest = found.counts, found.pause_ends_ms, found.oldest_due_ms
    paused = counts.paused and (ends is None or ends > now_ms)
    limits = read_settings(found.limits)
    return QueueView(
        name=name,
        waiting=counts.waiting,
        scheduled=counts.scheduled,
        pending=counts.pending,
        dead=counts.dead,
        done=counts.done,
        paused=paused,
        paused_until=read_instant(ends) if paused else None,  # damage: the scripts read a pause without an end
        totals=counts.totals,
        workers=serving,
        oldest_s=None if oldest is None else max(now_ms - oldest, 0.0) / 1000,
        max_inflight=limits.max_inflight,
        max_size=limits.max_size,
        rate=limits.rate,
    )
