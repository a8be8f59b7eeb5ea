"""Which queues a worker serves, and who does: its fetch loop, or a driver."""

from collections.abc import Iterable, Mapping

from jobrunner.broker.call import Call
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import Keys
from jobrunner.client.queue_settings import write_settings
from jobrunner.jobs.registry import all_jobs, all_stations, driven_queues, station_of
from jobrunner.worker.turns import read_weights


def default_queues() -> list[str]:
    """The queues of all jobs and stations that are declared, by name."""
    of_jobs = {job.options.queue for job in all_jobs()}
    return sorted(of_jobs.union((station.queue for station in all_stations()), driven_queues()))


def served_queues(given: Iterable[str] | Mapping[str, int] | None) -> dict[str, int]:
    """Queues by weight: those given, else the default ones. Raises InvalidName, InvalidOption."""
    if isinstance(given, Mapping):
        return read_weights([f"{name}:{weight}" for name, weight in given.items()])
    return read_weights(list(given or ()) or default_queues() or ["default"])


def configuring(keys: Keys, names: Iterable[str]) -> list[Call[None]]:
    """Calls that write the settings which the stations of these queues were declared with. Raises InvalidOption."""
    stations = [station for name in names if (station := station_of(name)) is not None and station.settings]
    return [
        queues.configure(keys.queue(station.queue), write_settings(station.settings, station.queue))
        for station in stations
    ]


def longest_poll_s(poll_s: float) -> float:
    """No longer than the shortest lease, so that a look at the queue tells of every lease before it ends."""
    declared = [*(job.options for job in all_jobs()), *(station.options for station in all_stations())]
    return min(poll_s, min((options.keepalive for options in declared if options.keepalive), default=poll_s))
