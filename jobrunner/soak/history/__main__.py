"""Checks a history: ``python -m jobrunner.soak.history FOLDER``. Exit code: 0 correct, 1 violated, 2 not judged."""

import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, chain, combinations_with_replacement
from pathlib import Path
from typing import Any

from jobrunner.soak.history.reader import ADDED, ENTERING, NEVER, NotJudged, Op, RecordedHistory, read

_MOST_ORDERS, _SEEN_AS = 20_000, {"pending": "held", "dead": "held dead", "nowhere": "absent ended dead"}
_REPORTS = {"commit": "ended", "release": "waiting", "move": "waiting", "fail": "waiting dead", "crash": "waiting dead"}
_LIMITS = ("max_inflight", "max_tokens", "interval_us"), ("key_inflight", "key_tokens", "key_interval_us")


def violations(history: RecordedHistory) -> Iterator[tuple[str, str, str]]:
    """All violations (kind, task or queue, why): of tasks, of leases and attempts, of order in queues, of limits."""
    _await_members(history)
    every = [(task, op) for task, ops in history.tasks.items() for op in ops]
    leases = {(task, op.lease): op for task, op in every if op.do == "reserve"}
    clock = [(-NEVER, -NEVER), *sorted((op.ended, op.now_ms) for op in leases.values())]
    lost = Counter(op.queue for op, _ in history.lost_reserves)
    for task, op in every:
        op.since_ms, op.unseen = clock[bisect_left(clock, (op.began, 0.0)) - 1][1], lost[op.queue]
        op.due_ms = float(op.due or 0) + (op.since_ms if str(op.due)[:1] == "+" else 0.0)
        if (taken := leases.get((task, op.lease))) and taken.began >= history.set_at[op.queue, "max_attempts"]:
            op.most = taken.most or NEVER  # at the time of a report as well
    judged = ((task, _violation(_with_lost_reserves(history, task))) for task in history.tasks)
    yield from ((found[0], task, found[1]) for task, found in judged if found)
    ends = dict[Any, float](sorted(((task, op.lease or 0), op.end_ms) for task, op in every if op.said))  # the latest
    held = dict[Any, tuple[float, float]]()  # from its reply to what may have ended it
    for (task, lease), op in leases.items():
        others = (one.began for one in history.tasks[task] if one is not op and one.do != "extend"
                  and (one.lease == lease or (one.lease is None and one.began > op.began)))  # fmt: skip
        held[task, lease] = op.ended, max(op.ended, min([*others, op.began + (ends[task, lease] - op.now_ms) / 1000]))
    for task, op in history.refused:
        if (span := held.get((task, op.lease))) and span[0] <= op.began and op.ended < span[1]:
            yield "holder refused", task, f"{op.do} got {op.said!r} at {op.ended:.6f}, when lease {op.lease} held"
    yield from chain(_of_order(history), _of_rates(history, leases))
    changes = defaultdict[Any, list[tuple[float, int]]](list)
    for kind, what, most, began, ended in _spans(history, leases, held, ends):
        changes[kind, what, most] += (began, 1), (ended, -1)
    for (kind, what, most), some in changes.items():
        counts = zip(sorted(some), accumulate(change for _, change in sorted(some)), strict=True)
        yield from ((kind, what, f"{n} at {at:.6f}, and there may be {most:g}") for (at, _), n in counts if n > most)


def _violation(ops: list[Op]) -> tuple[str, str] | None:
    """The kind and the description of what no order of the operations of one task explains; None if there is nothing.
    The search keeps every possible state (decision 43). An operation takes effect once between its call and its reply,
    or without one at any time after its call, or never; an expired lease returns its task at any time. A state: absent,
    waiting (also scheduled), held, ended or dead; queue; attempts begun; due time or lease's end (ms); lease number.
    """
    possible: set[tuple[tuple[Any, ...], frozenset[int]]] = {(("absent", "", 0, 0.0, None), frozenset())}
    replied = set[int]()
    for at, n in sorted((op.ended, n) for n, op in enumerate(ops) if op.ended < NEVER):
        pending = {other for other, op in enumerate(ops) if op.began <= at} - replied
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
            source = "fired early" if any(op.do == "join_prepare" for op in ops) else "from nowhere"
            return _explained(ops[n], {state for state, _ in before}, source)
        replied.add(n)
    return None


