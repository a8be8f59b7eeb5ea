"""Checks the history of one task: whether some order of its operations explains all replies and the final snapshot.

Tasks are judged one by one, as linearizability is local (Herlihy and Wing, 1990). The search follows the operations in
time and keeps every possible state (Lowe, "Testing for linearizability", 2017): an operation takes effect at an instant
between its call and its reply; one without a reply at any after its call, or never. A lease that ran out gives its task
back at any time. States: ``("absent",)``, ``("waiting", queue)`` (also scheduled), ``("held", queue, lease, end_ms)``,
``("ended",)``, ``("dead", queue)``.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jobrunner.soak.history.reader import ENTERING, NEVER, Op, RecordedHistory

State = tuple[Any, ...]
_MOST_ORDERS = 20_000
REPORTS = {"commit": ["ended"], "release": ["waiting"], "move": ["waiting"], "fail": ["waiting", "dead"],
           "crash": ["waiting", "dead"]}  # fmt: skip


def violation(ops: list[Op]) -> tuple[str, str] | None:
    """The kind and the description of what no order explains; None when one does."""
    events = sorted([(op.began, 0, n) for n, op in enumerate(ops)] + [(op.ended, 1, n) for n, op in enumerate(ops)])
    is_sent_again = any(op.do in ENTERING and op.said is None for op in ops)
    possible: set[tuple[State, frozenset[int]]] = {(("absent",), frozenset())}
    pending: list[int] = []
    for at, is_reply, n in events:
        if at == NEVER:
            break
        if not is_reply:
            pending.append(n)
            continue
        # All states in which this operation took effect, after any of the others that may have.
        seen, left = set(possible), list(possible)
        while left and len(seen) < _MOST_ORDERS:
            state, applied = left.pop()
            for other in pending if n not in applied else ():
                for after in _after(ops[other], state, is_sent_again) if other not in applied else ():
                    if (found := (after, applied | {other})) not in seen:
                        seen.add(found)
                        left.append(found)
        if left:
            return "not judged", "too many of its operations have no reply"
        before, possible = possible, {(state, applied - {n}) for state, applied in seen if n in applied}
        if not possible:
            return _explained(ops[n], {state for state, _ in before})
        pending.remove(n)
    return None


def _after(op: Op, state: State, is_sent_again: bool) -> Iterable[State]:
    """The states that the operation may lead to; none when it cannot have had its outcome in this state."""
    kind = state[0]
    until = max((0, *state[3:]))
    is_free = kind == "waiting" or (kind == "held" and until <= op.now_ms)
    match op.do:
        case do if do in ENTERING:
            if op.said not in (None, "new", "fired"):  # it was there, so it stays
                return [state]
            if kind in ("absent", "ended", "dead"):  # those are forgotten after a while
                return [("waiting", op.queue), *([state] if is_sent_again and kind != "absent" else [])]
            return [state] if is_sent_again else []  # the second call has the reply of the first
        case "reserve":
            return [("held", op.queue, op.lease, max(op.end_ms, until))] if is_free and state[1] == op.queue else []
        case "cancel":
            return [("ended",)] if is_free or kind == "dead" else []
        case "snapshot":
            return [state] if _shows(op.said, state) else []
    if kind != "held" or state[1:3] != (op.queue, op.lease):
        return []
    if op.do == "extend":
        return [(*state[:3], max(state[3], op.end_ms))]
    ends = REPORTS[op.do] if op.said is None or op.said == "ok" else ["dead" if op.said == "dead" else "waiting"]
    return [(end,) if end == "ended" else (end, op.to or op.queue) for end in ends]


def _shows(places: list[tuple[str, str]], state: State) -> bool:
    if len(places) != 1 or state[0] in ("absent", "ended"):
        return not places and state[0] in ("absent", "ended", "dead")  # dead tasks are kept for a while
    queue, found = places[0]  # a lease that ran out ends in `waiting`, or in `dead` when it was the last
    kinds = {"pending": ["held"], "dead": ["held", "dead"]}.get(found, ["held", "waiting"])
    return bool(state[1] == queue and state[0] in kinds)


def _explained(op: Op, states: set[State]) -> tuple[str, str]:
    kinds = {state[0] for state in states}
    named = {"snapshot": "not where it was put", "move": "moved twice", **dict.fromkeys(ENTERING, "enqueued twice")}
    kind = "from nowhere" if kinds == {"absent"} else named.get(op.do, "two holders report success")
    if op.do == "snapshot" and len(op.said) != 1:
        kind = "in two places" if op.said else "lost"
    elif op.do == "reserve" and kinds != {"absent"}:
        kind = "two leases" if "held" in kinds else "in two places" if "waiting" in kinds else "back after its end"
    could = "the task could only be: " + " or ".join(sorted(" ".join(map(str, state)) for state in states)[:3])
    return kind, f"{op.do} {op.queue} (lease {op.lease}) had the outcome {op.said!r} at {op.ended:.6f}, and {could}"


def with_lost_reserves(history: RecordedHistory, task: str) -> list[Op]:
    """The operations of a task, and reserves without a reply that may have taken it: those whose lease numbers a report
    on it names, as a lease keeper finds them, or the first one of the queue in which it is pending or dead at the end:
    that may be applied later as well. By its `end_ms` such a lease may end at any time, not before one it follows."""
    ops = history.tasks[task]
    named = {op.lease for op in ops if op.lease is not None} - {op.lease for op in ops if op.do == "reserve"}
    left = {place for op in ops if op.do == "snapshot" for place, state in op.said if state in ("pending", "dead")}
    lost = sorted(history.lost_reserves, key=lambda one: one[0].began) if named or left else []
    more = [replace(op, lease=n) for op, count in lost for n in named if 0 <= (n or 0) - (op.lease or 0) < count]
    return [*ops, *more, *[replace(op, lease=None) for op, _ in lost if op.queue in left][:1]]
