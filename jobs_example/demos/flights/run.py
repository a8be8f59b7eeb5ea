"""``jobrunner demo flights``: a year of flights through the pipeline, three kinds of kills, and a verdict.

Steps:

1. a private server starts in a folder of its own, and ``jobrunner pipeline run flights`` with its processes;
2. every flight of the year enters the pipeline, with some damaged rows among them;
3. a Python worker, a Python of Spark's executor and the Spark driver are killed (-9), each in the middle of its work;
4. when nothing is on its way any more, the tables and the server are checked: that each item left once, and that the
   figures are the published ones.
"""

import os
import shlex
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
from jobs_example.demos.flights.kills import FlightKills
from jobs_example.demos.flights.published import Notes
from jobs_example.demos.flights.state import ROLES, DemoState
from jobs_example.demos.flights.tables import read_tables
from jobs_example.demos.pipelines import roles
from jobs_example.demos.pipelines.demo import SHORT_RUN, PipelineDemo
from jobs_example.demos.pipelines.kills import damage_done
from jobs_example.demos.pipelines.remains import remains
from jobs_example.demos.play import play
from jobs_example.demos.screen import Screen, opened
from jobs_example.flights import FOLDER_VARIABLE, flights

RUN = ("pipeline", "run", "flights", "jobs_example.flights", "--log-format", "json", *SHORT_RUN)

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
        screen.say(f"jobrunner {shlex.join(RUN)} starts as process {supervisor.pid}")
        with Feed(flights, plan.month, damage, notes) as feed:
            demo = Demo(Progress(client, flights.graph), feed, supervisor, screen, plan)
            demo.run()
        stored, expected = read_tables(tables), notes.expected(of_the_year=plan.month is None)
        return [
            *damage_done(ROLES, demo.kills.done, demo.kills.replaced),
            *verdict.wholeness(stored, expected, remains(client, flights), damage.done),
            *verdict.rightness(stored, expected),
        ]


class Demo(PipelineDemo[DemoState, FlightKills]):
    """The run, which also tells of batches that were handed out again."""

    def __init__(self, progress: Progress, feed: Feed, supervisor: WorkerProcess, screen: Screen, plan: Plan) -> None:
        kills = FlightKills(screen.say, plan.driver_at)
        super().__init__(feed, supervisor, screen, kills, planned=plan.flights + DAMAGED_ROWS, noun="items")
        self._progress = progress
        self._told = 0

    def look(self) -> DemoState:
        """The present state."""
        return DemoState(
            elapsed_s=self.elapsed_s,
            planned=self.planned,
            pushed=self.feed.pushed,
            pipeline=self._progress.look(),
            processes=roles.find_processes(self.supervisor.pid, python="flights/raw", spark="flights/departed"),
            killed=tuple(self.kills.done),
            batches=tuple(self.log.batches),
        )

    def act(self, moment: DemoState) -> None:
        """Tells of batches that were handed out again."""
        for batch in moment.batches[self._told :]:
            if batch.epoch > 1:
                self.screen.say(
                    f"a batch of {batch.items} items at {batch.station}, handed out {batch.epoch} times, is done"
                )
        self._told = len(moment.batches)
