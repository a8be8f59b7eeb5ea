"""Checks the history of one task: whether some order of its operations explains all replies and the final snapshot.

The search keeps every possible state (decision 43). An operation takes effect once between its call and its reply, or
without one at any time after its call, or never; an expired lease returns its task at any time. A state: absent,
waiting (also scheduled), held, ended or dead; queue; attempts begun; due time, or lease's end (ms); lease number.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jobrunner.soak.history.reader import ADDED, ENTERING, NEVER, Op, RecordedHistory

State = tuple[Any, ...]
_MOST_ORDERS = 20_000
_SEEN_AS = {"pending": "held", "dead": "held dead", "nowhere": "absent ended dead"}
REPORTS = {"commit": "ended", "release": "waiting", "move": "waiting", "fail": "waiting dead", "crash": "waiting dead"}


def violation(ops: list[Op]) -> tuple[str, str] | None:
    """The kind and the description of a violation that no order explains; None without one."""
    times = ((at, is_reply, n) for n, op in enumerate(ops) for is_reply, at in enumerate((op.began, op.ended)))
    possible: set[tuple[State, frozenset[int]]] = {(("absent", "", 0, 0.0, None), frozenset())}
    pending = set[int]()
    for _, is_reply, n in sorted(time for time in times if time[0] < NEVER):
        if not is_reply:
            pending.add(n)
            continue
        # All states in which this operation took effect, after any other operations that may have.
        seen, left = set(possible), list(possible)
        while left and len(seen) < _MOST_ORDERS:
            state, applied = left.pop()
            for other in pending - applied if n not in applied else ():
                found = {(after, applied | {other}) for after in _after(ops[other], state)} - seen
                seen |= found
                left += found
        if left:
            return "not judged", "too many of its operations have no reply"
        before, possible = possible, {(state, applied - {n}) for state, applied in seen if n in applied}
        if not possible:
            return _explained(ops[n], {state for state, _ in before})
        pending.remove(n)
    return None


def _after(op: Op, state: State) -> Iterable[State]:
    """The states that the operation may lead to; none when it cannot have had its outcome in this state."""
    kind, queue, attempts, until, lease = state
    is_free = kind in ("waiting", "held") and until <= op.now_ms + (kind == "waiting")  # due times have whole ms
    match op.do:
        case do if do in ENTERING:
            if op.said not in (None, *ADDED):  # it existed, so it stays
                return [state]
            # Tasks that ended are forgotten after a while. A tick, or the end of a join, has one task for ever.
            is_gone = kind == "absent" or (kind in ("ended", "dead") and op.do not in ("periodic_fire", "join_prepare"))
            return [("waiting", op.queue, 0, op.due_ms, None)] if is_gone else []
        case "reserve":
            attempt, most = op.attempt or attempts + 1, min(attempts + 1 + op.unseen, op.most or NEVER)
            held = "held", queue, attempt, max(op.end_ms, until if kind == "held" else 0.0), op.lease
            return [held] if is_free and queue == op.queue and attempts < attempt <= most else []
        case "cancel":
            return [("ended", *state[1:])] if is_free or kind == "dead" else []
        case "expire":
            return [("dead", *state[1:])] if (kind, queue, attempts) == ("waiting", op.queue, 0) else []
        case "snapshot":  # the last expired lease ends in `dead`, and dead tasks are kept for a while
            place, seen = op.said[0] if op.said else (queue, "nowhere")
            return [state] if len(op.said) < 2 and queue == place and kind in _SEEN_AS.get(seen, "waiting held") else []
    if kind != "held" or (queue, lease) != (op.queue, op.lease):
        return []
    if op.do == "extend":
        return [("held", queue, attempts, max(until, op.end_ms), lease)]
    is_wrong = op.do == "fail" and op.said and not op.flag and (op.said == "dead") != (attempts >= op.most)
    if op.most and (is_wrong or 0 < until <= op.since_ms):
        return []
    ends = REPORTS[op.do].split() if op.said in (None, "ok") else ["dead" if op.said == "dead" else "waiting"]
    spent = {"release": attempts - 1, "move": 0}.get(op.do, attempts)
    return [(end, op.to or queue, spent, op.due_ms, None) for end in ends]


def _explained(op: Op, states: set[State]) -> tuple[str, str]:
    kinds = {state[0] for state in states}
    named = {"snapshot": "not where it was put", "move": "moved twice", **dict.fromkeys(ENTERING, "enqueued twice")}
    kind = "from nowhere" if kinds == {"absent"} else named.get(op.do, "two holders report success")
    if op.do == "snapshot" and len(op.said) != 1:
        kind = "in two places" if op.said else "lost"
    elif any(op.do in ("reserve", *REPORTS) and _after(replace(op, attempt=0, most=0), state) for state in states):
        is_late = op.do in REPORTS and not any(_after(replace(op, flag=True), state) for state in states)
        kind = "reported late" if is_late else "attempts miscounted"
    elif op.do == "reserve" and kinds != {"absent"}:
        here = "handed out early" if ("waiting", op.queue) in {state[:2] for state in states} else "in two places"
        kind = "two leases" if "held" in kinds else here if "waiting" in kinds else "back after its end"
    could = "the task could only be: " + " or ".join(sorted(" ".join(map(str, state[:4])) for state in states)[:3])
    return kind, f"{op.do} {op.queue} (lease {op.lease}) had the outcome {op.said!r} at {op.ended:.6f}, and {could}"


def with_lost_reserves(history: RecordedHistory, task: str) -> list[Op]:
    """Adds reserves without a reply that may have taken a task: those whose lease numbers a report names, as a keeper
    finds them, or the first one of the queue in which it is pending or dead at the end, which may be applied later."""
    ops = history.tasks[task]
    named = {op.lease for op in ops if op.lease is not None} - {op.lease for op in ops if op.do == "reserve"}
    left = {place for op in ops if op.do == "snapshot" for place, state in op.said if state in ("pending", "dead")}
    lost = sorted(history.lost_reserves, key=lambda one: one[0].began) if named or left else []
    more = [replace(op, lease=n) for op, count in lost for n in named if 0 <= (n or 0) - (op.lease or 0) < count]
    return [*ops, *more, *[replace(op, lease=None) for op, _ in lost if op.queue in left][:1]]
