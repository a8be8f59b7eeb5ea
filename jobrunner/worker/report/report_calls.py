"""Turns outcomes into calls: one call for each verb and queue, and for each target of moves."""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.broker.call import Call, sliced
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.broker.resp import Arg
from jobrunner.clock import monotonic
from jobrunner.error_groups import ErrorGroup, group_of, telling_line
from jobrunner.jobs.enqueue_options import own_result_ttl
from jobrunner.jobs.registry import result_ttl_of
from jobrunner.outcome import (
    Cancelled,
    Deferred,
    Dropped,
    Failed,
    FannedOut,
    Moved,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
)
from jobrunner.task import derived_id

AT_ONCE = 500
_NOTED_EVERY_S = 1.0
_MOST_NOTED = 1000
Report = tuple[Attempt, Outcome]


class Reporter:
    """The reporting worker: its id, its release, the error groups that it reported in the last second, and `timed`, the
    queues whose tasks it reports with their run times: queues that keep history."""

    def __init__(self, worker: str = "", release: str = "", timed: Container[str] = ()) -> None:
        self.worker, self.release, self.timed = worker, release, timed
        self._noted: dict[str, float] = {}

    def notes(self, group: str) -> bool:
        """Whether the server has to record now that a group was seen: once a second is enough, and saves a command."""
        now = monotonic()
        if now - self._noted.get(group, -_NOTED_EVERY_S) < _NOTED_EVERY_S:
            return False
        if len(self._noted) >= _MOST_NOTED:
            self._noted.clear()
        self._noted[group] = now
        return True


@dataclass(frozen=True, slots=True)
class ReportCall:
    """A call with its reports, in the order of its verdicts. A call with `targets`, full names of queues, moves items
    there; after a verdict 'full' or 'hops' the report is still to be made."""

    call: Call[list[str]]
    reports: list[Report]
    targets: frozenset[str] = frozenset()


def report_calls(
    keys: Keys, reports: Iterable[Report], *, singly: bool = False, by: Reporter | None = None
) -> list[ReportCall]:
    """The calls that report these outcomes: one for each verb, queue and target, or for each report (`singly`), of up
    to AT_ONCE reports and a MiB of results and payloads. `by`: the worker that reports."""
    by = by or Reporter()
    grouped: defaultdict[tuple[Any, ...], list[Report]] = defaultdict(list)
    for report in reports:
        attempt, outcome = report
        verb: Any = "commit" if type(outcome) is Succeeded else _verb(attempt, outcome)
        grouped[attempt.queue, verb, attempt.token if singly else ""].append(report)
    return [
        _report_call(keys, some, queue, verb, by)
        for (queue, verb, _), made in grouped.items()
        for some in _slices(made)
    ]


def _slices(made: list[Report]) -> Iterable[list[Report]]:
    if len(made) == 1:
        return (made,)
    # Most reports have no content, so there are no sizes to add up. A list is faster here than a generator.
    brings = [type(outcome) is not Succeeded or outcome.result for _, outcome in made]
    if len(made) <= AT_ONCE and not any(brings):
        return (made,)
    return sliced(made, _size, most=AT_ONCE)


def _size(report: Report) -> int:
    outcome = report[1]
    if type(outcome) is Succeeded:
        return len(outcome.result)
    if isinstance(outcome, Moved):
        return len(outcome.payload or b"") + len(outcome.headers or b"")
    return len(outcome.error) if isinstance(outcome, Failed) else 0


def _verb(attempt: Attempt, outcome: Outcome) -> str | tuple[Any, ...]:
    """The verb, for moves and fan-outs together with the other values that reports of one call must share."""
    if isinstance(outcome, Failed):
        return "fail"
    if isinstance(outcome, Moved):
        return "move", outcome.queue, outcome.max_hops, not outcome.waits
    if isinstance(outcome, FannedOut) and outcome.children:
        return "fan_out", attempt.token
    return "release" if isinstance(outcome, (Released, Snoozed, Deferred)) else "commit"


def _report_call(keys: Keys, made: list[Report], queue: str, verb: str | tuple[Any, ...], by: Reporter) -> ReportCall:
    if isinstance(verb, str):
        if verb == "commit":
            return _commit(keys, made, queue, is_timed=queue in by.timed)
        words = [_fields_of(attempt, outcome) for attempt, outcome in made]
        if verb == "fail":
            groups = [_group(attempt, outcome, by.release) for attempt, outcome in made]
            call = leases.fail(keys.queue(queue), words, worker=by.worker, groups=groups, is_noted=by.notes)
            return ReportCall(call, made)
        return ReportCall(getattr(leases, verb)(keys.queue(queue), words), made)
    if verb[0] == "move":
        _, target, max_hops, over = verb
        moves = [_move(attempt, outcome) for attempt, outcome in made if isinstance(outcome, Moved)]
        call = leases.move(keys.queue(queue), keys.queue(target), moves, max_hops=max_hops, over=over)
        return ReportCall(call, made, targets_of(made[0][1]))
    return ReportCall(_fan_out(keys, *made[0]), made, targets_of(made[0][1]))


