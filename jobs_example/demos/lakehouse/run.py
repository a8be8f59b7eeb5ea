"""``jobrunner demo lakehouse``: a million orders into a Delta and an Iceberg table at once, and a verdict.

Steps:

1. a server starts in a folder of its own, ``jobrunner pipeline run lakehouse`` with its processes, and four shops, each
   a process that pushes its orders;
2. a Python worker, a Python of Spark's executor, the Spark driver, its Java and the server are killed (-9), each in the
   middle of its work; the server loses its last second with it;
3. when nothing is on its way any more, one query for each table is compared with what the shops pushed.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Self, TextIO

from jobrunner import Client, configure
from jobrunner.etl.progress import Progress
from jobrunner.spark.java import find_java
from jobs_example.demos.checks import Check
from jobs_example.demos.fleet import Fleet, WorkerProcess
from jobs_example.demos.lakehouse.kills import SERVER_AT, LakehouseKills
from jobs_example.demos.lakehouse.orders import SHOPS, truth_of
from jobs_example.demos.lakehouse.server import DemoServer
from jobs_example.demos.lakehouse.state import ROLES, DemoState
from jobs_example.demos.lakehouse.verdict import read_delta, read_iceberg, stored_in, verdict
from jobs_example.demos.pipelines import roles
from jobs_example.demos.pipelines.demo import SHORT_RUN, PipelineDemo
from jobs_example.demos.pipelines.kills import damage_done
from jobs_example.demos.pipelines.remains import remains
from jobs_example.demos.play import play
from jobs_example.demos.screen import Screen, opened
from jobs_example.lakehouse import lakehouse, settings_of

ITEMS, FEW = 1_000_000, 40_000
RUN = ("pipeline", "run", "lakehouse", "jobs_example.lakehouse", "--log-format", "json", *SHORT_RUN)
_ON_THIS_MACHINE = {"JOBRUNNER_SPARK_MASTER": "", "JOBRUNNER_SPARK_REMOTE": ""}


def run_demo(
    *,
    folder: Path | None = None,
    seed: int = 2013,
    quick: bool = False,
    items: int | None = None,
    as_json: bool = False,
    out: TextIO | None = None,
    talk: TextIO | None = None,
) -> int:
    """Runs the whole demo; arguments and outcome are those of `play`. Raises JavaMissing before it begins.

    `items` is the number of orders; `seed` says which of them are wrong. The demo takes the place of this process's
    client, and closes it in the end.
    """
    find_java(os.environ)  # the error is one line here, and would be in a log later
    number = items or (FEW if quick else ITEMS)
    return play(lambda place, stream: _run(place, number, seed, stream), folder=folder, as_json=as_json, out=out,
                talk=talk)  # fmt: skip


def _run(place: Path, items: int, seed: int, talk: TextIO) -> list[Check]:
    tables = settings_of(place / "tables")
    (place / "tables" / "iceberg").mkdir(parents=True)
    os.environ.update(tables)  # for the queries at the end
    with opened(talk) as screen, DemoServer(place / "server") as server, configure(url=server.url) as client:
        settings = {"JOBRUNNER_URL": server.url, **tables, **_ON_THIS_MACHINE}
        with Fleet(settings, logs=place / "logs") as fleet:
            supervisor = fleet.start("pipeline", "supervisor", *RUN)
            screen.say(f"jobrunner {shlex.join(RUN)} starts as process {supervisor.pid}")
            with Shops(items, seed, settings, place / "logs") as shops:
                demo = Demo(client, server, shops, supervisor, screen, items)
                demo.run()
        left = remains(client, lakehouse)
    screen.say("reading the tables")
    stored = {"Delta": stored_in(read_delta()), "Iceberg": stored_in(read_iceberg())}
    return [
        *damage_done(ROLES, demo.kills.done, demo.kills.replaced),
        *verdict(stored, truth_of(items, seed), left, demo.lost_bytes),
    ]


class Shops:
    """The processes that push the orders; leaving the `with` ends them."""

    def __init__(self, items: int, seed: int, settings: dict[str, str], logs: Path) -> None:
        self._logs = [logs / f"shop-{shop}.log" for shop in range(SHOPS)]
        self._commands = [
            [sys.executable, "-m", "jobs_example.demos.lakehouse.orders", *map(str, (shop, items, seed))]
            for shop in range(SHOPS)
        ]
        self._settings = {**os.environ, **settings}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for command, log in zip(self._commands, self._logs, strict=True):
            with log.open("wb") as output:
                self._processes.append(
                    subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=self._settings)  # noqa: S603
                )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.wait()

    @property
    def pushed(self) -> int:
        """Orders that the server has confirmed."""
        return sum(map(_last_number, self._logs))

    @property
    def is_alive(self) -> bool:
        """Whether one of them has something to push."""
        return any(process.poll() is None for process in self._processes)


def _last_number(log: Path) -> int:
    numbers = [line for line in log.read_text().splitlines() if line.isdigit()]
    return int(numbers[-1]) if numbers else 0


class Demo(PipelineDemo[DemoState, LakehouseKills]):
    """The run, in which the server is killed, too."""

    def __init__(
        self, client: Client, server: DemoServer, shops: Shops, supervisor: WorkerProcess, screen: Screen, items: int
    ) -> None:
        super().__init__(shops, supervisor, screen, LakehouseKills(screen.say), planned=items, noun="orders")
        self._progress = Progress(client, lakehouse.graph)
        self._server = server
        self.lost_bytes: int | None = None

    def look(self) -> DemoState:
        """The present state."""
        return DemoState(
            elapsed_s=self.elapsed_s,
            planned=self.planned,
            pushed=self.feed.pushed,
            pipeline=self._progress.look(),
            processes=roles.find_processes(self.supervisor.pid, python="lakehouse/orders", spark="lakehouse/checked"),
            killed=tuple(self.kills.done),
            lost_bytes=self.lost_bytes,
            batches=tuple(self.log.batches),
        )

    def act(self, moment: DemoState) -> None:
        """Kills the server, once."""
        if self.lost_bytes is not None or moment.stored < SERVER_AT * self.planned:
            return
        began = time.monotonic()
        self.lost_bytes = self._server.lose_the_last_second()
        took_s = time.monotonic() - began
        lost = f"its last {self.lost_bytes:,} bytes are gone"
        self.screen.say(f"the server is killed (-9), {lost}, and it is back after {took_s:.1f} s")
