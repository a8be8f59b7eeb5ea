"""Judges flows: a callback is enqueued once, when its rule is met and not before, with the result of each member.

A flow is known from the moment it was laid out. What became of its tasks is known from the reports on them, so an end
that comes to a join must be one that happened, and so must all ends that its callback waits for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from jobrunner.broker.keys import Keys
from jobrunner.client.operations.flow import Flow
from jobrunner.join import AS_BROUGHT, Join, read_onward
from tests.simulation.seen import Seen, Violation

_Ended = tuple[str, bytes]
"""An outcome and a result."""


@dataclass
class SeenJoin:
    """A join, and where the ends come from that it waits for: tasks and joins, by id, in the order of its members."""

    join: Join
    members: dict[int, str] = field(default_factory=dict)
    has_fired: bool = False
    is_known: bool = False
    """Whether the server has it."""
    is_abandoned: bool = False
    """Whether its flow was taken back before it fired, so that it never will."""


class SeenFlows:
    """The joins of the flows of a run, and the tasks that wait in them."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.joins: dict[str, SeenJoin] = {}
        self.waiting: dict[str, SeenJoin] = {}
        """The join of each task that one holds."""

    def add(self, flow: Flow) -> None:
        """A flow that is about to be sent."""
        joins = {join.id: SeenJoin(join) for join in flow.joins}
        self.joins |= joins
        self.waiting |= {one.join.task.id: one for one in joins.values() if one.join.task is not None}
        sources = [(task.id, task.then) for task in flow.prepared] + [(join.id, join.onward) for join in flow.joins]
        for source, onward in sources:
            for arrival in read_onward(onward) if onward else ():
                joins[arrival.join].members[arrival.member] = source

    def end_of(self, observer: "_Observer", source: str) -> _Ended | None:
        """How a task or a join has ended; None when it has not."""
        seen = observer.tasks.get(source.encode())
        if seen is not None:
            return self._end_of_task(observer, source, seen)
        found = self.joins.get(source) or self.waiting.get(source)
        if found is None:
            return None
        if found.is_abandoned:
            return "cancelled", b""
        if found.join.rule == "dead":
            return None
        ends = [self.end_of(observer, member) for _, member in sorted(found.members.items())]
        if None in ends:
            return None
        outcomes = {outcome for outcome, _ in filter(None, ends)}
        if outcomes != {"succeeded"}:
            return "dead" if "dead" in outcomes else "cancelled", b""
        return ("succeeded", results_of(found.join, ends)) if found.join.rule == "pass" else None

    def _end_of_task(self, observer: "_Observer", task_id: str, seen: Seen) -> _Ended | None:
        observer.settle(task_id.encode(), seen)
        if seen.outcome == "succeeded":
            return "succeeded", seen.result
        if seen.outcome == "cancelled":
            return "cancelled", b""
        is_dead = seen.outcome == "dead" or self._is_in_dead(observer, task_id, seen)
        return ("dead", b"") if is_dead else None

    def _is_in_dead(self, observer: "_Observer", task_id: str, seen: Seen) -> bool:
        return observer.ask("ZSCORE", self._keys.queue(seen.queue.decode()).dead, task_id) is not None

    def is_met(self, observer: "_Observer", found: SeenJoin) -> bool:
        """Whether the callback of a join has to be enqueued."""
        if found.is_abandoned:
            return False
        ends = [self.end_of(observer, found.members[number]) for number in sorted(found.members)]
        outcomes = [ended and ended[0] for ended in ends]
        match found.join.rule:
            case "success":
                return all(outcome == "succeeded" for outcome in outcomes)
            case "complete":
                return None not in outcomes
            case _:
                return "dead" in outcomes

    def problems(self, observer: "_Observer") -> Iterator[str]:
        """Yields what is wrong with the joins at the end of a run, when no end is under way."""
        for found in self.joins.values():
            task = found.join.task
            if task is not None and not found.has_fired and self.is_met(observer, found):
                yield f"{task.id} was never enqueued, though its rule, {found.join.rule}, is met"
        for found in self.joins.values():
            if found.join.rule == "tally" and found.is_known and not found.is_abandoned:
                yield from self._of_tally(observer, found)

    def _of_tally(self, observer: "_Observer", found: SeenJoin) -> Iterator[str]:
        key = self._keys.queue(found.join.queue).join(found.join.id)
        counted = [int(total or 0) for total in observer.ask("HMGET", key, "succeeded", "dead")]
        ends = [self.end_of(observer, source) for source in found.members.values()]
        outcomes = [ended[0] for ended in ends if ended is not None]
        if counted != [outcomes.count("succeeded"), outcomes.count("dead")]:
            yield f"the tally of flow {found.join.id} counted {counted} of {outcomes}"


