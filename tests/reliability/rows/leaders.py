"""Leaders that are killed or suspended, clocks that are wrong: R25, R13. Each tick stays exactly one task."""

import signal
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from jobrunner.client.client import broker_of, keys_of
from tests.acceptance.fleet import JOBS, WorkerProcess
from tests.acceptance.jobs_for_tests import Work
from tests.reliability.checker import judge
from tests.reliability.rows.workers import SLOTS
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import QUEUE, Stage
from tests.reliability.tampering import stepped
from tests.reliability.ticks import declare_ticks, end_ticks, judge_ticks
from tests.support.waiting import wait_for

_TTL_S = 2.0
_DAY_S = 86_400
_LINE = "line"
_DELAY_S = 0.5


@scenario("R25", short={"schedules": 10, "faults": 3}, full={"schedules": 100, "faults": 50})
def leaderless(stage: Stage, findings: Findings, schedules: int, faults: int) -> None:
    """The leader is killed or suspended in turn, with schedules of 1 s.

    Each tick is exactly one task; another worker leads within the length of the lock (2 s) plus a second.
    """
    options = {"modules": [declare_ticks(stage, schedules)], "leader_ttl": _TTL_S, "concurrency": SLOTS}
    stage.fleet.start(3, **options)
    pauses = []
    for fault in range(faults):
        leader = wait_for(lambda: _leader(stage), timeout_s=20)
        begun = stage.ledger.count("tick")
        wait_for(lambda begun=begun: stage.ledger.count("tick") > begun, timeout_s=20)
        struck_at = time.monotonic()
        if fault % 2:
            leader.send(signal.SIGSTOP)
        else:
            leader.kill()
            stage.fleet.launch(**options)
        wait_for(lambda leader=leader: _leader(stage) not in (None, leader), timeout_s=30)
        pauses.append(time.monotonic() - struck_at)
        if fault % 2:
            leader.send(signal.SIGCONT)
        stage.say(f"leader {fault + 1} of {faults} is gone, {stage.ledger.count('tick'):,} ticks done")
    begun = stage.ledger.count("tick")
    wait_for(lambda: stage.ledger.count("tick") >= begun + schedules, timeout_s=30)
    end_ticks(stage, schedules, **options)

    judge_ticks(stage, findings, schedules)
    judge(stage, findings, more_starts=0)
    findings.at_most("s until another led", round(max(pauses), 3), _TTL_S + 1)


def _leader(stage: Stage) -> WorkerProcess | None:
    held = stage.raw.hget(keys_of(stage.client).leader, "worker")
    by_pid = {str(worker.pid): worker for worker in stage.fleet.workers if worker.alive}
    return by_pid.get(held.decode().split(".")[-2]) if held else None


@scenario("R13", short={"tasks": 40, "steps": 1}, full={"tasks": 2_000, "steps": 10})
def clocks(stage: Stage, findings: Findings, tasks: int, steps: int) -> None:
    """Clocks of workers a day ahead and a day behind, and a clock of the server that steps back 5 s.

    Delayed tasks begin by the server's clock; order is kept; no tick is doubled or omitted.
    """
    offset = stage.folder / "server-clock"
    _step(offset, 0)
    broker_of(stage.client).now_ms = lambda: stepped(offset)
    options = {"modules": [declare_ticks(stage, 3), JOBS], "leader_ttl": _TTL_S}
    for hours, own in ((_DAY_S, {"queues": [QUEUE]}), (-_DAY_S, {"queues": [_LINE], "concurrency": 1})):
        clock = stage.tamper(wall_clock=str(hours), server_clock=str(offset))
        stage.fleet.launch(clock, **options, **own).wait_ready()
    early_s, late_s = 0.0, 0.0
    line: list[str] = []
    for step in range(steps):
        delayed = dict(_delayed() for _ in range(tasks // steps // 4))
        wait_for(lambda delayed=delayed: _all_begun(stage, delayed), timeout_s=30)
        off_s = [entry.at - delayed[entry.task] for entry in stage.ledger.entries("start") if entry.task in delayed]
        early_s, late_s = max(early_s, -min(off_s)), max(late_s, max(off_s))
        stage.client.queue(_LINE).pause()
        line += _enqueue_in_line(stage, tasks // steps // 2)
        _step(offset, -5 * (step + 1))
        line += _enqueue_in_line(stage, tasks // steps // 2)
        stage.client.queue(_LINE).resume()
        ticks = stage.ledger.count("tick")
        wait_for(lambda ticks=ticks: stage.ledger.count("tick") >= ticks + 3, timeout_s=30)
        stage.acknowledged.update(delayed)
    end_ticks(stage, 3, environment=stage.tamper(server_clock=str(offset)), queues=[QUEUE, _LINE], **options)
    stage.drain(_LINE)

    judge_ticks(stage, findings, 3)
    judge(stage, findings, more_starts=0)
    begun = [entry.task for entry in stage.ledger.entries("start") if entry.task in set(line)]
    findings.equals("overtakers in line", sum(a > b for a, b in pairwise(map(line.index, begun))), 0)
    findings.at_most("s that a delayed task was early", round(max(early_s, 0.0), 3), 0.1)
    findings.at_most("s that a delayed task was late", round(late_s, 3), 1)


def _delayed() -> tuple[str, float]:
    """The id of a new task, and when it is due at the earliest."""
    asked_at = time.monotonic()
    return Work().enqueue(in_=_DELAY_S).id, asked_at + _DELAY_S


def _all_begun(stage: Stage, tasks: Iterable[str]) -> bool:
    begun = stage.ledger.times("start")
    return all(begun[task] for task in tasks)


def _enqueue_in_line(stage: Stage, count: int) -> list[str]:
    ids = [Work(n=n).enqueue(queue=_LINE).id for n in range(count)]
    stage.acknowledged.update(ids)
    return ids


def _step(offset: Path, seconds: float) -> None:
    """In one step: a reader finds either the old offset or the new one."""
    new = offset.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(offset)


ROWS = (leaderless, clocks)
