"""Checks a history: ``python -m jobrunner.soak.history FOLDER``. Exit code: 0 correct, 1 violated, 2 not judged."""

import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from jobrunner.soak.history.reader import NEVER, NotJudged, Op, RecordedHistory, read
from jobrunner.soak.history.task_states import REPORTS, violation, with_lost_reserves

Violation = tuple[str, str, str]  # its kind, the task or the queue, and what happened
Lease = tuple[str, int | None]  # its task and number
Span = tuple[float, float]
_LIMITS = ("max_inflight", "max_tokens", "interval_us")
Taken = tuple[tuple[float, int], str, Op, Op]  # when a task left its queue (server's clock, place); it; enqueue; end


def violations(history: RecordedHistory) -> Iterator[Violation]:
    """All violations: of single tasks, of leases and attempts, of the order in queues, of limits."""
    every = [(task, op) for task, ops in history.tasks.items() for op in ops]
    reserves = [(task, op) for task, op in every if op.do == "reserve"]
    clock = [(-NEVER, -NEVER), *sorted((op.ended, op.now_ms) for _, op in reserves)]
    lost = Counter(op.queue for op, _ in history.lost_reserves)
    for _, op in every:
        op.since_ms, op.unseen = clock[bisect_left(clock, (op.began, 0.0)) - 1][1], lost[op.queue]
        op.due_ms = float(op.due or 0) + (op.since_ms if str(op.due)[:1] == "+" else 0.0)
    judged = ((task, violation(with_lost_reserves(history, task))) for task in history.tasks)
    yield from ((found[0], task, found[1]) for task, found in judged if found)
    leases = {(task, op.lease): op for task, op in reserves}
    ends = dict(sorted((((task, op.lease), op.end_ms) for task, op in every), key=lambda one: one[1]))  # the latest
    held: dict[Lease, Span] = {}  # from its reply to what may have ended it
    for (task, lease), op in leases.items():
        others = (one.began for one in history.tasks[task] if one is not op and one.do != "extend"
                  and (one.lease == lease or (one.lease is None and one.began > op.began)))  # fmt: skip
        held[task, lease] = op.ended, max(op.ended, min([*others, op.began + (ends[task, lease] - op.now_ms) / 1000]))
    times = Counter(op.lease for _, op in reserves)
    for task, op in reserves:
        if times[op.lease] > 1:
            yield "lease number used twice", task, f"lease {op.lease} was handed out {times[op.lease]} times"
        if 0 < op.most < op.attempt:
            yield "attempts miscounted", task, f"it was handed out for attempt {op.attempt} of {op.most}"
    for task, op in history.refused:
        if (span := held.get((task, op.lease))) and span[0] <= op.began and op.ended < span[1]:
            yield "holder refused", task, f"{op.do} got {op.said!r} at {op.ended:.6f}, when lease {op.lease} held"
    for task, op in (one for one in every if one[1].do in REPORTS):
        if op.ended < NEVER and (task, op.lease) not in history.vague and 0 < ends[task, op.lease] <= op.since_ms:
            yield "reported late", task, f"{op.do} was taken {op.since_ms - ends[task, op.lease]:.0f} ms late, or more"
    yield from chain(_of_runs(history, leases, ends), _of_order(history), _of_limits(history, leases, held))


def _of_runs(history: RecordedHistory, leases: dict[Lease, Op], ends: dict[Lease, float]) -> Iterator[Violation]:
    """An attempt runs once, under a lease that was handed out, and beside another only when that lease expired."""
    by_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in sorted(history.runs.values(), key=lambda run: run["t"]):
        task, lease, taken = run["task"], run["lease"], leases.get((run["task"], run["lease"]))
        if taken is None or taken.began > run["t"]:
            yield "run without a lease", task, f"an attempt ran under lease {lease}, which nothing had handed out"
            continue
        for earlier in by_task[task]:
            if earlier["lease"] == lease:
                yield "run twice", task, f"two attempts ran under lease {lease}"
            elif run["t"] < earlier.get("ended", 0.0) and taken.now_ms < ends[task, earlier["lease"]]:
                yield "runs overlap", task, f"lease {earlier['lease']} had not run out when one began under {lease}"
        by_task[task].append(run)


