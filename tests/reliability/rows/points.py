"""Processes that die right before, or right after, a call of a script: one by one, for every script they call."""

from typing import Any

from jobrunner import chain, group
from jobrunner.broker.calls import leases
from jobrunner.client.client import broker_of, keys_of
from tests.acceptance.fleet import JOBS
from tests.acceptance.jobs_for_tests import Always, Twice
from tests.reliability.checker import judge
from tests.reliability.jobs import Adds, Bulky, Rests, Step, parts
from tests.reliability.rows.workers import PREFETCH, SLOTS
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import QUEUE, Stage
from tests.reliability.tampering import EXIT_CODE
from tests.reliability.ticks import declare_ticks, end_ticks, judge_ticks
from tests.support.waiting import wait_for

SCRIPTS = {
    "worker": ("commit", "configure", "fail", "fan_out", "join_arrive", "join_arrive_part",
               "join_collect", "join_pass_on", "leader_scan", "maintain", "move", "outbox_read",
               "periodic_define", "periodic_fire", "pipeline_shards", "progress", "queue_counts", "queue_forget",
               "register", "release", "reserve", "stats_add", "stats_sample", "take_leadership", "worker_announce"),
    "keeper": ("extend",),
}  # fmt: skip
"""The scripts that a worker with all kinds of tasks calls, with those of its leader and its lease keeper."""
POINTS = [
    f"{role}:{when}:{script}" for role, scripts in SCRIPTS.items() for script in scripts for when in ("before", "after")
]
_HANDFUL = (
    "worker:after:reserve worker:before:commit worker:after:commit keeper:after:extend worker:before:periodic_fire"
)
_LONGER_THAN_A_RENEWAL_S = 1.2
_TASKS = 6


@scenario("points", short={"points": _HANDFUL}, full={"points": " ".join(POINTS)})
def points(stage: Stage, findings: Findings, points: str) -> None:
    """A worker, or its lease keeper, dies right before or right after it calls a script, at one point after the other.

    Loss 0; reports count once, flows and pipelines go on to their ends, no tick is doubled or omitted.
    """
    options = life(stage)
    stage.client.queue(QUEUE).configure(max_attempts=0)  # each death spends one of what is in hand
    retried = dead = 0
    flows: list[Any] = []
    untold: list[Any] = []
    for number, point in enumerate(points.split()):
        flows.append(enqueue_of_all_kinds(stage, number))
        untold.append(enqueue_untold(stage))
        retried, dead = retried + 2, dead + 1
        findings.equals(f"died {point}", _die(stage, point, options), EXIT_CODE)
        stage.say(f"{point}: {number + 1} of {len(points.split())}")
    stage.fleet.start_one(**options)  # those that died may have led too briefly for a tick
    wait_for(lambda: stage.ledger.entries("tick"), timeout_s=30)
    # Before the queues are drained: on a busy machine the leader may enqueue the next step of a flow into an empty one.
    results = {tuple(flow.result(timeout=60)) for flow in flows}
    passed_on = {flow.result(timeout=60) for flow in untold}
    end_ticks(stage, 1, **options)
    for queue in options["queues"]:
        stage.drain(queue)

    judge_ticks(stage, findings, 1)
    more = len(flows) * (SLOTS + PREFETCH) + retried + 2 * dead
    judge(stage, findings, more_starts=more, dead=dead)
    findings.equals("results of flows", results, {(6, 6)})
    findings.equals("results of flows the leader passes on", passed_on, {2})
    collected = {entry.note for entry in stage.ledger.entries("collected")}
    findings.equals("items collected", collected, {f"{n}{half}!" for n in range(len(flows)) for half in "ab"})
    findings.equals("put off and done", len(stage.ledger.times("rested")), len(flows))


def life(stage: Stage) -> dict[str, Any]:
    """The options of a worker that does all kinds of work, and soon."""
    modules = [JOBS, "tests.reliability.jobs", declare_ticks(stage, 1)]
    queues = [QUEUE, *(f"parts/{queue}" for queue in ("whole", "halves", "checked"))]
    quick = {"leader_ttl": 1.0, "sweep": 0.3, "heartbeat": 0.5}
    return {"modules": modules, "queues": queues, "concurrency": SLOTS, **quick}


def enqueue_of_all_kinds(stage: Stage, number: int) -> Any:
    """Enqueues some of each; returns the handle of the flow."""
    stage.enqueue(_TASKS, seconds=0.01)
    stage.enqueue(2, seconds=_LONGER_THAN_A_RENEWAL_S)
    stage.acknowledged.update((Twice().enqueue().id, Always().enqueue().id))
    Rests(path=str(stage.folder / f"rested{number}")).enqueue()
    stage.client.queue("idle").push(number, in_=0.2)  # no worker serves it, so the leader maintains it
    parts.push("whole", str(number))
    # Three results are collected in slices, and taken in parts to the two steps behind the group.
    return chain(Step(), Step(), group(Bulky(), Bulky(), Bulky()), group(Adds(), Adds())).enqueue()


def enqueue_untold(stage: Stage) -> Any:
    """A flow whose first step has ended, as reported by a process that died before it passed the end on.

    It is in the outbox of a queue that no worker serves, where the leader alone finds it. Returns the flow's handle.
    """
    flow = chain(Step().using(queue="untold"), Step()).enqueue()
    broker, keys = broker_of(stage.client), keys_of(stage.client).queue("untold")
    (attempt,) = broker.run(leases.reserve(keys, 1, token=flow.id)).attempts
    broker.run(leases.commit(keys, [(attempt.id, attempt.token, 0, "succeeded", b"1", attempt.then, attempt.type)]))
    return flow


def _die(stage: Stage, point: str, options: dict[str, Any]) -> int:
    """Starts a worker of which one process dies there; returns that one's exit code."""
    environment, crashed = stage.crash_at(f"{point}:1")
    worker = stage.fleet.launch(environment, **options)
    if point.startswith("worker"):
        return worker.wait(60)
    wait_for(crashed.exists, timeout_s=60)
    worker.kill()
    return EXIT_CODE


ROWS = (points,)