def _commit(keys: Keys, made: list[Report], queue: str, *, is_timed: bool) -> ReportCall:
    """Groups reports with equal contents: each group is sent as one."""
    groups: defaultdict[tuple[Any, ...], list[Report]] = defaultdict(list)
    for report in made:
        attempt, outcome = report
        result = outcome.result if type(outcome) is Succeeded else b""
        own_ttl = attempt.headers and own_result_ttl(attempt.headers)
        groups[attempt.type, type(outcome), result, attempt.then, own_ttl].append(report)
    parts = []
    for (type_, kind, result, then, _), group in groups.items():
        leases_of = [word for attempt, _ in group for word in (attempt.id, attempt.token)]
        runs = " ".join(str(max(round(attempt.run_s * 1000), -1)) for attempt, _ in group) if is_timed else ""
        parts.append(((keep_ms(group[0][0]), _COMMITTED[kind], result, then or b"", type_, runs), leases_of))
    call = leases.commit_groups(keys.queue(queue), parts)
    return ReportCall(call, [report for group in groups.values() for report in group])


def _move(attempt: Attempt, moved: Moved) -> leases.MoveReport:
    fields: list[Arg] = []
    if moved.payload is not None:
        fields += ("payload", moved.payload, "encoding", moved.encoding)
    if moved.headers is not None:
        fields += ("headers", moved.headers)
    priority = "" if moved.priority is None else moved.priority
    return attempt.id, attempt.token, priority, moved.delay_s * 1000, fields


def _fan_out(keys: Keys, attempt: Attempt, outcome: Outcome) -> Call[list[str]]:
    assert isinstance(outcome, FannedOut)
    own = keys.queue(attempt.queue)
    children = [
        leases.Child(
            id=child_id(attempt, ordinal, own.tag), to=keys.queue(child.queue), fields=_own_fields(attempt, child),
            priority=child.priority, delay_ms=child.delay_s * 1000, over=not child.waits,
        )
        for ordinal, child in enumerate(outcome.children)
    ]  # fmt: skip
    max_hops = max(child.max_hops for child in outcome.children)
    return leases.fan_out(
        own, attempt.id, attempt.token, children, keep_ms=keep_ms(attempt), then=attempt.then or b"", max_hops=max_hops
    )


def child_id(attempt: Attempt, ordinal: int, tag: str) -> str:
    """The id of a child, the same for each report of its parent. An id of one's own may be used again: the instant of
    its enqueue makes the children of the later item others than those of the earlier one, which may still be there."""
    return derived_id(attempt.id, f"{attempt.enqueue_time_ms}.{ordinal}", tag)


def _own_fields(attempt: Attempt, child: Moved) -> Sequence[Arg]:
    """The fields of a child; it inherits from its parent the fields that it does not set."""
    payload, encoding, headers = child.payload, child.encoding, child.headers
    if payload is None:
        payload, encoding = attempt.payload or b"", (attempt.encoding or b"").decode("utf-8", "replace")
    if headers is None:
        headers = attempt.headers
    fields: list[Arg] = ["type", attempt.type, "payload", payload, "encoding", encoding]
    return fields if headers is None else [*fields, "headers", headers]


def _fields_of(attempt: Attempt, outcome: Outcome) -> tuple[Any, ...]:
    if isinstance(outcome, Failed):
        fate = "unbegun" if outcome.is_unbegun else "retry" if outcome.retry else "dead"
        return attempt.id, attempt.token, round((outcome.delay_s or 0.0) * 1000), fate, outcome.error
    if isinstance(outcome, Snoozed):
        return attempt.id, attempt.token, round(outcome.delay_s * 1000)
    if isinstance(outcome, Deferred):
        return attempt.id, attempt.token, f"~{round(outcome.delay_s * 1000)}"
    return attempt.id, attempt.token, "!" if attempt.began_s else ""


def _group(attempt: Attempt, outcome: Outcome, release: str) -> ErrorGroup:
    assert isinstance(outcome, Failed)
    line = telling_line(outcome.error)
    return group_of(attempt.type, line, error_type=outcome.error_type, place=outcome.place, release=release)


_COMMITTED: dict[type, str] = {
    Succeeded: "succeeded", Cancelled: "cancelled", Dropped: "dropped", FannedOut: "succeeded",
}  # fmt: skip


def keep_ms(attempt: Attempt) -> int:
    """How long the finished task stays readable."""
    return round(result_ttl_of(attempt) * 1000)


def targets_of(outcome: Outcome) -> frozenset[str]:
    """The queues that an outcome puts items into."""
    if isinstance(outcome, FannedOut):
        return frozenset(child.queue for child in outcome.children)
    return frozenset((outcome.queue,)) if isinstance(outcome, Moved) else frozenset()


def too_many_hops(attempt: Attempt, outcome: Outcome) -> Report:
    """The report on an item that may not move again: it is dead."""
    moves = outcome.children if isinstance(outcome, FannedOut) else (outcome,)
    limit = max((move.max_hops for move in moves if isinstance(move, Moved)), default=0)
    reason = f"TooManyHops: it moved {limit} times, the most its pipeline allows; look for a loop without an end"
    return attempt, Failed(reason, retry=False)
