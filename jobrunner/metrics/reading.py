"""What a scrape reads. Totals are those that scripts count in the step that ends a task: exact, whatever was killed."""

from collections.abc import Mapping
from dataclasses import dataclass

from jobrunner.broker.calls import figures
from jobrunner.broker.calls.server import ServerFacts
from jobrunner.client.client import Client
from jobrunner.client.records import PeriodicRecord, WorkerRecord
from jobrunner.inspector.measures import Times
from jobrunner.inspector.overview import QueueView, leader, queue_views, server_facts
from jobrunner.inspector.window import Sum, each, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Everything a scrape shows, as of one moment."""

    queues: list[QueueView]
    ended: Mapping[tuple[str, str, str], int]
    """By queue, type and outcome; of type '' is what is of no type, or not known by it."""
    measured: Mapping[tuple[str, str], Sum]
    """What workers counted and timed since the prefix exists, by queue and type."""
    round_trip: Times
    workers: list[WorkerRecord]
    leader: str | None
    periodics: list[PeriodicRecord]
    server: ServerFacts | None


def take(client: Client) -> Reading:
    """Reads it, in a handful of round trips. Raises ServerError."""
    names = client.queues()
    # Before the totals they are parts of: what ends in between is then of no type for one scrape, and never negative.
    typed = client.broker.run_many([figures.by_type(client.keys.queue(name)) for name in names]) if names else []
    workers = client.workers()
    queues = queue_views(client, workers)
    by_type = dict(zip(names, typed, strict=True))
    measured, round_trip = _measured(client.broker.run(figures.totals(client.keys)))
    return Reading(
        queues=queues,
        ended={key: by for one in queues for key, by in _ended(one, by_type.get(one.name, {})).items()},
        measured=measured,
        round_trip=round_trip,
        workers=workers,
        leader=leader(client),
        periodics=client.periodics(),
        server=server_facts(client),
    )


def _ended(queue: QueueView, typed: Mapping[str, str]) -> dict[tuple[str, str, str], int]:
    found: dict[tuple[str, str, str], int] = {}
    rest = {outcome: queue.totals.get(counter, 0) for counter, outcome in figures.OUTCOMES.items()}
    for field, value in typed.items():
        type_, _, outcome = field.rpartition(" ")
        if outcome in rest:
            found[(queue.name, type_, outcome)] = whole(value)
            rest[outcome] -= whole(value)
    return found | {(queue.name, "", outcome): by for outcome, by in rest.items() if by > 0}


def _measured(totals: Mapping[str, str]) -> tuple[dict[tuple[str, str], Sum], Times]:
    sums: dict[tuple[str, str], Sum] = {}
    for queue, type_, what, by in each(totals):
        sums.setdefault((queue, type_), Sum()).add(what, by)
    return sums, sums.pop(("-", "-"), Sum()).times("round_trip")
