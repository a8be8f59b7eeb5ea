"""``jobrunner demo``: real work on two worker processes, one of which is killed, and a verdict on the outcome.

Steps:

1. a private server starts in a folder of its own, and a partner that fails now and then;
2. two workers start, one with threads and one with processes;
3. the work is enqueued: twelve imports, a fare for every route, the weather, a report;
4. one worker is killed with -9 while it holds tasks; another takes its place;
5. when all tasks have ended, everything is checked: that nothing was lost, and that the figures are right.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

from jobrunner import Client, TaskHandle, TaskState, configure
from jobs_example.demos.checks import Check
from jobs_example.demos.fleet import Fleet
from jobs_example.demos.jobs import verdict, watch
from jobs_example.demos.jobs.partner import Partner, troubles
from jobs_example.demos.jobs.state import DemoState, RunningTask
from jobs_example.demos.jobs.verdict import Ledger
from jobs_example.demos.jobs.workload import Plan, Workload
from jobs_example.demos.play import play
from jobs_example.demos.screen import Screen, opened
from jobs_example.jobs import FOLDER_VARIABLE, WORKER_VARIABLE
from jobs_example.office import report
from jobs_example.office.report import Headline

PATIENCE_S = 180.0
"""After this long the demo stops waiting; the checks then show what is missing."""

LOOK_S = 0.2

CONCURRENCY = {"threads": 4, "processes": 2}
"""Tasks at a time, by executor."""


def run_demo(
    *,
    folder: Path | None = None,
    seed: int = 2013,
    quick: bool = False,
    as_json: bool = False,
    out: TextIO | None = None,
    talk: TextIO | None = None,
) -> int:
    """Runs the whole demo; arguments and outcome are those of `play`.

    `quick` does less of the same kinds of work. The demo takes the place of this process's client, and closes it in
    the end.
    """

    def run(place: Path, stream: TextIO) -> list[Check]:
        return _run(place, Plan.quick() if quick else Plan.full(), seed, stream)

    return play(run, folder=folder, as_json=as_json, out=out, talk=talk)


def _run(place: Path, plan: Plan, seed: int, talk: TextIO) -> list[Check]:
    url, results = f"embedded://{place / 'server'}", place / "results"
    environment = {"JOBRUNNER_URL": url, FOLDER_VARIABLE: str(results)}
    with (
        opened(talk) as screen,
        configure(url=url) as client,
        Partner(seed) as partner,
        Fleet(environment, logs=place / "logs") as fleet,
    ):
        demo = Demo(client, fleet, screen, Workload(plan, results, partner.url))
        demo.run()
        planned = sum(len(troubles(seed, route)) for route in plan.routes if route not in plan.refused)
        return [
            *demo.wholeness(plan.refused),
            verdict.partner_failed(partner.calls, planned),
            *verdict.on_disk(results, fares=len(plan.routes) - len(plan.refused), refused=len(plan.refused)),
            *verdict.rightness(demo.headline()),
        ]


class Demo:
    """The run itself. Its duties, in order:

    1. starts the workers, and enqueues the work while they get ready;
    2. looks at the work again and again, and shows it;
    3. kills a worker that holds tasks, puts another in its place, and tells when its tasks are taken up again;
    4. waits until every task has ended, or the time limit.
    """

    def __init__(self, client: Client, fleet: Fleet, screen: Screen, workload: Workload) -> None:
        self._client = client
        self._fleet = fleet
        self._screen = screen
        self._workload = workload
        self._report: TaskHandle[Any] | None = None
        self._orphans: dict[str, int] = {}
        self._waited_for: set[str] = set()
        self._killed_at = 0.0
        self._began = time.monotonic()

    def run(self) -> None:
        """Enqueues the work and kills a worker; returns when all tasks have ended."""
        self._start("A", "threads")
        self._start("B", "processes")
        self._report = self._workload.enqueue()
        self._screen.say(f"{len(self._workload.accepted)} tasks are enqueued")
        while not self._is_over(state := self._look()):
            self._screen.show(state)
            if self._orphans:
                self._tell_who_goes_on(state)
            else:
                self._kill_one(state)
            time.sleep(LOOK_S)
        self._screen.show(state)

    def wholeness(self, refused: frozenset[str]) -> list[Check]:
        """The checks that nothing was lost."""
        ledger = Ledger(
            endings=tuple(self._workload.endings(self._client)),
            refused=refused,
            orphans=self._orphans,
            left=watch.left(self._client),
        )
        return verdict.wholeness(ledger)

    def headline(self) -> Headline:
        """The year's values in the report; those of an empty year while there is no report."""
        if self._report is None or self._report.record().state is not TaskState.SUCCEEDED:
            return report.headline({})
        found: Headline = self._report.result(timeout=0)
        return found

    def _start(self, name: str, executor: str) -> None:
        words = ("work", "jobs_example.jobs", "--executor", executor, "--concurrency", str(CONCURRENCY[executor]))
        worker = self._fleet.start(name, executor, *words, environment={WORKER_VARIABLE: name})
        self._screen.say(f"worker {name} ({executor}) starts as process {worker.pid}")

    def _look(self) -> DemoState:
        elapsed_s = time.monotonic() - self._began
        return watch.look(self._client, self._workload.accepted, self._fleet.workers, elapsed_s)

    def _is_over(self, state: DemoState) -> bool:
        if not any(worker.state == "alive" for worker in state.workers):
            self._screen.say("no worker is alive any more; their logs say why")
            return True
        carriers = self.headline()["latest_first"]
        if self._report is not None:
            self._workload.note_intervals(self._report.id, carriers)
        return (bool(carriers) and state.is_quiet) or state.elapsed_s > PATIENCE_S

    def _kill_one(self, state: DemoState) -> None:
        at_work = Counter(task.worker for task in state.running if task.is_under_way)
        victim = next((name for name, tasks in at_work.items() if tasks > 1), None)
        if victim is None:
            return
        killed = self._fleet.kill(victim)
        self._killed_at = time.monotonic()
        held = [task for task in self._look().running if task.worker == victim]
        names = ", ".join(task.what for task in held) or "nothing"
        self._screen.say(f"worker {victim} is killed (-9), and held: {names}")
        self._start(f"{victim}+", killed.kind)
        self._orphans = {task.id: task.attempt for task in held}  # none: another is killed at the next look
        self._waited_for = set(self._orphans)

    def _tell_who_goes_on(self, state: DemoState) -> None:
        after_s = time.monotonic() - self._killed_at
        for task in state.running:
            if task.id in self._waited_for and self._is_taken_up(task, state):
                self._waited_for.discard(task.id)
                self._screen.say(f"{task.what} goes on with worker {task.worker}, {after_s:.1f} s after the kill")

    def _is_taken_up(self, task: RunningTask, state: DemoState) -> bool:
        alive = {worker.name for worker in state.workers if worker.state == "alive"}
        return task.attempt > self._orphans[task.id] and task.worker in alive
