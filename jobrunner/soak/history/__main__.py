"""Checks a history: ``python -m jobrunner.soak.history FOLDER``. Exit code: 0 it is right, 1 not, 2 not judged."""

import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from jobrunner.soak.history.reader import ENTERING, NEVER, NotJudged, Op, RecordedHistory, read
from jobrunner.soak.history.task_states import REPORTS, violation, with_lost_reserves

Violation = tuple[str, str, str]  # its kind, the task or the queue, and what happened
Leases = dict[tuple[str, int | None], Op]  # by task and number
Ends = dict[tuple[str, int | None], float]
Taken = tuple[tuple[float, int], str, Op, Op]  # when a task left its queue (server's clock, place); it; enqueue; end


def violations(history: RecordedHistory) -> Iterator[Violation]:
    """All that is found: of tasks one by one, of attempts, of the order in queues, of limits."""
    judged = ((task, violation(with_lost_reserves(history, task))) for task in history.tasks)
    yield from ((found[0], task, found[1]) for task, found in judged if found)
    leases = {(task, op.lease): op for task, ops in history.tasks.items() for op in ops if op.do == "reserve"}
    known = (((task, op.lease), op.end_ms) for task, ops in history.tasks.items() for op in ops)
    ends: Ends = dict(sorted(known, key=lambda one: one[1]))  # the latest of each lease
    yield from chain(_of_runs(history, leases, ends), _of_order(history), _of_time(history, leases, ends))
    released = {(task, op.lease) for task, ops in history.tasks.items() for op in ops if op.do == "release"}
    for queue, settings in history.settings.items():
        names = [name for name in ("max_inflight", "max_tokens", "interval_us") if settings.get(name)]
        since = max((history.set_at.get((queue, name), 0.0) for name in names), default=0.0)
        taken = {key: op for key, op in leases.items() if op.queue == queue and op.began >= since}
        if "max_inflight" in names:
            yield from _of_inflight(history, queue, float(settings["max_inflight"]), taken, ends)
        if "max_tokens" in names:
            spent = {key: taken[key] for key in taken.keys() - released}  # one that had not begun paid nothing
            yield from _of_rate(queue, float(settings["max_tokens"]), float(settings["interval_us"]), spent)


def _of_runs(history: RecordedHistory, leases: Leases, ends: Ends) -> Iterator[Violation]:
    """An attempt runs once, under a lease that was handed out, and beside another one only when that lease ran out."""
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
    """First is handed out what was in the queue before the other was sent, or what has the higher priority. Judged are
    tasks that are due at once, when they are handed out for the first time."""
    queues, unsure = defaultdict(list), {lost.queue for lost, _ in history.lost_reserves}
    for task, ops in history.tasks.items():
        entered, first, *_ = [*sorted(with_lost_reserves(history, task), key=lambda op: op.began), *ops]
        is_reserved = first.do == "reserve" and first.attempt == 1 and first.queue == entered.queue
        is_left = first.do == "snapshot" and first.said == [(entered.queue, "waiting")] and entered.queue not in unsure
        if entered.do == "enqueue" and entered.said == "new" and not entered.due and (is_reserved or is_left):
            queues[entered.queue].append(((first.now_ms, first.lease or 0), task, entered, first))
    for queue, judged in queues.items():
        if not any(history.settings[queue].get(name) for name in ("fair", "key_inflight", "key_tokens")):
            for priority in sorted({one[2].priority for one in judged}):
                own = [one for one in judged if one[2].priority == priority]
                above = [one for one in judged if one[2].priority > priority]
                yield from _overtaken(queue, own, [(one, one[2].began) for one in own])
                yield from _overtaken(queue, above, [(one, one[3].began) for one in own])


def _of_time(history: RecordedHistory, leases: Leases, ends: Ends) -> Iterator[Violation]:
    """By what the server's clock had shown before: no task is handed out early, no report taken after its lease."""
    clock = [(-NEVER, -NEVER), *sorted((op.ended, op.now_ms) for op in leases.values())]
    for task, ops in history.tasks.items():
        entered = [op for op in ops if op.do in (*ENTERING, "move")]
        taken_ms = min((op.now_ms for op in ops if op.do == "reserve" and op.attempt == 1), default=NEVER)
        if [op.do for op in entered] == ["enqueue"] and isinstance(due := entered[0].due, str) and due:
            since_ms = clock[bisect_left(clock, (entered[0].began, 0.0)) - 1][1] if due[0] == "+" else 0.0
            if taken_ms < (due_ms := float(due) + since_ms) - 1:
                yield "handed out early", task, f"{due_ms - taken_ms:.0f} ms or more before it was due"
        for op in (op for op in ops if op.do in REPORTS and op.ended < NEVER and (task, op.lease) not in history.vague):
            if 0 < (end := ends[task, op.lease]) <= (now := clock[bisect_left(clock, (op.began, 0.0)) - 1][1]):
                yield "reported late", task, f"{op.do} was taken {now - end:.0f} ms or more after its lease ended"


def _overtaken(queue: str, others: list[Taken], judged: list[tuple[Taken, float]]) -> Iterator[Violation]:
    """Tasks that were handed out while one of `others` waited that had been in the queue at the instant beside them."""
    others = sorted(others, key=lambda one: one[2].ended)
    last = list(accumulate((one[:2] for one in others), max))
    for (turn, task, *_), instant in judged:
        place = bisect_left(others, instant, key=lambda one: one[2].ended) - 1
        if place >= 0 and last[place][0] > turn:
            yield "wrong order", task, f"handed out of {queue} while {last[place][1]} waited, which goes before it"


def _of_inflight(history: RecordedHistory, queue: str, most: float, taken: Leases, ends: Ends) -> Iterator[Violation]:
    """Certainly held is a task from the reply that handed it out to the first call that may have ended that, or to when
    its lease may have run out: no earlier than its length after the call."""
    changes = []
    for (task, lease), op in taken.items():
        others = (one.began for one in history.tasks[task] if one is not op and one.do != "extend"
                  and (one.lease == lease or (one.lease is None and one.began > op.began)))  # fmt: skip
        until = min([*others, op.began + (ends[task, lease] - op.now_ms) / 1000])
        changes += [(op.ended, 1), (until, -1)] if op.ended < until else []
    for (at, _), held in zip(ordered := sorted(changes), accumulate(change for _, change in ordered), strict=True):
        if held > most:
            yield "over the limit", queue, f"{held} tasks were held at {at:.6f}, and max_inflight is {most:g}"


def _of_rate(queue: str, tokens: float, interval_us: float, taken: Leases) -> Iterator[Violation]:
    """In no span of the server's time more tasks, without those released, than a full bucket and what flowed in."""
    beyond = [n - tokens / interval_us * 1000 * at for n, at in enumerate(sorted(op.now_ms for op in taken.values()))]
    for now, before in zip(beyond, accumulate(beyond, min), strict=True):
        if now + 1 - before > tokens + 0.01:
            yield "over the limit", queue, f"handed out {now + 1 - before:.2f} more than its bucket of {tokens:g} got"


def check(folder: Path) -> tuple[RecordedHistory, list[Violation]]:
    """Reads and judges a history. Raises NotJudged."""
    return (history := read(folder)), list(violations(history))


def main(words: list[str]) -> int:
    """Prints the verdict on the folder that is named."""
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
