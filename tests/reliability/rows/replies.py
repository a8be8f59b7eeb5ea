"""Replies that are lost after their command was applied, for every operation: R10, and R10w for a whole worker."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from jobrunner import chain
from jobrunner.client.current import pinned
from jobrunner.client.queue import Queue
from jobrunner.errors import JobrunnerError, OutcomeUnknown, ReportUnknown
from tests.acceptance.fleet import JOBS
from tests.acceptance.jobs_for_tests import Always, Twice
from tests.reliability.checker import judge
from tests.reliability.jobs import Step, single, taken_job
from tests.reliability.recording import judge_history
from tests.reliability.rows.workers import SLOTS
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import Stage
from tests.reliability.ticks import declare_ticks, end_ticks, judge_ticks
from tests.support.waiting import wait_for

_KEEPALIVE_S = 120.0
_LONGEST_OPERATION_S = 0.05
_IN_VAIN_S = 20.0
_LONG_TASK_S = 2.5


class Losing:
    """Runs operations through a proxy that loses the reply to one call of a script each time."""

    def __init__(self, stage: Stage, findings: Findings, times: int) -> None:
        self.proxy = stage.proxy()
        self.way = stage.client_through(self.proxy)
        self.stage = stage
        self.times = times
        self._findings = findings

    def each(self, script: str, operations: Iterator[Callable[[], Any]]) -> list[Any]:
        """The results of the operations, or the types of their errors; one reply is lost in each."""
        said: list[Any] = []
        for operation in operations:
            lost = self.proxy.lost[script]
            self.proxy.lose_replies(script, times=lost + 1)
            try:
                said.append(operation())
            except JobrunnerError as error:
                said.append(type(error).__name__)
            self._findings.equals(f"{script}: replies lost", self.proxy.lost[script] - lost, 1)
        return said

    def queue(self, name: str, filled: int = 0) -> tuple[Queue, Queue]:
        """A queue of its own, through a direct connection and through the proxy."""
        direct = self.stage.client.queue(name)
        if filled:
            direct.push_many(range(filled))
        return direct, self.way.queue(name)


Lost = Callable[[Losing, Findings], None]


def _push(losing: Losing, findings: Findings) -> None:
    direct, way = losing.queue("push")
    losing.each("enqueue", (lambda n=n: way.push(n) for n in range(losing.times)))
    findings.equals("push: tasks", (direct.counts()["waiting"], direct.totals()["enqueued"]), (losing.times,) * 2)


def _unique(losing: Losing, findings: Findings) -> None:
    with pinned(losing.way):
        ids = losing.each("enqueue_unique", (lambda: single.enqueue().id for _ in range(losing.times)))
    findings.equals("unique: tasks", (losing.queue("unique")[0].counts()["waiting"], len(set(ids))), (1, 1))


def _taken(losing: Losing, findings: Findings) -> None:
    """A consumer has finished what was added, or what was moved, before the call is sent again."""
    direct, way = losing.queue("taken/from")
    onward = losing.queue("taken/to")[0]
    taken: Counter[str] = Counter()

    def take_all() -> None:
        for queue in (direct, onward):
            while held := queue.reserve(500):
                taken.update(lease.id for lease in held)
                queue.commit_many(held)

    def deliver(what: str, script: str, operations: Iterator[Callable[[], Any]], each: int = 1) -> None:
        taken.clear()
        losing.proxy.before_loss = take_all
        try:
            losing.each(script, operations)
            take_all()
        finally:
            losing.proxy.before_loss = lambda: None
        found = (len(taken), sum(taken.values()))
        expected = (each * losing.times,) * 2
        findings.equals(f"{what}, finished before it is repeated: delivered, and how often", found, expected)

    times, many = range(losing.times), 5
    deliver("push", "enqueue", (lambda n=n: way.push(n) for n in times))
    deliver("push under an own id", "enqueue", (lambda n=n: way.push(n, id=f"own-{n}") for n in times))
    deliver("push_many", "enqueue", (lambda: way.push_many(range(many)) for _ in times), many)
    with pinned(losing.way):
        deliver("enqueue", "enqueue", (lambda: taken_job.enqueue() for _ in times))
        calls = [taken_job.bind() for _ in range(many)]
        deliver("enqueue_many", "enqueue", (lambda: taken_job.enqueue_many(calls) for _ in times), many)
    direct.push_many(range(losing.times))
    deliver("move", "move", (lambda one=one: one.move("to") for one in _held(way, losing.times)))


def _reserve(losing: Losing, findings: Findings) -> None:
    direct, way = losing.queue("reserve", losing.times)
    keepalive = 1 + losing.times * _LONGEST_OPERATION_S  # no lease ends before the last one begins
    said = losing.each("reserve", (lambda: way.reserve(1, keepalive=keepalive) for _ in range(losing.times)))
    findings.equals("reserve: said", set(said), {OutcomeUnknown.__name__})
    time.sleep(keepalive)  # until the leases have ended that nothing renews
    findings.equals("reserve: back after the lease, as second attempts", _attempts(direct, losing), {2: losing.times})


def _pop(losing: Losing, findings: Findings) -> None:
    direct, way = losing.queue("pop", losing.times)
    said = losing.each("pop", (lambda: way.pop(1) for _ in range(losing.times)))
    findings.equals("pop: said", set(said), {OutcomeUnknown.__name__})
    findings.equals("pop: handed out at most once, so none is left", direct.counts()["waiting"], 0)


def _commit(losing: Losing, findings: Findings) -> None:
    direct, way = losing.queue("commit", losing.times)
    said = losing.each("commit", (lease.commit for lease in _held(way, losing.times)))
    findings.equals("commit: the repetition returns that it is gone", set(said), {False})
    findings.equals("commit: done", (direct.totals()["succeeded"], direct.counts()["pending"]), (losing.times, 0))


def _rollback(losing: Losing, findings: Findings) -> None:
    direct, way = losing.queue("rollback", losing.times)
    said = losing.each("fail", (lambda one=one: one.rollback(delay=0) for one in _held(way, losing.times)))
    findings.equals("rollback: said", set(said), {ReportUnknown.__name__})
    findings.equals("rollback: counted once", _attempts(direct, losing), {2: losing.times})


def _release(losing: Losing, findings: Findings) -> None:
    direct, way = losing.queue("release", losing.times)
    said = losing.each("release", (lease.release for lease in _held(way, losing.times)))
    findings.equals("release: said", set(said), {ReportUnknown.__name__})
    findings.equals("release: back, with no attempt spent", _attempts(direct, losing), {1: losing.times})


def _extend(losing: Losing, findings: Findings) -> None:
    _, way = losing.queue("extend", losing.times)
    held = _held(way, losing.times)
    before = [lease.deadline for lease in held]
    findings.equals("extend: said", set(losing.each("extend", (lease.extend for lease in held))), {True})
    later = sum(lease.deadline > deadline for lease, deadline in zip(held, before, strict=True))
    findings.equals("extend: ends later", later, losing.times)


def _move(losing: Losing, findings: Findings) -> None:
    direct, way = losing.queue("line/from", losing.times)
    said = losing.each("move", (lambda one=one: one.move("to") for one in _held(way, losing.times)))
    findings.equals("move: said", set(said), {ReportUnknown.__name__})
    there = losing.queue("line/to")[0].counts()["waiting"]
    findings.equals("move: there once", (there, direct.counts()["pending"]), (losing.times, 0))


def _cancel(losing: Losing, findings: Findings) -> None:
    direct, _ = losing.queue("cancel", losing.times)
    ids = direct.ids("waiting", limit=10_000)
    said = losing.each("cancel", (lambda one=one: losing.way.task(one, queue="cancel").cancel() for one in ids))
    findings.equals("cancel: said", set(said), {OutcomeUnknown.__name__})
    findings.equals("cancel: counted once", (direct.totals()["cancelled"], direct.counts()["waiting"]), (len(ids), 0))


def _configure(losing: Losing, findings: Findings) -> None:
    direct, way = losing.queue("configure", 1)
    losing.each("configure", (lambda n=n: way.configure(max_inflight=n) for n in range(losing.times)))
    findings.equals("configure: the last one counts", direct.settings().max_inflight, losing.times - 1)


def _held(way: Queue, count: int) -> list[Any]:
    held: list[Any] = []
    ends = time.monotonic() + _IN_VAIN_S
    while len(held) < count and time.monotonic() < ends:
        held += way.reserve(min(count - len(held), 500), keepalive=_KEEPALIVE_S)
    return held


def _attempts(direct: Queue, losing: Losing) -> dict[int, int]:
    """How many items are handed out as which attempt."""
    return dict(Counter(lease.attempts for lease in _held(direct, losing.times)))


_OPERATIONS: tuple[Lost, ...] = (
    _push, _taken, _unique, _reserve, _pop, _commit, _rollback, _release, _extend, _move, _cancel, _configure,
)  # fmt: skip


@scenario("R10", short={"times": 20}, full={"times": 1000})
def operations(stage: Stage, findings: Findings, times: int) -> None:
    """The reply to an operation is lost after it was applied, for each of eleven operations.

    A push makes one task, also when that is finished before the push is repeated. Reserved tasks come back after their
    lease. A report counts once, and its caller learns that the reply was lost. Extending twice is harmless.
    """
    each = Findings()
    losing = Losing(stage, each, times)
    for operation in _OPERATIONS:
        operation(losing, findings)
        stage.say(f"{operation.__name__[1:]}: {times:,} replies lost")
    findings.equals("operations without exactly one lost reply", len(each.broken), 0)
    findings.note("replies lost", dict(losing.proxy.lost))


@scenario("R10w", short={"tasks": 300, "times": 5}, full={"tasks": 20_000, "times": 100})
def worker(stage: Stage, findings: Findings, tasks: int, times: int) -> None:
    """A worker, its keeper and the leader lose replies to everything they send.

    Loss 0; no report counts twice; flows go on; no tick is doubled.
    """
    stage.record_history()
    proxy = stage.proxy()
    leader = ("periodic_fire", "take_leadership", "worker_announce")
    scripts = ("reserve", "commit", "fail", "extend", "join_arrive", *leader)
    for script in scripts:
        proxy.lose_replies(script, times=times, every=3)
    quick = {"leader_ttl": 1.0, "sweep": 0.5, "heartbeat": 0.5}
    options = {"modules": [JOBS, "tests.reliability.jobs", declare_ticks(stage, 2)], "concurrency": SLOTS, **quick}
    stage.fleet.start(2, url=proxy.url, **options)
    stage.enqueue(tasks, seconds=0.01)
    stage.enqueue(SLOTS * 2, seconds=_LONG_TASK_S)
    retried = [Twice().enqueue() for _ in range(tasks // 10)]
    dead = [Always().enqueue() for _ in range(tasks // 10)]
    flows = [chain(Step(), Step()).enqueue() for _ in range(tasks // 10)]
    stage.acknowledged.update(task.id for task in (*retried, *dead))
    results = {flow.result(timeout=120) for flow in flows}
    for script in leader:
        wait_for(lambda script=script: proxy.lost[script] >= times, timeout_s=60 + 3 * times)
    end_ticks(stage, 2, **options)

    judge(stage, findings, more_starts=2 * len(retried) + 2 * len(dead), dead=len(dead))
    findings.equals("results of flows", results, {2})
    judge_ticks(stage, findings, 2)
    findings.note("replies lost", dict(proxy.lost))
    findings.equals("scripts of which none was", [script for script in scripts if not proxy.lost[script]], [])
    judge_history(stage, findings)


ROWS = (operations, worker)
