"""The lease keeper's work after the death of a worker: R34, R37, R38."""

import math
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from jobrunner.attempt import mark_of
from jobrunner.client.client import keys_of
from tests.acceptance.fleet import JOBS, WorkerProcess
from tests.acceptance.jobs_for_tests import Once
from tests.acceptance.ledger import Entry
from tests.reliability.checker import judge
from tests.reliability.jobs import Beats
from tests.reliability.poison import Poison
from tests.reliability.rows.poison import supervised
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import QUEUE, Stage
from tests.support.waiting import wait_for

KEEPALIVE_S = 2.0
_RUNS_S = 1.0
_BEATS_S = KEEPALIVE_S + 2
"""A child that lives on beats longer than its task may wait to begin elsewhere: a late start overlaps as well."""
_SHORT_S = 0.002
_CHILDREN = 4
_POISONS = ("exit", "segfault", "out of memory")
_TAKING = [JOBS, "tests.reliability.started_attempts"]
"""The modules of a worker whose ledger has an entry `taken` from right before each mark."""


@scenario(
    "R34", short={"kills": 10, "orphaned": 2, "median_s": 1.0}, full={"kills": 200, "orphaned": 40, "median_s": 0.2}
)
def survived_by_keepers(
    stage: Stage, findings: Findings, kills: int, orphaned: int, median_s: float = 1.0, running: int = 50
) -> None:
    """kill -9 of a worker with 50 running tasks and more in hand, while another worker runs; the lease keeper lives.

    Running tasks run again ≤ 0.2 s later (median; CI: 1 s), ≤ keepalive + 1 s always. A task that no thread of the
    worker had started costs no attempt, by a ledger entry from before the worker's own mark. Loss 0. For a worker with
    child processes (`orphaned` further kills), neither these nor the processes of its jobs run on when the task has
    begun elsewhere.
    """
    options: dict[str, Any] = {"concurrency": 2 * running, "modules": _TAKING}
    fleet = stage.fleet.start(2, **options)
    killed_at: dict[int, float] = {}
    unbegun = 0
    for kill in range(kills):
        round_began = stage.ledger.end
        stage.enqueue(4 * running, seconds=_SHORT_S)  # so that workers prefetch, as for short tasks
        stage.drain()
        before = [stage.ledger.count("start", worker.pid) for worker in fleet]
        stage.enqueue(2 * running, seconds=_RUNS_S)
        total = sum(before) + 2 * running
        wait_for(lambda total=total: sum(stage.ledger.count("start", w.pid) for w in fleet) >= total, timeout_s=60)
        begun = [stage.ledger.count("start", worker.pid) - one for worker, one in zip(fleet, before, strict=True)]
        victim = fleet.pop(begun.index(max(begun)))  # the other one has slots free for what it runs
        stage.enqueue(3 * running, seconds=_SHORT_S)
        unbegun += _stop_with_more_in_hand(stage, victim, round_began)
        killed_at[victim.pid] = time.monotonic()
        victim.kill()
        stage.drain()
        fleet.append(stage.fleet.start_one(**options))
        stage.say(f"kill {kill + 1} of {kills}")

    waits = sorted(_waits(stage, killed_at))
    findings.at_least("tasks in hand that had not begun when their worker was killed", unbegun, kills)
    findings.equals("attempts spent on what had not begun", _spent_unbegun(stage), 0)
    findings.note("tasks that ran when their worker was killed", len(waits))
    findings.at_most("s until half of them ran again", round(statistics.median(waits), 3), median_s)
    findings.note("s until 99 of 100 did", round(waits[math.ceil(len(waits) * 0.99) - 1], 3))
    findings.at_most("s until all did", round(waits[-1], 3), KEEPALIVE_S + 1)
    orphans = list(_waits(stage, _orphan(stage, orphaned, fleet)))
    findings.at_least("tasks that ran in children of a killed worker", len(orphans), orphaned)
    findings.at_most("s until all of these ran again", round(max(orphans, default=0), 3), KEEPALIVE_S + 1)
    findings.equals("entries of a child after its task had begun elsewhere", _overlaps(stage), 0)
    judge(stage, findings, more_starts=len(waits) + len(orphans))


