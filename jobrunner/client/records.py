"""Reads of a client about its prefix: queue names, workers, periodic jobs; and commands to workers."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from jobrunner.broker.call import in_slices, whole
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.queues import QueueCounts, together
from jobrunner.broker.calls.server import server_time
from jobrunner.broker.calls.stats import list_workers
from jobrunner.broker.keys import Keys
from jobrunner.broker.shards import is_shard, whole_queue
from jobrunner.client.operations.operation import EachReply, Operation, ask
from jobrunner.clock import from_ms
from jobrunner.due_ticks import first_tick
from jobrunner.errors import UnknownJob
from jobrunner.formatting import describe, listed
from jobrunner.periodic import KNOWN_FOR_MS, AddedDefinition, PeriodicDefinition, read_added, read_definition
from jobrunner.schedule import NEVER, Schedule

TOO_MANY = "*"
"""Published in place of the job names of a worker when these are too long together."""


class RunningAttempt(msgspec.Struct, frozen=True, array_like=True):
    """An attempt that a worker runs."""

    queue: str
    id: str
    type: str
    attempt: int
    began_ms: float
    items: int = 0
    """The number of items of a batch, which `id` names; 0: a task."""
    lease: str = ""
    """The number of the task's lease; "" for a batch."""

    @property
    def began(self) -> datetime:
        """When the attempt began, by the worker's clock."""
        return from_ms(self.began_ms)


