"""The jobs of a small airline office; run them with ``jobrunner work jobs_example.jobs``.

One job for each thing that background work is used for:

* `ImportMonth`: an import that shows how far it is;
* `PunctualityReport`: a report that waits for its input, and enqueues what follows from it;
* `BootstrapDelay`: pure arithmetic;
* `QuoteFare`: a third party that fails;
* `MonthWeather`: many calls at a time;
* `seats_by_maker`: a function as it is;
* `Digest`: something that happens every few seconds.

A task may run twice: a worker that is killed leaves its tasks to another. So every job here can be repeated:
it writes files that are whole or not there, under names that follow from its parameters.
"""

import asyncio
import os
import time
from calendar import monthrange
from collections import Counter
from dataclasses import asdict
from datetime import timedelta
from itertools import groupby
from pathlib import Path

from jobrunner import Backoff, Fail, Job, PeriodicJob, Snooze, job
from jobs_example import dataset, punctuality
from jobs_example.office import bootstrap, parts, report
from jobs_example.office.fetch import BadReply, get_json, get_json_async
from jobs_example.office.files import write_json, write_whole

FOLDER_VARIABLE = "JOBS_EXAMPLE_FOLDER"
"""The environment variable of a worker that names the folder of `Digest`."""

WORKER_VARIABLE = "JOBS_EXAMPLE_WORKER"
"""The environment variable of a worker that gives it a name, to be seen in the progress of its tasks."""

QUICK = timedelta(seconds=4)
"""The length of a lease, which workers renew: the tasks of a dead worker wait no longer than this."""

HOUR = timedelta(hours=1)
"""How long finished tasks stay readable here."""


@job(queue="imports", keepalive=QUICK, result_ttl=HOUR)
class ImportMonth(Job):
    """Counts the flights of one month, and shows how far it is.

    Killed in the middle, it has written nothing; run again, it puts the same figures in the same place.
    """

    month: int
    folder: str
    pause: float = 0.0
    """Seconds to rest after each day of data, so that a demonstration has something to look at."""

    def run(self) -> int:
        """Returns how many flights the month has."""
        days = monthrange(dataset.YEAR, self.month)[1]
        count = punctuality.Count()
        for day, flights in groupby(dataset.flights(self.month), key=lambda flight: flight.day):
            for flight in flights:
                count.add(flight)
            self.progress(day, days, note=signature(self.task.attempt))
            time.sleep(self.pause)
        parts.write_month(Path(self.folder), self.month, count.tallies)
        return punctuality.total(count.tallies).flights


@job(queue="reports", keepalive=QUICK, result_ttl=HOUR)
class PunctualityReport(Job):
    """Writes how punctual each carrier was, once every month is imported; then asks how sure that is.

    Until then it snoozes, which spends no attempt and keeps no worker. The tasks it enqueues get ids that
    follow from its own: were it killed after that and run again, the same ids would change nothing.
    """

    folder: str
    resamples: int = 100

    def run(self) -> report.Headline:
        """Returns the headline figures of the year; the carriers are in ``punctuality.csv``."""
        folder = Path(self.folder)
        missing = len(dataset.MONTHS) - len(parts.imported(folder))
        if missing:
            self.log.info("waiting for the import", months_missing=missing)
            raise Snooze(in_=0.5)
        carriers = parts.read_year(folder)
        write_whole(folder / "punctuality.csv", report.table(carriers))
        for carrier in carriers:
            interval = BootstrapDelay(carrier=carrier, folder=self.folder, resamples=self.resamples)
            interval.enqueue(id=interval_id(carrier, self.task.id))
        return report.headline(carriers)


@job(queue="maths", keepalive=QUICK, result_ttl=HOUR)
class BootstrapDelay(Job):
    """Works out how sure the mean arrival delay of a carrier is: nothing but arithmetic.

    Threads of one Python take turns at this; ``jobrunner work --executor processes`` uses every core.
    """

    carrier: str
    folder: str
    resamples: int = 100

    def run(self) -> dict[str, object]:
        """Returns the mean in minutes and the interval around it."""
        folder = Path(self.folder)
        delays = parts.read_year(folder)[self.carrier].arrivals
        means = []
        for mean in bootstrap.resampled_means(delays, self.resamples, seed=self.carrier):
            means.append(mean)
            self.progress(len(means), self.resamples, note=signature(self.task.attempt))
        found = asdict(bootstrap.interval(delays, means))
        write_json(folder / "intervals" / f"{self.carrier}.json", found)
        return found