def _of_order(history: RecordedHistory) -> Iterator[Violation]:
    """Tasks that came earlier or have a higher priority go first: of tasks due at once, the first time."""
    queues: dict[str, list[Taken]] = defaultdict(list)
    for task, ops in history.tasks.items():
        entered, first, *_ = [*sorted(with_lost_reserves(history, task), key=lambda op: op.began), *ops]
        is_reserved = first.do == "reserve" and first.attempt == 1 and first.queue == entered.queue
        is_left = first.do == "snapshot" and first.said == [(entered.queue, "waiting")] and not entered.unseen
        if entered.do == "enqueue" and entered.said == "new" and not entered.due and (is_reserved or is_left):
            queues[entered.queue].append(((first.now_ms, first.lease or 0), task, entered, first))
    queues = {name: sorted(tasks, key=lambda one: one[2].ended) for name, tasks in queues.items()
              if not any(history.settings[name].get(setting) for setting in ("fair", "key_inflight", "key_tokens"))}
    for queue, judged in queues.items():
        for priority in sorted({one[2].priority for one in judged}):
            own = [one for one in judged if one[2].priority == priority]
            above = [one for one in judged if one[2].priority > priority]
            # Other tasks were in the queue when it was sent, or rank above it and were there when it was handed out.
            for others, began in ((own, [one[2].began for one in own]), (above, [one[3].began for one in own])):
                last = list(accumulate((one[:2] for one in others), max))
                for (turn, task, *_), at in zip(own, began, strict=True):
                    place = bisect_left(others, at, key=lambda one: one[2].ended) - 1
                    if place >= 0 and last[place][0] > turn:
                        yield "wrong order", task, f"handed out of {queue} while {last[place][1]} waited, the first"


def _of_limits(history: RecordedHistory, leases: dict[Lease, Op], held: dict[Lease, Span]) -> Iterator[Violation]:
    """Tasks certainly held at once, and handed out in a span of server time: a full bucket plus its refill."""
    unpaid = {(task, op.lease) for task, ops in history.tasks.items() for op in ops if op.do == "release" and op.unpaid}
    for queue, settings in history.settings.items():
        since = max(history.set_at.get((queue, name), 0.0) for name in _LIMITS)
        taken = [key for key, op in leases.items() if op.queue == queue and op.began >= since]
        most, tokens, interval_us = (float(settings.get(name) or NEVER) for name in _LIMITS)
        changes = sorted(one for key in taken for one in zip(held[key], (1, -1), strict=True))
        for (at, _), count in zip(changes, accumulate(change for _, change in changes), strict=True):
            if count > most:
                yield "over the limit", queue, f"{count} tasks were held at {at:.6f}, and max_inflight is {most:g}"
        times = sorted(leases[key].now_ms for key in taken if tokens < NEVER and key not in unpaid)
        beyond = [n - tokens / interval_us * 1000 * at for n, at in enumerate(times)]
        for more in (1 + now - before for now, before in zip(beyond, accumulate(beyond, min), strict=True)):
            if more > tokens + 0.01:
                yield "over the limit", queue, f"handed out {more:.2f} more than its bucket of {tokens:g} got"


def check(folder: Path) -> tuple[RecordedHistory, list[Violation]]:
    """Reads and judges a history. Raises NotJudged."""
    return (history := read(folder)), list(violations(history))


def main(words: list[str]) -> int:
    """Prints the verdict on the given folder."""
    if len(words) != 1 or words[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        history, found = check(Path(words[0]))
    except NotJudged as refused:
        print(f"not judged: {refused}", file=sys.stderr)
        return 2
    print(f"{len(history.tasks):,} tasks, {len(history.runs):,} attempts")
    for kind, times in Counter(kind for kind, _, _ in found).items():
        print(f"{kind}: {times:,}", *[f"  {what}: {why}" for one, what, why in found if one == kind][:10], sep="\n")
    print(f"{len(found):,} violations" if found else "no violation")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
