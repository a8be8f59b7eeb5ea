"""``jobrunner demo flights``: a year of flights through the pipeline, three kinds of kills, and a verdict.

Steps:

1. a private server starts in a folder of its own, and ``jobrunner pipeline run flights`` with its processes;
2. every flight of the year enters the pipeline, with some damaged rows among them;
3. a Python worker, a Python of Spark's executor and the Spark driver are killed (-9), each in the middle of its work;
4. when nothing is on its way any more, the tables and the server are checked: that each item left once, and that the
   figures are the published ones.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from jobrunner import configure
from jobrunner.etl.progress import Progress
from jobrunner.spark.java import find_java
from jobs_example.demos.checks import Check
from jobs_example.demos.fleet import Fleet, WorkerProcess
from jobs_example.demos.flights import verdict
from jobs_example.demos.flights.damage import DAMAGED_ROWS, Damage
from jobs_example.demos.flights.feed import Feed
from jobs_example.demos.flights.glance import ROLES, Glance
from jobs_example.demos.flights.kills import FlightKills
from jobs_example.demos.flights.published import Notes
from jobs_example.demos.flights.tables import read_tables
from jobs_example.demos.pipelines import crew
from jobs_example.demos.pipelines.kills import damage_done
from jobs_example.demos.pipelines.log import Log
from jobs_example.demos.pipelines.remains import remains
from jobs_example.demos.play import play
from jobs_example.demos.screen import Screen, opened
from jobs_example.flights import FOLDER_VARIABLE, flights

PATIENCE_S = 1800.0
"""After this long the demo stops waiting; the checks then show what is missing."""

LOOK_S = 0.5

RUN = ("pipeline", "run", "flights", "jobs_example.flights", "--log-format", "json")

_ON_THIS_MACHINE = {"JOBRUNNER_SPARK_MASTER": "", "JOBRUNNER_SPARK_REMOTE": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much goes through the pipeline; `driver_at` says how far it is when the driver is killed."""

    month: int | None
    flights: int
    driver_at: float


YEAR = Plan(month=None, flights=336_776, driver_at=0.4)
JANUARY = Plan(month=1, flights=27_004, driver_at=0.5)


def run_demo(
    *,
    folder: Path | None = None,
    seed: int = 2013,
    quick: bool = False,
    as_json: bool = False,
    out: TextIO | None = None,
    talk: TextIO | None = None,
) -> int:
    """Runs the whole demo; arguments and outcome are those of `play`. Raises JavaMissing before it begins.

    `quick` takes one month, `seed` says which rows are damaged and how. The demo takes the place of this process's
    client, and closes it in the end.
    """
    find_java(os.environ)  # the error is one line here, and would be in a log later

    def run(place: Path, stream: TextIO) -> list[Check]:
        return _run(place, JANUARY if quick else YEAR, seed, stream)

    return play(run, folder=folder, as_json=as_json, out=out, talk=talk)


def _run(place: Path, plan: Plan, seed: int, talk: TextIO) -> list[Check]:
    url, tables = f"embedded://{place / 'server'}", place / "tables"
    damage, notes = Damage(seed, among=plan.flights), Notes()
    with (
        opened(talk) as screen,
        configure(url=url) as client,
        Fleet({"JOBRUNNER_URL": url, FOLDER_VARIABLE: str(tables), **_ON_THIS_MACHINE}, logs=place / "logs") as fleet,
    ):
        supervisor = fleet.start("pipeline", "supervisor", *RUN)
        screen.say(f"jobrunner {' '.join(RUN)} starts as process {supervisor.pid}")
        with Feed(flights, plan.month, damage, notes) as feed:
            demo = Demo(Progress(client, flights.graph), feed, supervisor, screen, plan)
            demo.run()
        stored, expected = read_tables(tables), notes.expected(of_the_year=plan.month is None)
        return [
            *damage_done(ROLES, demo.kills.done, demo.kills.replaced),
            *verdict.wholeness(stored, expected, remains(client, flights), damage.done),
            *verdict.rightness(stored, expected),
        ]


class Demo:
    """The run: polls the pipeline, shows it, and kills processes, until all items have left or the time limit."""

    def __init__(self, progress: Progress, feed: Feed, supervisor: WorkerProcess, screen: Screen, plan: Plan) -> None:
        self._progress = progress
        self._feed = feed
        self._supervisor = supervisor
        self._screen = screen
        self._planned = plan.flights + DAMAGED_ROWS
        self._log = Log(supervisor.log)
        self._began = time.monotonic()
        self._told = 0
        self.kills = FlightKills(screen.say, plan.driver_at)

    def run(self) -> None:
        """Returns when nothing is on its way any more."""
        while not (glance := self._look()).is_over and self._may_go_on(glance):
            self._screen.show(glance)
            self.kills.look(glance)
            self._tell_what_came_again(glance)
            time.sleep(LOOK_S)
        self._screen.show(glance)

    def _look(self) -> Glance:
        self._log.look()
        return Glance(
            elapsed_s=time.monotonic() - self._began,
            planned=self._planned,
            pushed=self._feed.pushed,
            pipeline=self._progress.look(),
            crew=crew.muster(self._supervisor.pid, python="flights/raw", spark="flights/departed"),
            killed=tuple(self.kills.done),
            batches=tuple(self._log.batches),
        )

    def _may_go_on(self, glance: Glance) -> bool:
        if not self._supervisor.alive:
            self._screen.say(f"the pipeline has ended before its time: {self._log.last_error or 'its log says why'}")
        elif not self._feed.is_alive and self._feed.pushed < self._planned:
            self._screen.say(f"only {self._feed.pushed} of {self._planned} items could be pushed")
        elif glance.elapsed_s > PATIENCE_S:
            self._screen.say(f"not done after {PATIENCE_S:.0f} s")
        else:
            return True
        return False

    def _tell_what_came_again(self, glance: Glance) -> None:
        for batch in glance.batches[self._told :]:
            if batch.epoch > 1:
                self._screen.say(
                    f"a batch of {batch.items} items at {batch.station}, handed out {batch.epoch} times, is done"
                )
        self._told = len(glance.batches)
