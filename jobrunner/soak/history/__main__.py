"""Checks a history: ``python -m jobrunner.soak.history FOLDER``. Exit code: 0 correct, 1 violated, 2 not judged."""

import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate, chain, combinations_with_replacement
from pathlib import Path
from typing import Any

from jobrunner.soak.history.reader import ENTERING, NEVER, NotJudged, Op, RecordedHistory, read
from jobrunner.soak.history.task_states import violation, with_lost_reserves

Violation = tuple[str, str, str]  # its kind, the task or the queue, and what happened
Leases = dict[tuple[str, int | None], Any]  # by task and number
_LIMITS = ("max_inflight", "max_tokens", "interval_us"), ("key_inflight", "key_tokens", "key_interval_us")


def violations(history: RecordedHistory) -> Iterator[Violation]:
    """All violations: of single tasks, of leases and attempts, of the order in queues, of limits."""
    every = [(task, op) for task, ops in history.tasks.items() for op in ops]
    leases: Leases = {(task, op.lease): op for task, op in every if op.do == "reserve"}
    clock = [(-NEVER, -NEVER), *sorted((op.ended, op.now_ms) for op in leases.values())]
    lost = Counter(op.queue for op, _ in history.lost_reserves)
    for task, op in every:
        op.since_ms, op.unseen = clock[bisect_left(clock, (op.began, 0.0)) - 1][1], lost[op.queue]
        op.due_ms = float(op.due or 0) + (op.since_ms if str(op.due)[:1] == "+" else 0.0)
        if (taken := leases.get((task, op.lease))) and taken.began >= history.set_at[op.queue, "max_attempts"]:
            op.most = taken.most or NEVER  # at the time of a report as well
    judged = ((task, violation(with_lost_reserves(history, task))) for task in history.tasks)
    yield from ((found[0], task, found[1]) for task, found in judged if found)
    ends: Leases = dict(sorted(((task, op.lease or 0), op.end_ms) for task, op in every if op.said))  # the latest
    held: Leases = {}  # from its reply to what may have ended it
    for (task, lease), op in leases.items():
        others = (one.began for one in history.tasks[task] if one is not op and one.do != "extend"
                  and (one.lease == lease or (one.lease is None and one.began > op.began)))  # fmt: skip
        held[task, lease] = op.ended, max(op.ended, min([*others, op.began + (ends[task, lease] - op.now_ms) / 1000]))
    for task, op in history.refused:
        if (span := held.get((task, op.lease))) and span[0] <= op.began and op.ended < span[1]:
            yield "holder refused", task, f"{op.do} got {op.said!r} at {op.ended:.6f}, when lease {op.lease} held"
    yield from chain(_of_order(history), _of_rates(history, leases), _at_once(_spans(history, leases, held, ends)))


def _of_order(history: RecordedHistory) -> Iterator[Violation]:
    """Tasks that came earlier or have a higher priority go first: of tasks due at once, the first time."""
    queues = defaultdict[str, list[Any]](list)  # when a task left (server's clock, place); it; its enqueue; its end
    for task, ops in history.tasks.items():
        known = sorted(with_lost_reserves(history, task), key=lambda op: (op.do == "expire", op.began))
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
                # Others were in the queue when it was sent, or rank above it and were there when it was handed out.
                at = entered.began if low == high else first.began
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


def _of_rates(history: RecordedHistory, leases: Leases) -> Iterator[Violation]:
    """Tasks handed out in a span of server time: a full bucket plus its refill."""
    unpaid = {(task, op.lease) for task, ops in history.tasks.items() for op in ops if op.do == "release" and op.flag}
    times = defaultdict[Any, list[float]](list)
    for (task, lease), op in leases.items():
        for what, _, *rate in _limits_of(history, task, op) if (task, lease) not in unpaid else ():
            times[op.queue, what, *rate].append(op.now_ms)
    for (_, what, tokens, interval_us), taken in times.items():
        beyond = [n - tokens / interval_us * 1000 * at for n, at in enumerate(sorted(taken)) if tokens < NEVER]
        for more in (1 + now - before for now, before in zip(beyond, accumulate(beyond, min), strict=True)):
            if more > tokens + 0.01:
                yield "over the limit", what, f"handed out {more:.2f} more than its bucket of {tokens:g} got"


def _spans(history: RecordedHistory, leases: Leases, held: Leases, ends: Leases) -> Iterator[tuple[Any, ...]]:
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


def _at_once(spans: Iterator[tuple[Any, ...]]) -> Iterator[Violation]:
    changes = defaultdict[tuple[str, str, float], list[tuple[float, int]]](list)
    for kind, what, most, began, ended in spans:
        changes[kind, what, most] += (began, 1), (ended, -1)
    for (kind, what, most), some in changes.items():
        counts = zip(sorted(some), accumulate(change for _, change in sorted(some)), strict=True)
        yield from ((kind, what, f"{n} at {at:.6f}, and there may be {most:g}") for (at, _), n in counts if n > most)


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