def _after(op: Op, state: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
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
    ends = _REPORTS[op.do].split() if op.said in (None, "ok") else ["dead" if op.said == "dead" else "waiting"]
    spent = {"release": attempts - 1, "move": 0}.get(op.do, attempts)
    return [(end, op.to or queue, spent, op.due_ms, None) for end in ends]


def _explained(op: Op, states: set[tuple[Any, ...]], source: str) -> tuple[str, str]:
    kinds = {state[0] for state in states}
    named = {"snapshot": "not where it was put", "move": "moved twice", **dict.fromkeys(ENTERING, "enqueued twice")}
    kind = source if kinds == {"absent"} else named.get(op.do, "two holders report success")
    if op.do == "snapshot" and len(op.said) != 1:
        kind = "in two places" if op.said else "lost"
    elif any(op.do in ("reserve", *_REPORTS) and _after(replace(op, attempt=0, most=0), state) for state in states):
        is_late = op.do in _REPORTS and not any(_after(replace(op, flag=True), state) for state in states)
        kind = "reported late" if is_late else "attempts miscounted"
    elif op.do == "reserve" and kinds != {"absent"}:
        here = "handed out early" if ("waiting", op.queue) in {state[:2] for state in states} else "in two places"
        kind = "two leases" if "held" in kinds else here if "waiting" in kinds else "back after its end"
    could = "the task could only be: " + " or ".join(sorted(" ".join(map(str, state[:4])) for state in states)[:3])
    return kind, f"{op.do} {op.queue} (lease {op.lease}) had the outcome {op.said!r} at {op.ended:.6f}, and {could}"


def _with_lost_reserves(history: RecordedHistory, task: str) -> list[Op]:
    """Adds reserves without a reply that may have taken a task: those whose lease numbers a report names, as a keeper
    finds them, or the first one of the queue in which it is pending or dead at the end, which may be applied later."""
    ops = history.tasks[task]
    named = {op.lease for op in ops if op.lease is not None} - {op.lease for op in ops if op.do == "reserve"}
    left = {place for op in ops if op.do == "snapshot" for place, state in op.said if state in ("pending", "dead")}
    lost = sorted(history.lost_reserves, key=lambda one: one[0].began) if named or left else []
    more = [replace(op, lease=n) for op, count in lost for n in named if 0 <= (n or 0) - (op.lease or 0) < count]
    return [*ops, *more, *[replace(op, lease=None) for op, _ in lost if op.queue in left][:1]]


def _await_members(history: RecordedHistory) -> None:
    """Lets a join fire when all its members may have ended as its rule needs it; for the rule `dead`, the first one."""
    members = defaultdict[str, set[str]](set)
    has_then = [*((task, op.options) for task, ops in history.tasks.items() for op in ops), *history.joins.items()]
    for name, join in ((name, join) for name, known in has_then for join in known.get("then", ())):
        members[join].add(name)

    def ended(name: str, rule: str) -> float:
        if name in history.joins and name not in history.tasks:  # a group within one
            return max((ended(one, rule.replace("dead", "complete")) for one in members[name]), default=0.0)
        commits = [op for op in history.tasks.get(name, ()) if op.do == "commit"]
        is_known = rule == "success" or any(op.said for op in commits)  # else it may have died at an unknown time
        return min((op.began for op in commits if rule != "dead"), default=NEVER) if is_known else 0.0

    for op, call in ((op, call) for task, call in history.joins.items() for op in history.tasks.get(task, ())):
        known = [ended(one, call["rule"]) for one in members[call["join"]]]
        if op.do == "join_prepare" and len(known) == call["total"]:
            op.began = max(op.began, (min if call["rule"] == "dead" else max)(known))


def _of_order(history: RecordedHistory) -> Iterator[tuple[str, str, str]]:
    """Tasks that came earlier or have a higher priority go first: of tasks due at once, the first time."""
    queues = defaultdict[str, list[Any]](list)  # when a task left (server's clock, place); it; its enqueue; its end
    for task, ops in history.tasks.items():
        known = sorted(_with_lost_reserves(history, task), key=lambda op: (op.do == "expire", op.began))
        entered, first, *_ = [*known, *ops]
        is_reserved = first.do == "reserve" and first.attempt == 1 and first.queue == entered.queue
        is_left = first.do == "snapshot" and first.said == [[entered.queue, "waiting"]] and not entered.unseen
        if entered.do == "enqueue" and entered.said == "new" and not entered.due and (is_reserved or is_left):
            queues[entered.queue].append(((first.now_ms, first.lease or 0), task, entered, first))
        if is_reserved and first.began > entered.ended + entered.options.get("expires_s", NEVER):
            yield "handed out late", task, f"at {first.began:.6f}, and it was to expire if it had not begun"
    for queue, judged in queues.items():
        judged.sort(key=lambda one: one[2].ended)
        is_fair = any(history.settings[queue].get(setting) for setting in ("fair", "key_inflight", "key_tokens"))
        priorities = () if is_fair else sorted({one[2].priority for one in judged})
        for low, high in combinations_with_replacement(priorities, 2):
            others = [one for one in judged if one[2].priority == high]
            last = list(accumulate((one[:2] for one in others), max))
            for turn, task, entered, first in (one for one in judged if one[2].priority == low):
                at = entered.began if low == high else first.began  # others of this priority, or above, were in it then
                place = bisect_left(others, at, key=lambda one: one[2].ended) - 1
                if place >= 0 and last[place][0] > turn:
                    yield "wrong order", task, f"handed out of {queue} while {last[place][1]} waited, the first"


def _limits_of(history: RecordedHistory, task: str, op: Op) -> Iterator[tuple[str, float, float, float]]:
    """Of a lease: its queue with all shards, then its partition; how many at once; how many tokens, one in how long."""
    keys = {one.options.get("key", "") for one in history.tasks[task] if one.do in ENTERING or "key" in one.options}
    for names, key in zip(_LIMITS, ("", *(f" of {key}" for key in keys if key and len(keys) == 1)), strict=False):
        if op.began >= max(history.set_at[op.queue, name] for name in names):
            most, tokens, interval = (float(history.settings[op.queue].get(name) or NEVER) for name in names)
            yield op.queue.partition("@")[0] + key, most, tokens, interval


def _of_rates(history: RecordedHistory, leases: dict[Any, Op]) -> Iterator[tuple[str, str, str]]:
    """Tasks handed out in a span of server time: a full bucket plus its refill."""
    unpaid = {(task, op.lease) for task, ops in history.tasks.items() for op in ops if op.do == "release" and op.flag}
    times = defaultdict[Any, list[float]](list)
    for (task, lease), op in leases.items():
        for what, _, *rate in _limits_of(history, task, op) if (task, lease) not in unpaid else ():
            times[op.queue, what, *rate].append(op.now_ms)
    for (_, what, tokens, interval_us), taken in times.items():
        beyond = [n - tokens / interval_us * 1000 * at for n, at in enumerate(sorted(taken)) if tokens < NEVER]
        mores = (1 + now - before for now, before in zip(beyond, accumulate(beyond, min), strict=True))
        yield from (("over the limit", what, f"handed out {more:.2f} more than its bucket of {tokens:g} got")
                    for more in mores if more > tokens + 0.01)  # fmt: skip


def _spans(history: RecordedHistory, leases: dict[Any, Op], held: dict[Any, Any], ends: Any) -> Iterator[Any]:
    """When something certainly was, as the lock of a unique task that is alive: kind, what, how many, from, until."""
    for (task, lease), op in leases.items():
        for what, most, *_ in _limits_of(history, task, op):
            yield "over the limit", what, most, *held[task, lease]
    for run in history.runs.values():
        key, at = (run["task"], run["lease"]), run["t"]
        yield "run twice", f"{key[0]} under lease {key[1]}", 1, at, NEVER
        if key not in leases or leases[key].began > at:
            yield "run without a lease", key[0], 0, at, NEVER
        else:  # beside another only when that lease expired
            until = leases[key].began + (ends[key] - leases[key].now_ms) / 1000
            yield "runs overlap", key[0], 1, at, max(at, min(run.get("ended", at), until))
    for ops in history.tasks.values():
        yield from (("lease number used twice", str(op.lease), 1, op.ended, NEVER) for op in ops if op.do == "reserve")
        enqueued = [op for op in ops if op.do in (*ENTERING, "cancel") and op.said != "exists"]
        if len(enqueued) == 1 and enqueued[0].said == "new" and "lock" in (has := enqueued[0].options):
            alive = max(op.began for op in ops if op.said and op.said != "exists" and op.said[0][-1] != "dead")
            begun = [op.began for op in ops if op.do == "reserve"] + [op.began for op, _ in history.lost_reserves]
            lasts = {"finished": alive, "started": min([alive, *begun]), "expired": NEVER}
            until = min(lasts[has["lasts"]], enqueued[0].began + min(has["ttl_ms"] / 1000, has.get("expires_s", NEVER)))
            yield "lock held twice", has["lock"], 1, enqueued[0].ended, max(enqueued[0].ended, until)


def main(words: list[str]) -> int:
    """Prints the verdict on the given folder."""
    try:
        found = list(violations(history := read(Path(*words))))
    except NotJudged as refused:
        print(f"not judged: {refused}\n{__doc__}", file=sys.stderr)
        return 2
    for kind, times in Counter(kind for kind, _, _ in found).items():
        print(f"{kind}: {times:,}", *[f"  {what}: {why}" for one, what, why in found if one == kind][:10], sep="\n")
    print(f"{len(history.tasks):,} tasks, {len(history.runs):,} attempts, {len(found):,} violations")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
