"""Workers that are killed, restarted, suspended, blocked: R1, R3, R4, R5."""

import signal
import time

from tests.acceptance.jobs_for_tests import BlockLoop, HoldInterpreter, Slow, Tireless
from tests.acceptance.ledger import Entry
from tests.reliability.checker import judge
from tests.reliability.recording import judge_history
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import QUEUE, Stage
from tests.support.waiting import wait_for

KEEPALIVE_S = 2.0
SLOTS = 8
PREFETCH = 40


@scenario("R1", short={"tasks": 3_000, "kills": 20}, full={"tasks": 100_000, "kills": 200})
def killed(stage: Stage, findings: Findings, tasks: int, kills: int, workers: int = 4) -> None:
    """kill -9 of workers.

    Loss 0; extra starts ≤ kills × (slots + prefetch); tasks of a killed worker restart within its lease plus a second.
    """
    stage.record_history()
    running = stage.fleet.start(workers, concurrency=SLOTS)
    killed_at: dict[int, float] = {}
    for kill in range(kills):
        victim = running.pop(0)
        begun = stage.ledger.count("start", victim.pid)
        # A kill strikes when its victim begins something, and that is a suspect of the kill before: five attempts
        # could all end so, and the task would be dead by right.
        stage.enqueue(tasks // kills, seconds=0.03, job=Tireless)
        wait_for(lambda victim=victim, begun=begun: _has_begun(stage, victim.pid, begun), timeout_s=60)
        victim.kill()
        killed_at[victim.pid] = time.monotonic()
        running.append(stage.fleet.start_one(concurrency=SLOTS))
        stage.say(f"kill {kill + 1} of {kills}, {stage.ended():,} of {tasks:,} done")
    stage.drain()

    judge(stage, findings, more_starts=kills * (SLOTS + PREFETCH))
    findings.equals("kills", len(killed_at), kills)
    findings.at_most("s until what was orphaned ran again", _longest_orphaned_s(stage, killed_at), KEEPALIVE_S + 1)
    judge_history(stage, findings)


def _has_begun(stage: Stage, pid: int, begun: int) -> bool:
    """Whether a worker has begun something new, or nothing is left to begin: the others have done it, or it is dead.

    A broken build may have spent the attempts of all tasks before this worker had its turn.
    """
    return stage.ledger.count("start", pid) > begun or not stage.has_work()


def _longest_orphaned_s(stage: Stage, killed_at: dict[int, float]) -> float:
    """The longest time from a kill to the next start of a task that the killed worker had begun and not ended.

    One that another worker took and did not begin before it was killed as well counts for each of them.
    """
    starts = sorted(stage.ledger.entries("start"), key=lambda entry: entry.at)
    ends = {(entry.task, entry.attempt) for entry in stage.ledger.entries("end")}
    latest: dict[str, Entry] = {}
    longest = 0.0
    for entry in reversed(starts):
        if entry.pid in killed_at and (entry.task, entry.attempt) not in ends and entry.task in latest:
            heir = latest[entry.task]
            longest = max(longest, (heir.at - killed_at[entry.pid]) / (heir.attempt - entry.attempt))
        latest[entry.task] = entry
    return round(longest, 3)


@scenario("R3", short={"tasks": 3_000, "restarts": 3}, full={"tasks": 50_000, "restarts": 10})
def restarted(stage: Stage, findings: Findings, tasks: int, restarts: int, workers: int = 3, grace: float = 10) -> None:
    """Rolling restarts with SIGTERM.

    Loss 0, duplicates 0, exit ≤ grace + 2 s, unfinished tasks are released without spending an attempt.
    """
    running = stage.fleet.start(workers, concurrency=SLOTS, grace=grace)
    stage.enqueue(tasks, seconds=0.005)
    slowest = 0.0
    for restart in range(restarts * workers):
        stage.watch_to((restart + 0.5) / (restarts * workers + 1), tasks)
        leaver = running.pop(0).wait_ready() if restart >= workers else running.pop(0)
        running.append(stage.fleet.launch(concurrency=SLOTS, grace=grace))
        asked_at = time.monotonic()
        leaver.stop()
        leaver.summary(timeout_s=grace + 30)
        slowest = max(slowest, time.monotonic() - asked_at)
        stage.say(f"restart {restart + 1} of {restarts * workers}, {stage.ended():,} of {tasks:,} done")
    stage.drain()

    judge(stage, findings, more_starts=0)
    findings.at_most("s to exit", round(slowest, 3), grace + 2)
    findings.equals("attempts", {entry.attempt for entry in stage.ledger.entries("start")}, {1})


@scenario("R4", short={"tasks": 200, "pauses": 1}, full={"tasks": 10_000, "pauses": 20})
def suspended(stage: Stage, findings: Findings, tasks: int, pauses: int) -> None:
    """SIGSTOP of a worker for longer than its leases, then SIGCONT.

    The late report is refused; the newer attempt's result stays; loss 0.
    """
    stage.enqueue(tasks, seconds=0.005)
    late = []
    for _ in range(pauses):
        sleeper = stage.fleet.start_one(concurrency=1, queues=["slow"])
        task = Slow(seconds=0.3).enqueue(queue="slow")
        stage.acknowledged.add(task.id)
        wait_for(lambda task=task: stage.ledger.times("start")[task.id] == 1)
        sleeper.send(signal.SIGSTOP)
        heir = stage.fleet.start_one(concurrency=SLOTS, queues=["slow", "t"])
        late.append(task.result(timeout=30))
        sleeper.send(signal.SIGCONT)
        wait_for(lambda task=task: stage.ledger.times("end")[task.id] == 2)
        sleeper.stop()
        sleeper.summary()
        late.append(task.result(timeout=0))
        heir.stop()
        heir.summary()
    stage.fleet.start_one(concurrency=SLOTS)
    stage.drain()

    judge(stage, findings, more_starts=pauses)
    findings.equals("results by the newer attempt", late, [2, 2] * pauses)


@scenario("R5", short={"tasks": 4, "seconds": 2.0}, full={"tasks": 20, "seconds": 10.0})
def blocked(stage: Stage, findings: Findings, tasks: int, seconds: float) -> None:
    """Jobs that block the interpreter, or the event loop, for longer than the lease.

    No lease is lost: renewal depends neither on the job's thread nor on the event loop, nor on a thread that has read
    the reply to the reserve: of more tasks than slots some are handed out when a job has just begun to block.
    """
    for holder in (HoldInterpreter, BlockLoop):
        worker = stage.fleet.start_one(concurrency=2)
        stage.acknowledged.update(holder(seconds=seconds).enqueue().id for _ in range(tasks))
        stage.give_up_s = seconds + 60
        stage.drain()
        worker.stop()
        worker.summary()

    judge(stage, findings, more_starts=0)
    recovered = stage.client.queue(QUEUE).totals().get("recovered", 0)
    findings.equals("leases lost", recovered, 0)


ROWS = (killed, restarted, suspended, blocked)
