"""Periodic jobs of a scenario, and the verdict on their ticks."""

from collections import defaultdict

from jobrunner.client.client import keys_of
from tests.reliability.scenario import Findings
from tests.reliability.stage import QUEUE, Stage

_TEXT = """
from datetime import timedelta
from jobrunner import PeriodicJob, job
from tests.acceptance.ledger import record

def declare(name):
    @job(queue="t", name=name, every=timedelta(seconds=1), catch_up=1000, overlap="allow", keepalive=2, max_attempts=9)
    class Ticking(PeriodicJob):
        def run(self):
            record("tick", self.task.id, self.task.attempt, note=name)

for n in range({count}):
    declare(f"tick{{n}}")
"""


def declare_ticks(stage: Stage, count: int) -> str:
    """The name of a module for workers with this many jobs, each due every second. Missed ticks are made up for."""
    return stage.fleet.module("ticking", _TEXT.format(count=count))


def end_ticks(stage: Stage, count: int, **options: object) -> None:
    """Ends all workers, switches the jobs off, and lets one more worker do what is left."""
    stage.stop_workers()
    keys = keys_of(stage.client).queue(QUEUE)
    for n in range(count):
        stage.raw.hset(keys.periodic(f"tick{n}"), "disabled", 1)
    stage.fleet.start_one(**options)
    stage.drain()


def judge_ticks(stage: Stage, findings: Findings, count: int) -> None:
    """Checks jobs whose workers have ended: no tick omitted between the first and the last, none made twice."""
    keys = keys_of(stage.client).queue(QUEUE)
    ticks: defaultdict[str, set[int]] = defaultdict(set)
    for entry in stage.ledger.entries("tick"):
        ticks[entry.note].add(_tick_s(entry.task))
    wanted = sum(max(one) - min(one) + 1 for one in ticks.values())
    found = sum(len(one) for one in ticks.values())
    made = sum(int(stage.raw.hget(keys.periodic(name), "fired") or 0) for name in ticks)
    findings.equals("jobs that fired", len(ticks), count)
    findings.equals("ticks omitted", wanted - found, 0)
    findings.equals("ticks made twice", made - found, 0)
    findings.note("ticks", found)


def _tick_s(task_id: str) -> int:
    return round((int(task_id[:16], 16) >> 16) / 1000)
