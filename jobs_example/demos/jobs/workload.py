"""The work of the demo: its size, and a record of every accepted task."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from jobrunner import Client, TaskHandle
from jobrunner.errors import TaskGone
from jobs_example import dataset
from jobs_example.demos.jobs.partner import refused
from jobs_example.demos.jobs.verdict import Ending
from jobs_example.jobs import ImportMonth, MonthWeather, PunctualityReport, QuoteFare, interval_id, seats_by_maker

QUEUES = ("imports", "reports", "partner", "maths")
"""The queues of the work. The digest is periodic, so it is never enqueued and never ends; it has a queue of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much work there is."""

    routes: tuple[str, ...]
    refused: frozenset[str]
    """The routes that the partner will not quote."""
    pause: float
    """Seconds that an import rests after each day of data, so that there is time to see it and to kill it."""
    resamples: int
    """Draws for each confidence interval."""

    @classmethod
    def full(cls) -> "Plan":
        """Every route of the year."""
        return cls._of(dataset.flights(), pause=0.05, resamples=40)

    @classmethod
    def quick(cls) -> "Plan":
        """The routes of New Year's Day, and less arithmetic."""
        first_day = takewhile(lambda flight: flight.day == 1, dataset.flights(month=1))
        return cls._of(first_day, pause=0.03, resamples=20)

    @classmethod
    def _of(cls, flights: Iterable[dataset.Flight], *, pause: float, resamples: int) -> "Plan":
        routes = tuple(sorted({f"{flight.origin}-{flight.dest}" for flight in flights}))
        return cls(routes=routes, refused=frozenset(refused(routes)), pause=pause, resamples=resamples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A task whose enqueueing the server has confirmed; `what` describes it in a few words."""

    id: str
    queue: str
    what: str


class Workload:
    """Enqueues the work of a plan, and notes each task once the server has confirmed it."""

    def __init__(self, plan: Plan, folder: Path, partner_url: str) -> None:
        self._plan = plan
        self._folder = str(folder)
        self._partner = partner_url
        self.accepted: dict[str, Accepted] = {}

    def enqueue(self) -> TaskHandle[Any]:
        """Sends everything, one kind after the other; returns the task of the report."""
        months = [f"{dataset.YEAR}-{month:02}" for month in dataset.MONTHS]
        self._note("imports", [f"import {month}" for month in months], ImportMonth.enqueue_many(self._imports()))
        self._note("partner", [f"weather {month}" for month in months], MonthWeather.enqueue_many(self._weather()))
        self._note("partner", self._plan.routes, QuoteFare.enqueue_many(self._quotes()))
        self._note("reports", ["seats"], [seats_by_maker.enqueue(5)])
        report = PunctualityReport(folder=self._folder, resamples=self._plan.resamples).enqueue()
        self._note("reports", ["report"], [report])
        return report

    def note_intervals(self, report_id: str, carriers: Iterable[str]) -> None:
        """Notes the tasks that the report has enqueued, one for each carrier."""
        for carrier in carriers:
            task_id = interval_id(carrier, report_id)
            self.accepted[task_id] = Accepted(id=task_id, queue="maths", what=f"interval {carrier}")

    def endings(self, client: Client) -> list[Ending]:
        """The server's record of every accepted task."""
        return [_ending(client, task) for task in self.accepted.values()]

    def _imports(self) -> list[ImportMonth]:
        return [ImportMonth(month=month, folder=self._folder, pause=self._plan.pause) for month in dataset.MONTHS]

    def _weather(self) -> list[MonthWeather]:
        return [MonthWeather(month=month, partner=self._partner, folder=self._folder) for month in dataset.MONTHS]

    def _quotes(self) -> list[QuoteFare]:
        return [QuoteFare(route=route, partner=self._partner, folder=self._folder) for route in self._plan.routes]

    def _note(self, queue: str, whats: Iterable[str], tasks: Iterable[TaskHandle[Any]]) -> None:
        for what, task in zip(whats, tasks, strict=True):
            self.accepted[task.id] = Accepted(id=task.id, queue=queue, what=what)


def _ending(client: Client, task: Accepted) -> Ending:
    try:
        record = client.task(task.id, queue=task.queue).record()
    except TaskGone:
        return Ending(id=task.id, what=task.what, state="gone", attempts=0)
    return Ending(id=task.id, what=task.what, state=record.state, attempts=record.attempts)