def _starts(stage: Stage) -> dict[str, list[Entry]]:
    starts = defaultdict(list)
    for entry in stage.ledger.entries("start"):
        starts[entry.task].append(entry)
    return starts


def _waits(stage: Stage, killed_at: dict[int, float]) -> Iterator[float]:
    """Seconds from each kill to the next start of each task that ran at that time."""
    for starts in _starts(stage).values():
        for before, after in pairwise(starts):
            if before.pid in killed_at:
                yield after.at - killed_at[before.pid]


def _stop_with_more_in_hand(stage: Stage, worker: WorkerProcess, since: int) -> int:
    """Suspends the worker at an instant at which it holds tasks that no thread has started; returns their number.

    `since`: the end of the ledger before anything was enqueued that it holds. To read all of a long ledger here would
    keep the worker suspended for longer than its leases last.
    """
    keys = keys_of(stage.client).queue(QUEUE)
    ends = time.monotonic() + _RUNS_S / 2
    while True:
        worker.send(signal.SIGSTOP)
        leases = {task.decode(): number for task, number in stage.raw.zrange(keys.leases, 0, -1, withscores=True)}
        taken = stage.ledger.entries("taken", since)
        mark = next(mark_of(int(entry.note)) for entry in reversed(taken) if entry.pid == worker.pid)
        begun = {int(entry.note) for entry in taken}
        found = sum(mark_of(number) == mark and number not in begun for number in leases.values())
        if found or time.monotonic() > ends:
            return found
        worker.send(signal.SIGCONT)
        time.sleep(0.01)


def _spent_unbegun(stage: Stage) -> int:
    """Attempts that were counted, as a later one has a higher number, although no thread had started them."""
    taken = _taken(stage)
    return sum(
        (task, number) not in taken
        for task, starts in _starts(stage).items()
        for number in range(1, starts[-1].attempt)
    )  # fmt: skip


def _taken(stage: Stage) -> set[tuple[str, int]]:
    """The task and number of each attempt that an executor started (tests/reliability/started_attempts.py)."""
    return {(entry.task, entry.attempt) for entry in stage.ledger.entries("taken")}


def _orphan(stage: Stage, kills: int, others: list[WorkerProcess]) -> dict[int, float]:
    """Kills workers whose jobs run in child processes and leave an entry every few milliseconds while they live.

    Returns when each child lost its worker.
    """
    for worker in others:
        worker.stop()
        worker.wait()
    options: dict[str, Any] = {"concurrency": _CHILDREN, "executor": "processes", "modules": [JOBS, Beats.__module__]}
    fleet = stage.fleet.start(2 if kills else 0, **options)
    killed_at: dict[int, float] = {}
    for kill in range(kills):
        stage.enqueue(2 * _CHILDREN, seconds=1.0)  # a slot starts its process for its first task
        stage.drain()
        total = stage.ledger.count("start") + _CHILDREN
        beats = [Beats(seconds=_BEATS_S) for _ in range(_CHILDREN)]
        stage.acknowledged |= {task.id for task in Beats.enqueue_many(beats)}
        wait_for(lambda total=total: stage.ledger.count("start") >= total, timeout_s=60)
        running = {entry.pid for entry in stage.ledger.entries("start")[-_CHILDREN:]}
        ran = [running & set(worker.children()) for worker in fleet]
        busiest = ran.index(max(ran, key=len))  # the other one has slots free for what it runs
        victim = fleet.pop(busiest)
        killed_at |= dict.fromkeys(ran[busiest], time.monotonic())
        victim.kill()
        stage.drain()
        fleet.append(stage.fleet.start_one(**options))
        stage.say(f"kill {kill + 1} of {kills} with child processes")
    return killed_at