@job(queue="partner", max_attempts=8, backoff=Backoff(base=0.2, factor=2, cap=2), keepalive=QUICK, result_ttl=HOUR)
class QuoteFare(Job):
    """Asks a partner for the fare of a route; the partner fails at times.

    What may pass (an error of the server, a hang-up, a late reply) is simply raised, and tried again a little
    later each time. What will not pass (the partner refuses the route) is failed for good: the task goes to
    the dead, where a person can look at it, correct the cause and send it back to work.
    """

    route: str
    partner: str
    folder: str

    def run(self) -> int:
        """Returns the fare in cents."""
        try:
            quote = get_json(f"{self.partner}/fares/{self.route}", timeout=1.0)
        except BadReply as error:
            if error.refused:
                raise Fail(str(error), retry=False) from error
            raise
        write_json(Path(self.folder) / "fares" / f"{self.route}.json", quote)
        return int(quote["fare_cents"])

    def on_dead(self, error: BaseException) -> None:
        """Leaves a note for the people who talk to the partner."""
        write_whole(Path(self.folder) / "refused" / f"{self.route}.txt", f"{error}\n")


@job(queue="partner", keepalive=QUICK, result_ttl=HOUR)
class MonthWeather(Job):
    """Fetches the weather of each day of a month at the three airports: some ninety calls, twenty at a time.

    `run` is a coroutine, so one worker's slot is enough for all of them.
    """

    month: int
    partner: str
    folder: str

    async def run(self) -> int:
        """Returns how many days of weather it wrote."""
        at_once = asyncio.Semaphore(20)

        async def fetch(origin: str, day: int) -> dict[str, object] | None:
            try:
                async with at_once:
                    return await get_json_async(self._url(origin, day), timeout=10)
            except BadReply as error:
                if error.refused:
                    return None  # a day without weather is no failure: the stations' year ends on 30 December
                raise

        days = range(1, monthrange(dataset.YEAR, self.month)[1] + 1)
        replies = await asyncio.gather(*(fetch(origin, day) for origin in dataset.ORIGINS for day in days))
        found = [reply for reply in replies if reply is not None]
        write_json(Path(self.folder) / "weather" / f"{dataset.YEAR}-{self.month:02}.json", found)
        return len(found)

    def _url(self, origin: str, day: int) -> str:
        return f"{self.partner}/weather/{origin}/{dataset.YEAR}-{self.month:02}-{day:02}"


@job(queue="reports", result_ttl=HOUR)
def seats_by_maker(top: int = 5) -> dict[str, int]:
    """Adds up the seats of the aircraft by their maker, most first: a function is a job as well.

    ``seats_by_maker(3)`` still calls it here and now; ``seats_by_maker.enqueue(3)`` leaves it to a worker.
    """
    seats: Counter[str] = Counter()
    for plane in dataset.planes():
        seats[plane.manufacturer] += plane.seats
    return dict(seats.most_common(top))


@job(queue="digest", every=timedelta(seconds=3))
class Digest(PeriodicJob):
    """Reports the state every few seconds, however many workers there are: each tick is one task.

    Nobody enqueues it, so it has no parameters: its folder comes from the environment of the worker, and its
    number from the metadata that all runs of a job share.
    """

    def run(self) -> str:
        """Returns the digest, and writes it to ``digest.txt`` if it has a folder; logs a line if not."""
        folder = os.environ.get(FOLDER_VARIABLE)
        if folder is None:
            return f"no digest: {FOLDER_VARIABLE} names no folder"
        number = self.metadata.increment("issue")
        text = f"Digest {number}: {report.state(Path(folder))}"
        write_whole(Path(folder) / "digest.txt", text + "\n")
        return text


def interval_id(carrier: str, report_id: str) -> str:
    """The id of the one task that works out the interval of a carrier for a report."""
    return f"interval-{carrier}-of-{report_id}"


def signature(attempt: int) -> str:
    """Worker and attempt: they distinguish a note of this attempt from one that an earlier attempt left."""
    return f"{os.environ.get(WORKER_VARIABLE, 'unnamed')}#{attempt}"
