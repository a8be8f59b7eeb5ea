"""Taking items of a queue under leases and reporting on them, where the queue may have shards.

A queue without partitions gets the operations of operations/lease.py as they are: whether it has shards is known for a
minute (`Routes.counting`), so that no reserve asks for it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from jobrunner.attempt import Attempt
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.calls.queues import Probe
from jobrunner.broker.shards import whole_queue
from jobrunner.client.item_record import Popped
from jobrunner.client.operations import lease as one
from jobrunner.client.operations import queue as queue_operations
from jobrunner.client.operations import reserved as reports
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.hints import WorkHint
from jobrunner.client.operations.operation import Calls, EachReply, Operation
from jobrunner.client.operations.reserved import ReservedItem
from jobrunner.client.operations.slice_balancer import SliceBalancer
from jobrunner.clock import monotonic
from jobrunner.errors import (
    NO_ANSWER,
    JobrunnerError,
    LeaseError,
    OutcomeUnknown,
    ReportsRefused,
    ReportUnknown,
    ReportUnsent,
)
from jobrunner.retry import lease_ms, seconds
from jobrunner.settings import Duration, check_whole

T = TypeVar("T", bound=ReservedItem)
_RECHECK_S = 2.0


def reserve(
    ref: QueueRef, n: int, keepalive: Duration | None, wait: Duration, committing: Iterable[ReservedItem]
) -> Operation[list[Attempt]]:
    """Returns what was handed out. Raises ReportsRefused, and hands nothing out, when a commit was refused.

    A shard that answers with an error, as its node is away, keeps nobody from the tasks of the others. When these have
    none until the wait is over, its error is raised: an empty list would say that the queue has none.
    """
    every = yield from _shards(ref)
    if len(every) == 1:
        return (yield from one.reserve(ref, n, keepalive, wait, committing))
    check_whole(n, "n", minimum=1, maximum=one.RESERVED_AT_ONCE)
    keepalive_ms = lease_ms(keepalive)
    ends = monotonic() + seconds(wait, option="wait")
    held = reports.listed(committing, "leases")
    if held:
        yield from commit_many(ref, held, None)
    while True:
        refused: dict[str, JobrunnerError] = {}
        if taken := (yield from _taken(every, ref.ready, n, keepalive_ms, refused)):
            return taken
        probes = yield from _probed(every, refused)
        ref.ready[:] = [shard for shard in every if shard.name in probes and probes[shard.name].has_tasks]
        while ref.ready:  # they leave it, or a bound on one call ended it before it found any
            if taken := (yield from _taken(every, ref.ready, n, keepalive_ms, refused)):
                return taken
        if every[0].name not in refused and (yield from _balanced(ref, every)):
            continue
        there = [shard for shard in every if shard.name not in refused]
        if (left := ends - monotonic()) <= 0 or not there:
            if refused:
                raise next(iter(refused.values()))
            return []
        events = [(probes[shard.name].next_event_ms, probes[shard.name].now_ms) for shard in there]
        foretold = [(event_ms - now_ms) / 1000 for event_ms, now_ms in events if event_ms is not None]
        balances = ref.balancer is not None and every[0].name not in refused
        balances_in_s = max(ref.balancer.due_at - monotonic(), 0.0) if balances else _RECHECK_S
        yield WorkHint([shard.keys for shard in there], min(left, _RECHECK_S, balances_in_s, *foretold))


def _probed(every: Sequence[QueueRef], refused: dict[str, JobrunnerError]) -> Operation[dict[str, Probe]]:
    """Returns by shard what it has; `refused` has the errors of the other shards afterwards, and no older ones."""
    refused.clear()
    found: list[Probe | JobrunnerError] = yield EachReply([queues.probe(shard.keys) for shard in every])
    probes: dict[str, Probe] = {}
    for shard, probe in zip(every, found, strict=True):
        if isinstance(probe, JobrunnerError):
            refused[shard.name] = probe
        else:
            probes[shard.name] = probe
    return probes


def _taken(
    every: Sequence[QueueRef], ready: list[QueueRef], n: int, keepalive_ms: int | None,
    refused: dict[str, JobrunnerError],
) -> Operation[list[Attempt]]:  # fmt: skip
    """Reserves from shards that had tasks, in one round trip: each gives its share. Those that have no more leave
    `ready`, and so do those whose errors are entered in `refused`; the others take turns."""
    chosen = [shard for shard in ready[:n] if shard in every]
    if not chosen:
        ready.clear()
        return []
    share, more = divmod(n, len(chosen))
    wanted = [share + (place < more) for place in range(len(chosen))]
    found: list[Reservation | JobrunnerError] = yield one.taking([*zip(chosen, wanted, strict=True)], keepalive_ms)
    del ready[: len(chosen)]
    taken: list[Attempt] = []
    for shard, count, some in zip(chosen, wanted, found, strict=True):
        if isinstance(some, JobrunnerError):
            refused[shard.name] = some
            continue
        taken += some.attempts
        if len(some.attempts) == count or some.is_cut_short:
            ready.append(shard)
    return taken


def pop(ref: QueueRef, n: int) -> Operation[list[Popped]]:
    """Returns what was taken out of one shard, another one each time; [] when none has anything. Raises the error of a
    shard when no other has anything."""
    every = yield from _shards(ref)
    if len(every) == 1:
        return (yield from queue_operations.pop(ref, n))
    check_whole(n, "n", minimum=1, maximum=1000)
    ref.turn += 1
    while True:
        refused: dict[str, JobrunnerError] = {}
        probes = yield from _probed(every, refused)
        for place in range(len(every)):
            shard = every[(place + ref.turn) % len(every)]
            has_tasks = shard.name in probes and probes[shard.name].has_tasks
            if has_tasks and (taken := (yield from queue_operations.pop(shard, n))):
                return taken
        if every[0].name in refused or not (yield from _balanced(ref, every)):
            if refused:
                raise next(iter(refused.values()))
            return []


def _balanced(ref: QueueRef, every: Sequence[QueueRef]) -> Operation[bool]:
    """Lets slices follow the load, where no worker does that: at most once a second, and when nothing could be taken.
    Returns whether anything moved."""
    balancer: SliceBalancer = ref.balancer or SliceBalancer(ref)
    ref.balancer = balancer
    return balancer.due_at <= monotonic() and (yield from balancer.balancing(len(every)))


def commit_many(ref: QueueRef, given: Iterable[T], results: Iterable[Any] | None) -> Operation[list[bool]]:
    """Returns one bool per lease, False for an item that no longer exists."""
    held = reports.listed(given, "leases")
    if _are_of(ref, held):
        return (yield from one.commit_many(ref, held, results))
    stored = reports.one_for_each(held, results, "results") or [None] * len(held)
    return (
        yield from _by_shard(
            ref, held, lambda shard, places: one.commit_many(shard, _at(held, places), _at(stored, places))
        )
    )


def rollback_many(ref: QueueRef, given: Iterable[T], delay: Duration | None, error: str) -> Operation[list[bool]]:
    """Returns one bool per lease, False for an item that no longer exists."""
    held = reports.listed(given, "leases")
    if _are_of(ref, held):
        return (yield from one.rollback_many(ref, held, delay, error))
    return (
        yield from _by_shard(
            ref, held, lambda shard, places: one.rollback_many(shard, _at(held, places), delay, error)
        )
    )


def release_many(ref: QueueRef, given: Iterable[T]) -> Operation[list[bool]]:
    """Returns one bool per lease, False for an item that no longer exists."""
    held = reports.listed(given, "leases")
    if _are_of(ref, held):
        return (yield from one.release_many(ref, held))
    return (yield from _by_shard(ref, held, lambda shard, places: one.release_many(shard, _at(held, places))))


def extend_many(ref: QueueRef, given: Iterable[T]) -> Operation[list[bool]]:
    """Returns one bool per lease, False for an item that no longer exists. Sets the new deadlines."""
    held = reports.listed(given, "leases")
    if _are_of(ref, held):
        return (yield from one.extend_many(ref, held))
    return (yield from _by_shard(ref, held, lambda shard, places: one.extend_many(shard, _at(held, places))))


def move_many(
    ref: QueueRef,
    given: Iterable[T],
    queue: str,
    payloads: Iterable[Any] | None,
    headers: Mapping[str, str] | None,
    delay: Duration,
    priority: int | None,
    max_hops: int,
) -> Operation[list[bool]]:
    """Returns one bool per lease, False for an item that no longer exists. Every item stays in its partition."""
    held = reports.listed(given, "leases")
    if _are_of(ref, held):
        return (yield from one.move_many(ref, held, queue, payloads, headers, delay, priority, max_hops))
    sent = reports.one_for_each(held, payloads, "payloads")
    places = _places(ref, held)
    operations: list[Operation[list[bool]]] = []
    for name, some in places.items():
        shard, own = ref.shard(name), None if sent is None else _at(sent, some)
        leases = reports.own(shard, _at(held, some))
        calls = yield from one.moves(shard, leases, queue, own, headers, delay, priority, max_hops)
        operations.append(_moved(leases, calls, whole_queue(ref.neighbour(queue).name)))
    return (yield from _together(held, places, operations))


def _moved(held: Sequence[ReservedItem], calls: Calls, to: str) -> Operation[list[bool]]:
    return reports.verdicts(held, (yield calls), to=to)


def _shards(ref: QueueRef) -> Operation[list[QueueRef]]:
    if ref.routes is None:
        return [ref]
    found = yield from ref.routes.counting(ref.name)
    return [ref.shard(name) for name in found.names(ref.name)]


def _are_of(ref: QueueRef, held: Sequence[object]) -> bool:
    """Whether all of them are of the queue itself, or of none of its other shards: then the plain operation has them,
    or refuses them."""
    return all(not isinstance(one, ReservedItem) or not _is_of_other(ref, one.queue) for one in held)


def _is_of_other(ref: QueueRef, queue: str) -> bool:
    return queue != ref.name and whole_queue(queue) == ref.name and ref.routes is not None


def _at(items: Sequence[Any], places: Iterable[int]) -> list[Any]:
    return [items[place] for place in places]


def _places(ref: QueueRef, held: Sequence[object]) -> dict[str, list[int]]:
    """The places of leases by their shard. Those of other queues are left to the queue itself, which refuses them."""
    places: dict[str, list[int]] = {}
    for place, item in enumerate(held):
        name = item.queue if isinstance(item, ReservedItem) and _is_of_other(ref, item.queue) else ref.name
        places.setdefault(name, []).append(place)
    return places


def _by_shard(
    ref: QueueRef, held: Sequence[ReservedItem], report: Callable[[QueueRef, list[int]], Operation[list[bool]]]
) -> Operation[list[bool]]:
    """Reports on leases of all shards together."""
    places = _places(ref, held)
    operations = [report(ref.shard(name), some) for name, some in places.items()]
    return (yield from _together(held, places, operations))


def _together(
    held: Sequence[ReservedItem], places: Mapping[str, Sequence[int]], operations: Sequence[Operation[list[bool]]]
) -> Operation[list[bool]]:
    """Carries out the reports of each shard; the verdicts are in the order of the leases. Raises the error of a node
    that is away when no other took any report, else ReportsRefused."""
    found: list[bool | LeaseError] = [False] * len(held)
    answers = yield from _side_by_side(operations)
    errors = [answer for answer in answers if isinstance(answer, JobrunnerError)]
    if len(errors) == len(answers):
        raise _why_unanswered(errors)
    for some, answer in zip(places.values(), answers, strict=True):
        verdicts = (
            [_unanswered(held[place], answer) for place in some] if isinstance(answer, JobrunnerError) else answer
        )  # fmt: skip
        for place, verdict in zip(some, verdicts, strict=True):
            found[place] = verdict
    taken = [verdict for verdict in found if not isinstance(verdict, LeaseError)]
    if len(taken) < len(found):
        raise ReportsRefused(found)
    return taken


def _unanswered(held: ReservedItem, error: JobrunnerError) -> LeaseError:
    if isinstance(error, OutcomeUnknown):
        return ReportUnknown(f"the report on task {held.id} was taken or not: {error}")
    return ReportUnsent(f"the report on task {held.id} was not sent: {error}")


def _side_by_side(
    operations: Sequence[Operation[list[bool]]]
) -> Operation[list[Sequence[bool | LeaseError] | JobrunnerError]]:
    """Carries out operations of calls in the round trips that one of them takes; returns the verdicts of each, or why
    its node did not answer. All have checked what they were given before anything is sent, so a wrong result of one
    lease leaves those of the other shards as they are."""
    found: list[Sequence[bool | LeaseError] | JobrunnerError] = [()] * len(operations)
    answers: dict[int, list[Any] | None] = dict.fromkeys(range(len(operations)))
    while answers:
        calls: dict[int, Calls] = {}
        for number, answer in answers.items():
            try:
                step = operations[number].send(answer)
                assert isinstance(step, list)
                calls[number] = step
            except StopIteration as end:
                found[number] = end.value
            except ReportsRefused as refused:
                found[number] = refused.verdicts
        answers = {}
        rest = iter((yield EachReply([call for some in calls.values() for call in some])) if calls else ())
        for number, some in calls.items():
            replies = list(islice(rest, len(some)))
            broken = [reply for reply in replies if isinstance(reply, JobrunnerError)]
            if broken:
                found[number] = _why_unanswered(broken)
            else:
                answers[number] = replies
    return found


def _why_unanswered(errors: Sequence[JobrunnerError]) -> JobrunnerError:
    """The error of shards whose nodes are away; OutcomeUnknown when one may have taken a part. Raises any other."""
    for error in errors:
        if not isinstance(error, NO_ANSWER):
            raise error
    return next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
