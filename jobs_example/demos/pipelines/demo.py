"""The run of a demo of a pipeline: polls it, shows it, and kills processes, until all items have left."""

import time
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from jobs_example.demos.fleet import WorkerProcess
from jobs_example.demos.pipelines.kills import Kills
from jobs_example.demos.pipelines.log import Log
from jobs_example.demos.screen import Screen, View

PATIENCE_S = 1800.0
"""After this long a demo stops waiting; its checks then show what is missing."""
LOOK_S = 0.5
SHORT_RUN = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")
"""Java's optimising compiler would cost more in these few minutes than it saves."""


class Feeding(Protocol):
    """Whatever pushes the items."""

    @property
    def pushed(self) -> int:
        """Items that the server has confirmed."""

    @property
    def is_alive(self) -> bool:
        """Whether it still has something to push."""


class Moment(View, Protocol):
    """The state of the pipeline at one moment."""

    @property
    def is_over(self) -> bool:
        """Whether every item has entered and none is on its way."""


M = TypeVar("M", bound=Moment)
K = TypeVar("K", bound=Kills)


class PipelineDemo(ABC, Generic[M, K]):
    """The run, until all `planned` items (`noun`) have left or the time limit. `supervisor` is the pipeline."""

    def __init__(
        self, feed: Feeding, supervisor: WorkerProcess, screen: Screen, kills: K, *, planned: int, noun: str
    ) -> None:
        self.feed = feed
        self.supervisor = supervisor
        self.screen = screen
        self.kills = kills
        self.planned = planned
        self.log = Log(supervisor.log)
        self._noun = noun
        self._began = time.monotonic()

    @abstractmethod
    def look(self) -> M:
        """The present state."""

    def act(self, moment: M) -> None:
        """Does what a demo does at each poll besides its kills."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._began

    def run(self) -> None:
        """Returns when nothing is on its way any more."""
        while not (moment := self._seen()).is_over and self._may_go_on(moment):
            self.screen.show(moment)
            self.kills.look(moment)
            self.act(moment)
            time.sleep(LOOK_S)
        self.screen.show(moment)

    def _seen(self) -> M:
        self.log.look()
        return self.look()

    def _may_go_on(self, moment: M) -> bool:
        if not self.supervisor.alive:
            self.screen.say(f"the pipeline has ended before its time: {self.log.last_error or 'its log says why'}")
        elif not self.feed.is_alive and self.feed.pushed < self.planned:
            self.screen.say(f"only {self.feed.pushed} of {self.planned} {self._noun} could be pushed")
        elif moment.elapsed_s > PATIENCE_S:
            self.screen.say(f"not done after {PATIENCE_S:.0f} s")
        else:
            return True
        return False