def _overlaps(stage: Stage) -> int:
    """The ledger is one file that all processes append to, so the order of its entries is that of the writes."""
    newest: dict[str, int] = {}
    late = 0
    for entry in stage.ledger.entries():
        if entry.event in ("start", "beat", "end"):
            late += entry.attempt < newest.get(entry.task, 0)
            newest[entry.task] = max(entry.attempt, newest.get(entry.task, 0))
    return late


@scenario("R38", short={"tasks": 3_000, "kills": 5}, full={"tasks": 12_000, "kills": 20})
def last_attempts(stage: Stage, findings: Findings, tasks: int, kills: int) -> None:
    """kill -9 of workers whose tasks of 2 ms may be tried once (max_attempts=1).

    Only tasks that a thread of the worker had started are dead, by a ledger entry from before the worker's own mark;
    loss 0, none runs twice.
    """
    fleet = stage.fleet.start(2, concurrency=10, modules=_TAKING)
    enqueued, share = set[str](), tasks // kills
    for kill in range(kills):
        ended = stage.ended()
        enqueued |= {task.id for task in Once.enqueue_many(Once(seconds=0.002) for _ in range(share))}
        wait_for(lambda ended=ended: stage.ended() > ended + share // 3, timeout_s=60)
        fleet.pop(0).kill()
        fleet.append(stage.fleet.start_one(concurrency=10, modules=_TAKING))
        stage.say(f"kill {kill + 1} of {kills}")
    stage.drain()

    buried = {task.id for task in stage.client.queue(QUEUE).tasks("dead", limit=1000)}
    begun, ended_ids = {task for task, _ in _taken(stage)}, set(stage.ledger.times("end"))
    findings.note("tasks", len(enqueued))
    findings.at_least("dead", len(buried), 1)
    findings.note("dead though they had ended, as their reports were under way", len(buried & ended_ids))
    findings.note("dead before their first statement", len(buried - set(stage.ledger.times("start"))))
    findings.equals("dead and never begun", len(buried - begun), 0)
    findings.equals("lost", len(enqueued - ended_ids - buried), 0)
    findings.equals("run twice", sum(times > 1 for times in stage.ledger.times("start").values()), 0)


@scenario("R37", short={"times": 3}, full={"times": 100})
def beside_a_poison(stage: Stage, findings: Findings, times: int, good: int = 9) -> None:
    """One task that ends its process among 9 good ones, in two supervised processes of ten threads or five children.

    It ends its process by os._exit, a segfault or SIGKILL (as the kernel does out of memory), in turn, `times` times
    for each executor. All good tasks finish: on threads with at most one attempt more, in child processes with none.
    The poison is dead after its attempts, and no other task is.
    """
    poisons, attempts, begun, unfinished = set[str](), dict[str, int](), set[int](), 0
    for executor, slots in (("threads", good + 1), ("processes", (good + 1) // 2)):
        highest = 0
        for time_ in range(times):
            way = _POISONS[time_ % len(_POISONS)]
            ids = stage.enqueue(good // 2, seconds=0.05)
            poison = Poison(way=way).enqueue()
            ids += stage.enqueue(good - good // 2, seconds=0.05)
            poisons.add(poison.id)
            with supervised(stage, f"--concurrency={slots}", "--executor", executor):
                stage.drain()
            attempts.update((entry.task, entry.attempt) for entry in stage.ledger.entries("end"))
            unfinished += sum(one not in attempts for one in ids)
            highest = max(highest, *(attempts.get(one, 0) for one in ids))
            begun.add(stage.ledger.times("poisoned")[poison.id])
            stage.say(f"{time_ + 1} of {times} in {executor}")
        findings.at_most(f"in {executor}: highest attempt of a good one", highest, 2 if executor == "threads" else 1)
    findings.equals("good ones that did not finish", unfinished, 0)
    findings.equals("attempts of each poison", sorted(begun), [3])
    dead = {task.decode() for task in stage.raw.zrange(keys_of(stage.client).queue(QUEUE).dead, 0, -1)}
    findings.equals("poison that is not dead, or good ones that are", len(dead ^ poisons), 0)


ROWS = (survived_by_keepers, beside_a_poison, last_attempts)
