"""A server that answers everything with an error for a while: R16."""

import time

from tests.reliability.checker import judge
from tests.reliability.rows.workers import PREFETCH, SLOTS
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import Stage

_WORKERS = 2
_AT_FIRST = 45
_ERRORS = {
    "READONLY": b"READONLY You can't write against a read only replica.",
    "LOADING": b"LOADING Redis is loading the dataset in memory",
    "MASTERDOWN": b"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "BUSY": b"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN": b"CLUSTERDOWN The cluster is down",
    "NOAUTH": b"NOAUTH Authentication required.",
}


@scenario("R16", short={"seconds": 1.5, "tasks": 600}, full={"seconds": 30.0, "tasks": 6_000})
def refusing(stage: Stage, findings: Findings, seconds: float, tasks: int) -> None:
    """Every command is answered with READONLY, LOADING, MASTERDOWN, BUSY, CLUSTERDOWN, NOAUTH.

    No worker exits; they retry ever more rarely, log it once in 10 s, and go on ≤ 5 s after the last refusal; loss 0.
    """
    proxy = stage.proxy()
    workers = stage.fleet.start(_WORKERS, url=proxy.url, concurrency=SLOTS)
    began, asked, back = time.monotonic(), {}, {}
    for name, reply in _ERRORS.items():
        stage.enqueue(tasks // len(_ERRORS), seconds=0.02)
        ended = stage.ended()
        proxy.refused, proxy.error = 0, reply
        since = time.monotonic()
        time.sleep(seconds)  # the fault: refusals of this length, which are counted
        proxy.error = b""
        asked[name] = round(proxy.refused / (time.monotonic() - since) / _WORKERS, 1)
        back[name] = _seconds_to_go_on(stage, ended)
        stage.drain()
        stage.say(f"{name} is over")
    said = [worker.log.read_text().count("loop failed") for worker in workers]

    judge(stage, findings, more_starts=len(_ERRORS) * _WORKERS * (SLOTS + PREFETCH))
    findings.equals("workers that exited", sum(not worker.alive for worker in workers), 0)
    findings.at_most("s until they went on", max(back.values()), 5)
    findings.at_most("round trips of a worker a second meanwhile", max(asked.values()), 5 + _AT_FIRST / seconds)
    findings.at_most("lines of a worker about it", max(said), 1 + (time.monotonic() - began) / 10)
    findings.note("round trips of a worker a second", asked)
    findings.note("s until they went on", back)


def _seconds_to_go_on(stage: Stage, ended: int) -> float:
    """Seconds until more tasks have ended than the workers held before."""
    began = time.monotonic()
    wanted = min(ended + _WORKERS * (SLOTS + PREFETCH) + 1, len(stage.acknowledged))
    while stage.ended() < wanted and time.monotonic() < began + 60:
        time.sleep(0.02)
    return round(time.monotonic() - began, 2)


ROWS = (refusing,)
