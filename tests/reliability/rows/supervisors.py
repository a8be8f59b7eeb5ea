"""Several processes under one supervisor that are replaced and killed: R3s."""

import math
import os
import signal
from contextlib import suppress

from tests.reliability.checker import judge
from tests.reliability.rows.workers import PREFETCH, SLOTS
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import Stage
from tests.reliability.supervised import Supervised
from tests.support.waiting import wait_for


@scenario("R3s", short={"tasks": 400, "rolls": 1, "kills": 1}, full={"tasks": 20_000, "rolls": 10, "kills": 5})
def rolled(
    stage: Stage, findings: Findings, tasks: int, rolls: int, kills: int, processes: int = 2, seconds: float = 0.15
) -> None:
    """Rolling restarts by SIGHUP and recycling after N tasks under a supervisor, then kill -9 during rolling restarts.

    Loss 0; by rolls and recycling duplicates 0, no attempt spent, never fewer workers than processes; by kills extra
    starts ≤ kills × (slots + prefetch); exit code 0.
    """
    portion = math.ceil(tasks / (rolls + kills))
    each = max(portion // (processes * 2), 1)
    with Supervised(stage, processes, concurrency=SLOTS, max_tasks=each, grace=10) as pool:
        wait_for(lambda: len(stage.client.workers()) == processes, timeout_s=60)
        seen = {processes}

        def look() -> None:
            seen.add(len(stage.client.workers()))
            if len(stage.acknowledged) - stage.ended() < 2 * SLOTS * processes:  # a slow start: all were done before
                stage.enqueue(SLOTS * processes, seconds=seconds)

        for roll in range(rolls):
            stage.enqueue(portion, seconds=seconds)
            pool.roll()
            pool.wait_rolled(roll + 1, look)
            stage.say(f"roll {roll + 1} of {rolls}, {stage.ended():,} of {tasks:,} done")
        stage.drain()
        starts = stage.ledger.entries("start")
        recycled, left_with = pool.logged("worker is due for recycling"), pool.left_with()

        for kill in range(kills):
            stage.enqueue(portion, seconds=seconds)
            pool.roll()
            _kill_one_that_works(stage, pool)
            pool.wait_rolled(rolls + kill + 1)
            stage.say(f"kill {kill + 1} of {kills}, {stage.ended():,} of {tasks:,} done")
        stage.drain()
        wait_for(lambda: len(pool.pids()) == processes, timeout_s=60)
        code = pool.stop()

    judge(stage, findings, more_starts=kills * (SLOTS + PREFETCH))
    findings.equals("extra starts by rolls and recycling", len(starts) - len({entry.task for entry in starts}), 0)
    findings.equals("attempts, with rolls and recycling", {entry.attempt for entry in starts}, {1})
    findings.at_least("fewest workers at a time", min(seen), processes)
    findings.equals("exit code", code, 0)
    findings.at_least("rolls", pool.logged("roll is complete"), rolls)
    findings.at_least("processes recycled", recycled, 1)
    findings.at_least("processes that left with tasks in hand", sum(held > 0 for held in left_with), rolls)
    findings.note("processes started in all", pool.logged("worker started"))


def _kill_one_that_works(stage: Stage, pool: Supervised) -> None:
    """kill -9 of one that has begun something since."""
    begun = {pid: stage.ledger.count("start", pid) for pid in pool.pids()}

    def killed() -> bool:
        for pid, count in begun.items():
            if stage.ledger.count("start", pid) > count:
                with suppress(ProcessLookupError):  # it left just now
                    os.kill(pid, signal.SIGKILL)
                    return True
        return False

    wait_for(killed, timeout_s=60)


ROWS = (rolled,)