_COUNTED_AT_ONCE = 1000
_NAMED = 10
_COMMANDS_KEPT_MS = 3_600_000
_OVERDUE_AFTER = timedelta(seconds=30)
"""Longer than workers take to replace a leader that died, and to fire the ticks that became due meanwhile."""
WorkerCommand = Literal["quiet", "resume", "stop"]
_COMMANDS = {"quiet": ("quiet", "1"), "resume": ("quiet", "0"), "stop": ("stop", "1")}
"""The field that a worker reads for each command, and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """The last heartbeat of a worker, some seconds old at most."""

    id: str
    host: str
    pid: int
    started: datetime | None
    queues: tuple[str, ...]
    concurrency: int
    executor: str
    in_hand: int
    """Tasks that the worker has reserved and not reported: running, fetched, and ended a moment ago."""
    finished: int
    leads: bool
    quiet: bool = False
    """Whether the worker takes no new tasks."""
    gate: str = ""
    """Why a gate keeps the worker from taking tasks; "" while all gates are open."""
    stopping: bool = False
    """Whether the worker finishes its running tasks, and then stops."""
    memory: int = 0
    """Bytes of the worker's main process; 0: unknown."""
    running: tuple[RunningAttempt, ...] = ()
    """The running tasks, longest running first, at most 50."""
    types: tuple[str, ...] | None = None
    """Names of the jobs that the worker knows; None when they are too many to publish, or unpublished."""
    release: str = ""
    """The deployed version of the worker's application; "" when the worker was started without a version."""
    executing: int = 0
    """The number of running attempts, without the batches of drivers."""
    fetched: int = 0
    """The number of tasks that the worker has reserved and not yet begun."""
    held_by: str = ""
    """The queue whose tasks hold all slots while other queues of the worker wait; "" for none."""
    problem: str = ""
    """What keeps the worker from its tasks, by its own report: a job that blocks its event loop, payloads that it
    cannot read; "" for nothing."""
    at: datetime | None = None
    """When the worker sent the heartbeat, by its clock."""

    @property
    def slots(self) -> int:
        """The number of attempts that the worker can run at once; with plain and coroutine jobs it may exceed
        `concurrency`."""
        return max(self.concurrency, self.executing)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicTick:
    """One tick of a periodic job: `outcome` is fired, skipped (the task before was not finished) or disabled."""

    at: datetime
    outcome: str
    task: str | None
    """Id of the task that the tick enqueued, which may be gone by now; None for a tick without a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicRecord:
    """A periodic job, published by workers or added at run time, and the outcomes of its ticks."""

    name: str
    queue: str
    schedule: str
    """The schedule in words."""
    last: datetime | None
    """The last tick that fired or was skipped."""
    next: datetime | None
    """The next tick; in the past when it is `overdue`; None when the schedule has ended (`end`, `limit`)."""
    task: str | None
    """Id of the task of the last tick that fired."""
    fired: int
    skipped: int
    catch_up: str | int
    overlap: str
    served: bool
    """Whether a worker published the job within the last minute, or it was added at run time; otherwise no tick
    fires."""
    enabled: bool = True
    """Whether ticks fire; False for a disabled job."""
    overdue: bool = False
    """Whether the next tick was due more than half a minute ago, a worker knows the job, and no leader has fired it."""
    recent: tuple[PeriodicTick, ...] = ()
    """The last 20 ticks, the latest first; a leader of 0.1.0 does not record its ticks."""
    problem: str = ""
    """Why the ticks cannot be read, such as a cluster node that is away; the other fields are then those of a job that
    never fired."""
    job: str = ""
    """The name of the job that its tasks run; that of the record, unless it was added at run time."""
    added: bool = False
    """Whether a program added it at run time (`Client.add_periodic`)."""


def read_workers(keys: Keys) -> Operation[list[WorkerRecord]]:
    """Returns the workers with a recent heartbeat, by id."""
    found = yield from ask(list_workers(keys))
    return sorted((_worker(worker_id, fields) for worker_id, fields in found), key=lambda worker: worker.id)


def command_worker(keys: Keys, worker_id: str, command: WorkerCommand) -> Operation[bool]:
    """Sends a command, which the worker reads with its next heartbeat.

    Returns False when no live worker has this id.
    """
    if worker_id not in {one.id for one in (yield from read_workers(keys))}:
        return False
    field, value = _COMMANDS[command]
    yield leader_calls.order(keys, worker_id, field, value, ttl_ms=_COMMANDS_KEPT_MS)
    return True


def read_periodics(keys: Keys) -> Operation[list[PeriodicRecord]]:
    """Returns the periodic jobs by name, without those with a damaged definition."""
    published, added, seen, now_ms = yield [
        leader_calls.periodics(keys),
        leader_calls.added_periodics(keys),
        leader_calls.periodics_seen(keys),
        server_time(),
    ]
    readable = [one for _, one in sorted(_readable(published, added).items())]
    states = yield EachReply([leader_calls.periodic_state(keys.queue(one.queue), one.state) for one in readable])
    return [
        _periodic(one, state, from_ms(now_ms), served=_is_added(one) or now_ms - seen.get(one.name, 0) <= KNOWN_FOR_MS)
        for one, state in zip(readable, states, strict=True)
    ]


def _readable(published: Mapping[str, bytes], added: Mapping[str, bytes]) -> dict[str, PeriodicDefinition]:
    """The definitions by name, without damaged ones. A job that was added by the name of a published one is left out,
    as the leader does not fire it."""
    found: dict[str, PeriodicDefinition] = {}
    for name, raw in added.items():
        if name not in published and (one := read_added(raw)) is not None:
            found[name] = one
    for name, raw in published.items():
        if (other := read_definition(raw)) is not None:
            found[name] = other
    return found


def _is_added(definition: PeriodicDefinition) -> bool:
    return isinstance(definition, AddedDefinition)


def read_stats(keys: Keys) -> Operation[dict[str, QueueCounts]]:
    """Returns counts and totals of every queue, by name; the counts of a queue include its shards."""
    names = yield from queue_names(keys)
    counted: dict[str, QueueCounts] = {}
    for some in in_slices(names, _COUNTED_AT_ONCE):
        for name, found in zip(some, (yield [queues.counts(keys.queue(name)) for name in some]), strict=True):
            whole = whole_queue(name)
            counted[whole] = found if whole not in counted else together(counted[whole], found)
    return counted


def _worker(worker_id: str, fields: Mapping[str, bytes]) -> WorkerRecord:
    text = {name: value.decode("utf-8", "replace") for name, value in fields.items()}
    started = whole(fields.get("started"))
    return WorkerRecord(
        id=worker_id,
        host=text.get("host", ""),
        pid=whole(fields.get("pid")),
        started=from_ms(started) if started else None,
        queues=tuple(name for name in text.get("queues", "").split(",") if name),
        concurrency=whole(fields.get("concurrency")),
        executor=text.get("executor", ""),
        in_hand=whole(fields.get("in_hand")),
        finished=whole(fields.get("finished")),
        leads=text.get("leads") == "1",
        quiet=text.get("quiet") == "1",
        gate=text.get("gate", ""),
        stopping=text.get("stopping") == "1",
        memory=whole(fields.get("memory")),
        running=_running(fields.get("running", b"[]")),
        types=_types(text.get("types")),
        release=text.get("release", ""),
        executing=whole(fields.get("executing")),
        fetched=whole(fields.get("fetched")),
        held_by=text.get("held_by", ""),
        problem=text.get("problem", ""),
        at=from_ms(at) if (at := whole(fields.get("at"))) else None,
    )


def _running(raw: bytes) -> tuple[RunningAttempt, ...]:
    try:
        return msgspec.json.decode(raw, type=tuple[RunningAttempt, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ()


def _types(said: str | None) -> tuple[str, ...] | None:
    if said is None or said == TOO_MANY:
        return None
    return tuple(name for name in said.split(",") if name)


def _periodic(
    definition: PeriodicDefinition, found: Mapping[str, bytes] | Exception, now: datetime, *, served: bool
) -> PeriodicRecord:
    schedule = definition.parsed()
    state: Mapping[str, bytes] = {} if isinstance(found, Exception) else found
    last_ms, fired, skipped = (whole(state.get(name)) for name in ("last", "fired", "skipped"))
    counted_from = from_ms(last_ms) if last_ms else None
    has_ended = definition.tasks_left(fired) <= 0
    following = NEVER if has_ended else _next(schedule, counted_from, now, served=served)
    return PeriodicRecord(
        name=definition.name,
        queue=definition.queue,
        schedule=definition.in_words,
        last=counted_from if fired or skipped else None,
        next=None if following == NEVER else following,
        task=state["task"].decode("utf-8", "replace") if "task" in state else None,
        fired=fired,
        skipped=skipped,
        catch_up=definition.catch_up,
        overlap=definition.overlap,
        served=served,
        enabled="disabled" not in state,
        overdue=following < now,
        recent=_ticks(state.get("recent", b"")),
        problem=str(found) if isinstance(found, Exception) else "",
        job=definition.job,
        added=_is_added(definition),
    )


def _ticks(raw: bytes) -> tuple[PeriodicTick, ...]:
    """The ticks in `tick,outcome,id;…` (lua/periodic_fire.lua), without damaged ticks."""
    parts = (one.split(",") for one in raw.decode("utf-8", "replace").split(";"))
    return tuple(
        PeriodicTick(at=from_ms(whole(one[0].encode())), outcome=one[1], task=one[2] or None)
        for one in parts
        if len(one) == 3 and one[0].isdecimal() and len(one[0]) < 15
    )


def _next(schedule: Schedule, last: datetime | None, now: datetime, *, served: bool) -> datetime:
    if last is None:
        return first_tick(schedule, now)
    if served and now - (due := schedule.next_after(last)) > _OVERDUE_AFTER:
        return due
    passed = schedule.ticks_between(last, now, 1)
    return schedule.next_after(passed[-1] if passed else last)


def queue_names(keys: Keys) -> Operation[list[str]]:
    """Returns the full names of all queues, sorted. Queues created or deleted during the scan may be missing.

    Reads in slices: many names at once would block the server.
    """
    found: set[str] = set()
    cursor = 0
    while True:
        cursor, names = yield from ask(queues.registered(keys, cursor))
        found.update(names)
        if not cursor:
            return sorted(found)


def whole_queues(keys: Keys) -> Operation[list[str]]:
    """Returns the full names of all queues, sorted, without shards."""
    return [name for name in (yield from queue_names(keys)) if not is_shard(name)]


def published(keys: Keys, name: str) -> Operation[PeriodicDefinition]:
    """Returns the definition of a periodic job that was published, or added at run time. Raises UnknownJob, which names
    the known jobs."""
    found, added = yield [leader_calls.periodics(keys), leader_calls.added_periodics(keys)]
    readable = _readable(found, added)
    if not isinstance(name, str) or name not in readable:
        raise UnknownJob(f"no periodic job {describe(name)} was published; {_known(sorted(readable))}")
    return readable[name]


def _known(names: list[str]) -> str:
    return f"known are {listed(names, _NAMED)}" if names else "no worker published any yet"
