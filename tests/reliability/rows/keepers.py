"""A worker whose lease keeper is stopped or killed: R36."""

import itertools
import os
import signal
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from jobrunner.client.task_handle import TaskHandle
from tests.acceptance.fleet import WorkerProcess
from tests.acceptance.jobs_for_tests import HoldLong
from tests.reliability.checker import judge
from tests.reliability.repeating import repeating
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import QUEUE, Stage
from tests.support.waiting import wait_for

_LEASE_S = 8.0
"""Of HoldLong."""
_SHORT_S = 0.005
_HELD = 5
_GRACE_S = 3.0
_LOOK_S = 0.01


@scenario(
    "R36", short={"faults": 4, "tasks": 1_000, "replaced_s": 10.0, "beyond_s": 5.0},
    full={"faults": 40, "tasks": 1_000, "replaced_s": 2.0, "beyond_s": 0.5},
)  # fmt: skip
def faults_of_keepers(
    stage: Stage, findings: Findings, faults: int, tasks: int, replaced_s: float, beyond_s: float
) -> None:
    """SIGSTOP and kill of the lease keeper, and of its successor as that starts, during tasks longer than the lease.

    No lease is lost: another keeper runs ≤ 2 s later (short run: 10) and renews all leases. SIGTERM ends the worker
    within its grace; tasks that go on get all of it, and the worker ends ≤ 0.5 s after it (short run: 5). Both hold
    while every keeper is stopped.
    """
    worker = stage.fleet.start_one(concurrency=2 * _HELD, grace=_GRACE_S)
    go = stage.folder / "go"
    held = [HoldLong(path=str(go)).enqueue() for _ in range(_HELD)]
    stage.acknowledged.update(task.id for task in held)
    wait_for(lambda: stage.ledger.count("start") == _HELD)
    began = time.monotonic()
    took_s, renewed_s = [], []
    for kind in itertools.islice(itertools.cycle(("stop", "kill", "stop successor", "kill successor")), faults):
        stage.enqueue(tasks // faults, seconds=_SHORT_S)
        before = _ends(held)
        struck = _strike(worker, kind)
        at = time.monotonic()
        _wait_replaced(worker, struck)
        took_s.append(time.monotonic() - at)
        _wait_renewed(held, before)
        renewed_s.append(time.monotonic() - at)
        stage.say(f"{len(took_s)} of {faults}")
    wait_for(lambda: stage.ended() == len(stage.acknowledged) - _HELD, timeout_s=60)
    # Leases that nothing renewed would have ended by then.
    time.sleep(max(began + 1.5 * _LEASE_S - time.monotonic(), 0.0))  # the span that is tested
    findings.at_most("s until another keeper was there", round(max(took_s), 2), replaced_s)
    findings.at_most("s until it had renewed all", round(max(renewed_s), 2), _LEASE_S)
    findings.equals("tasks begun again", stage.ledger.count("start") - len(stage.acknowledged), 0)

    # The grace is for running tasks. Beyond it 0.02 s are usual, and 0.2 s more to give up on a keeper that is stopped.
    with _stopping_keepers(worker):
        late_s = round(_exit_s(worker) - _GRACE_S, 2)
    findings.at_most("s from the end of the grace to the exit, with tasks that go on", late_s, beyond_s)
    worker = stage.fleet.start_one(concurrency=2 * _HELD, grace=_GRACE_S)
    wait_for(lambda: stage.ledger.count("start", worker.pid) == _HELD)
    with _stopping_keepers(worker):
        go.touch()
        findings.at_most("s from SIGTERM to the exit, with tasks that end", _exit_s(worker), _GRACE_S)
    stage.fleet.start_one(concurrency=2 * _HELD)
    stage.drain()

    judge(stage, findings, more_starts=_HELD, again=_HELD)
    findings.equals("leases lost", stage.client.queue(QUEUE).totals().get("recovered", 0), 0)
    findings.equals("attempts", {entry.attempt for entry in stage.ledger.entries("start")}, {1})


def _strike(worker: WorkerProcess, kind: str) -> int:
    """Stops or kills the keeper; or kills it, and stops or kills the next one as soon as it is there. Returns which."""
    (keeper,) = wait_for(lambda: _keepers(worker))
    if kind.endswith("successor"):
        os.kill(keeper, signal.SIGKILL)
        (keeper,) = wait_for(lambda: [pid for pid in _keepers(worker) if pid != keeper])
    os.kill(keeper, signal.SIGSTOP if kind.startswith("stop") else signal.SIGKILL)
    return int(keeper)


def _keepers(worker: WorkerProcess) -> list[int]:
    """The processes that run the keeper's program. Before its exec a new keeper is still a fork of the worker."""
    found = []
    for child in worker.children():
        with suppress(OSError):
            if b"jobrunner.worker.lease_keeper.keeper_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def _wait_replaced(worker: WorkerProcess, keeper: int) -> None:
    wait_for(lambda: _keepers(worker) not in ([], [keeper]))


def _ends(held: list[TaskHandle[Any]]) -> list[float]:
    """When their leases end."""
    return [when.timestamp() for task in held if (when := task.record().when)]


def _wait_renewed(held: list[TaskHandle[Any]], ends: list[float]) -> None:
    wait_for(lambda: all(now > before for now, before in zip(_ends(held), ends, strict=True)))


def _stopping_keepers(worker: WorkerProcess) -> AbstractContextManager[None]:
    """Every keeper of this worker is stopped as soon as it is seen."""

    def stop() -> None:
        for keeper in _keepers(worker):
            with suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGSTOP)

    return repeating(stop, every_s=_LOOK_S)


def _exit_s(worker: WorkerProcess) -> float:
    asked_at = time.monotonic()
    worker.stop()
    worker.summary(timeout_s=_GRACE_S + 30)
    return round(time.monotonic() - asked_at, 2)


ROWS = (faults_of_keepers,)