class _Observer(Protocol):
    """The part of an Observer that is used here."""

    ask: Callable[..., Any]
    now: Callable[[], float]
    tasks: dict[bytes, Seen]
    flows: SeenFlows
    settle: Callable[[bytes, Seen], None]


def results_of(join: Join, ends: list[_Ended | None]) -> bytes:
    """The array of results that a join passes on, by its fixed results or by what its members brought."""
    each = [ended[1] if ended and ended[1] else b"null" for ended in ends]
    if join.results == AS_BROUGHT:
        return each[0]
    return join.results or b"[" + b",".join(each) + b"]"


def join_prepare(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply."""
    observer.flows.joins[_id(keys)].is_known = True


def join_abandon(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply."""
    if reply in (b"posted", b"noted"):
        observer.flows.joins[_id(keys)].is_abandoned = True


def join_arrive(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    found = observer.flows.joins[_id(keys)]
    if reply == b"gone":
        raise Violation(f"an end came to join {found.join.id}, which is not there")
    for member, outcome, result in zip(args[1::3], args[2::3], args[3::3], strict=True):
        source = found.members[int(member)]
        ended = observer.flows.end_of(observer, source)
        if ended is None or ended[0] != outcome.decode() or (ended[1] != result and result[:1] != b"@"):
            raise Violation(f"join {found.join.id} was notified that {source} ended as {outcome.decode()}, not {ended}")
    if reply == b"fired":
        _fired(observer, found, args[0])


def join_collect(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    if reply == b"fired":
        _fired(observer, observer.flows.joins[_id(keys)], args[0])


def _fired(observer: _Observer, found: SeenJoin, tasks: bytes) -> None:
    task = found.join.task
    if task is None or found.has_fired:
        raise Violation(f"join {found.join.id} enqueued its task {'twice' if task else 'and has none'}")
    if found.is_abandoned:
        raise Violation(f"{task.id} was enqueued, though its flow was taken back")
    if not observer.flows.is_met(observer, found):
        raise Violation(f"{task.id} was enqueued too early: its rule, {found.join.rule}, is not met")
    found.has_fired, task_id = True, task.id.encode()
    priority = 1 if task.priority is None else task.priority
    now = observer.now()
    observer.tasks[task_id] = Seen(
        task.queue.encode(), priority, len(observer.tasks), has_place=not task.delay_ms, due=now,
        not_before=now + task.delay_ms if task.delay_ms else 0.0, payload=task.payload,
    )  # fmt: skip
    if found.join.rule != "dead":
        _check_results(observer, found, tasks + task_id)


def _check_results(observer: _Observer, found: SeenJoin, key: bytes) -> None:
    ends = [observer.flows.end_of(observer, found.members[number]) for number in sorted(found.members)]
    results, outcomes, parts = observer.ask("HMGET", key, "results", "outcomes", "parts")
    if parts is not None:  # of a large join, in slices
        names = [f"{kind}{n}" for kind in "ro" for n in range(int(parts))]
        each = observer.ask("HMGET", key, *names)
        results, outcomes = b"".join(each[: int(parts)]), b"".join(each[int(parts) :])
    said = b"[" + b",".join(b'"%s"' % ended[0].encode() for ended in ends if ended) + b"]"
    if results != results_of(found.join, ends) or outcomes != said:
        short = [bytes(one or b"")[:80] for one in (results, outcomes)]
        raise Violation(f"{key.decode()} got results {short[0]!r} and outcomes {short[1]!r} of {len(ends)} members")


def _id(keys: list[bytes]) -> str:
    return keys[0].rpartition(b":")[2].decode()
