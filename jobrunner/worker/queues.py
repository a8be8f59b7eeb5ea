"""Which queues a worker serves, and who does: its fetch loop, or a driver (`BatchDrivers`)."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.shards import WITHOUT, shard_counts
from jobrunner.broker.keys import Keys, split_queue
from jobrunner.broker.shards import shard_name, whole_queue
from jobrunner.client.client import Client, broker_of, keys_of, middleware_of
from jobrunner.client.queue import align_shards
from jobrunner.client.settings_hash import settings_named, write_settings
from jobrunner.clock import monotonic
from jobrunner.errors import DriverFailed, InvalidOption, JobrunnerError, ServerRefused
from jobrunner.formatting import describe
from jobrunner.jobs.batch_driver import BatchEnd, CurrentBatch, Driver
from jobrunner.jobs.declared_queues import declared_names, declared_queues, publishing
from jobrunner.jobs.registry import Definition, all_jobs, all_stations, driven_queues, driver_of, station_of
from jobrunner.logs import SafeLogger
from jobrunner.worker.shards import ServedShards

_log = SafeLogger("jobrunner.worker")
_drivers_log = SafeLogger("jobrunner.drivers")


def default_queues() -> list[str]:
    """The queues of all jobs and stations that are declared, by name."""
    of_jobs = {job.options.queue for job in all_jobs()}
    return sorted(of_jobs.union((station.queue for station in all_stations()), driven_queues()))


def refuse_text(given: object, option: str) -> None:
    """Raises InvalidOption for a text where names are expected, each letter of which would be one, and for what is no
    list of names at all."""
    if isinstance(given, (str, bytes)):
        raise InvalidOption(f"{option}={describe(given)}: give a list, [{describe(given)}]")
    if given is not None and not isinstance(given, Iterable):
        raise InvalidOption(f"{option}={describe(given)}: give a list of names")


def read_weights(given: Iterable[str], is_known: Callable[[str], bool] = lambda _: False) -> dict[str, int]:
    """Queues by weight from `NAME` or `NAME:WEIGHT` words. A name may hold colons, but what follows the last one must
    be a weight then, unless there is such a queue: `mail:heavy` is more often a slip than a name.

    Raises InvalidName, InvalidOption.
    """
    weights: dict[str, int] = {}
    for word in given:
        if "," in word:
            parts = [name for part in word.split(",") if (name := part.strip())] or ["NAME"]
            each = " ".join(f"-q {part}" for part in parts)
            raise InvalidOption(f"queue {word!r}: name each queue by itself: {each}, or queues={parts!r}")
        name, colon, weight = word.rpartition(":")
        if not colon:
            name, weight = word, "1"
        elif not (weight.isdecimal() and weight.isascii()):
            split_queue(word)
            if not is_known(word):
                raise InvalidOption(
                    f"queue {word!r}: {weight!r} is not a weight; write {name}:3, a weight from 1 to 1000, or {word}:1 "
                    "for a queue of that whole name"
                )
            name, weight = word, "1"
        split_queue(name)
        if not 1 <= int(weight[:9]) <= 1000:
            raise InvalidOption(f"queue {word!r}: give a weight from 1 to 1000")
        weights[name] = int(weight)
    return weights


def served_queues(given: Iterable[str] | Mapping[str, int] | None, client: Client) -> dict[str, int]:
    """Queues by weight: those given, else the default ones. Raises InvalidName, InvalidOption, ServerError."""
    if isinstance(given, Mapping):
        return read_weights(f"{name}:{weight}" for name, weight in given.items())
    if words := list(given or ()):
        return read_weights(words, lambda name: not unknown_queues([name], client))
    return dict.fromkeys(default_queues() or ["default"], 1)


def unknown_queues(names: Iterable[str], client: Client) -> list[str]:
    """The queues that belong to no declared job or station and were never used on the server. Raises ServerError."""
    declared = {*default_queues(), *declared_names(), "default"}
    doubtful = [name for name in names if name not in declared]
    if not doubtful:
        return []
    used = broker_of(client).run(queues.are_registered(keys_of(client), doubtful))
    return [name for name, is_used in zip(doubtful, used, strict=True) if not is_used]


def warn_of_unknown(names: Iterable[str], client: Client) -> None:
    """Logs a warning for each queue that may be a slip of the pen, with the nearest known one. It is not refused: any
    job may be enqueued into any queue, so its first task may come later. Raises ServerError."""
    try:
        unknown = unknown_queues(names, client)
        registered = broker_of(client).run(queues.some_registered(keys_of(client))) if unknown else ()
        known = sorted({*default_queues(), *declared_names(), *registered} if unknown else ())
    except ServerRefused as error:  # this user may not read the registry
        _log.warning("unknown queues cannot be found: the registry is not readable", error=str(error))
        return
    from difflib import get_close_matches  # most workers know their queues

    for name in unknown:
        near = get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else "it is served all the same"
        _log.warning("no declared job or station has this queue, and nothing was ever enqueued there",
                     queue=name, hint=hint)  # fmt: skip


def log_declared() -> None:
    """Logs which jobs, stations and schedules the modules of a worker declare."""
    jobs = sorted(all_jobs(), key=lambda definition: definition.name)
    stations = sorted(f"{station.name} ({station.queue})" for station in all_stations())
    schedules = [f"{job.name}: {job.periodic.schedule.describe()}" for job in jobs if job.periodic is not None]
    _log.info("jobs loaded", jobs=[job.name for job in jobs], **({"stations": stations} if stations else {}),
              queues=default_queues(), schedules=schedules)  # fmt: skip


def check_middleware(names: Iterable[str], client: Client) -> None:
    """Raises MiddlewareError when the middleware of the client cannot be around a declared job or station of these
    queues."""
    if (middleware := middleware_of(client)) is None:
        return
    served = set(names)
    declared: list[Definition] = [job for job in all_jobs() if job.options.queue in served]
    declared += [station for station in all_stations() if station.queue in served]
    middleware.check((f"{one.kind} {one.name!r}", one.is_async) for one in declared)


def refuse_main(names: Iterable[str]) -> None:
    """Raises InvalidOption when a job or station of these queues is declared by the program itself, which the child
    processes of an executor do not import."""
    served = set(names)
    declared: list[Definition] = [job for job in all_jobs() if job.options.queue in served]
    declared += [station for station in all_stations() if station.queue in served]
    for found in declared:
        if found.origin.startswith("__main__:"):
            raise InvalidOption(
                f"executor='processes': {found.kind} {found.name!r} is declared in __main__, the program itself, which "
                "child processes do not import; declare it in a module that the program imports"
            )


def configuring(keys: Keys, names: Iterable[str]) -> list[Call[None]]:
    """Calls that write the settings which the stations of these queues were declared with. Raises InvalidOption."""
    stations = [station for name in names if (station := station_of(name)) is not None and station.settings]
    return [
        queues.configure(keys.queue(station.queue), write_settings(station.settings, station.queue))
        for station in stations
    ]


def align_stations(client: Client, names: Iterable[str]) -> None:
    """Gives the shards of these queues the settings of their stations, where their pipeline has partitions. A queue
    that is refused is logged and does not keep the worker from starting. Raises ServerError."""
    keys, of_pipelines = keys_of(client), [name for name in names if "/" in name]
    found = broker_of(client).run_many([shard_counts(keys.queue(name)) for name in of_pipelines])
    for name, counts in zip(of_pipelines, found, strict=True):
        if counts.served > 1:
            _align(client, name)


def _align(client: Client, name: str, **more: object) -> None:
    try:
        align_shards(client.queue(name))
    except (JobrunnerError, InvalidOption) as error:
        _log.warning("declared settings do not fit a queue with partitions", queue=name, error=str(error), **more)


def caps_of(served: Iterable[str], given: Mapping[str, int]) -> dict[str, int]:
    """How many tasks this worker holds of single queues: those `given` to it, else as declared (`max_per_worker`).
    Raises InvalidOption for a queue that its fetch loop does not serve."""
    names = list(served)
    if unserved := [name for name in given if name not in names]:
        raise InvalidOption(
            f"max_per_queue names {unserved[0]!r}, a queue that this worker does not fetch from; it serves "
            f"{', '.join(names) or 'none'}"
        )
    declared = {one.name: one.max_per_worker for one in declared_queues() if one.max_per_worker}
    return {name: most for name, most in (declared | dict(given)).items() if name in names}


def publish_declared(client: Client, heartbeat_s: float) -> None:
    """Publishes the declared queues, registers them, and logs which settings that changed. A queue that is refused, as
    one of its keys is damaged, is logged and does not keep the worker from starting. Raises ServerError."""
    if not (declared := declared_queues()):
        return
    keys = keys_of(client)
    known = [name for one in declared for name in (one.name, one.settings.get("dead_letter_queue")) if name]
    broker_of(client).run(queues.register_queues(keys, known))
    replies = broker_of(client).run_each(publishing(keys, heartbeat_s))
    for one, changed in zip(declared, replies, strict=True):
        if isinstance(changed, JobrunnerError):
            _log.warning("declared settings are not published", queue=one.name, error=str(changed), place=one.place)
        elif changed:
            _log.info("declared settings published", queue=one.name, settings=settings_named(changed), place=one.place)
    for one in declared:
        _align(client, one.name, place=one.place)


def longest_poll_s(poll_s: float) -> float:
    """No longer than the shortest lease, so that a look at the queue tells of every lease before it ends."""
    return min(poll_s, shortest_lease_s())


def shortest_lease_s() -> float:
    """The length of the shortest lease that a job, a station or a queue is declared with; infinity without any."""
    declared = [*(job.options for job in all_jobs()), *(station.options for station in all_stations())]
    lengths = [options.keepalive for options in declared if options.keepalive]
    lengths += [float(one.stored.get("keepalive_ms") or 0) / 1000 for one in declared_queues()]
    return min((length for length in lengths if length), default=math.inf)


class BatchDrivers:
    """The drivers of these queues, created when they are started. A driver that fails to start stops the others.

    One thread starts and stops them; another one starts those of partitions that are added meanwhile. `seen` is called
    with each queue and the end of each of its batches.
    """

    def __init__(self, client: Client, queues: Iterable[str], seen: Callable[[str, BatchEnd], None]) -> None:
        self._client = client
        self._seen = seen
        self.queues = [queue for queue in queues if driver_of(queue) is not None]
        self._running: dict[str, Driver] = {}
        self._lock = threading.Lock()
        self._takes_more = self._is_quiet = False
        self.shards = ServedShards(keys_of(client), dict.fromkeys(self.queues, 1), [WITHOUT] * len(self.queues))
        """A batch is filled from one slot, so every shard has a driver of its own."""

    def check(self, broker: Broker, keys: Keys) -> None:
        """Asks for the shards of the queues. Raises InvalidOption for a queue with partitions whose driver cannot serve
        them."""
        found = broker.run_many([shard_counts(keys.queue(queue)) for queue in self.queues])
        for queue, counts in zip(self.queues, found, strict=True):
            if counts.spread > 1 and driver_of(shard_name(queue, 1)) is None:
                raise InvalidOption(
                    f"queue {queue!r} has {counts.spread} partitions and is read in batches, which are filled from one "
                    f"slot: set it back with configure(partitions=1), or let jobs read it one task at a time"
                )
        self.shards = ServedShards(keys, dict.fromkeys(self.queues, 1), found)
        self.shards.on_change = self._serve_more

    def start(self) -> None:
        """Starts them one by one. Raises what a driver raises."""
        for shard in self.shards.weights:
            self._start(shard)
            if shard in self.queues and shard_name(shard, 1) in self.shards.weights:
                _align(self._client, shard)  # the first driver wrote what its station declares
        self._takes_more = True
        self._serve_more()  # those that were added by now

    def _start(self, shard: str) -> None:
        make = driver_of(shard)
        assert make is not None, "a driver was forgotten while its worker started"
        driver = make(self._client, partial(self._seen, whole_queue(shard)))
        if self._is_quiet:
            driver.be_quiet(True)
        driver.start()
        self._running[shard] = driver

    def _serve_more(self) -> None:
        self.shards.has_changed = False
        for shard in self.shards.weights:
            with self._lock:  # one that is started meanwhile would not be stopped
                if self._takes_more and shard not in self._running:
                    try:
                        self._start(shard)
                    except Exception:
                        _drivers_log.exception("a partition has no driver: it is served when the worker starts again",
                                               queue=shard)  # fmt: skip

    def be_quiet(self, quiet: bool) -> None:
        """Lets none of them take anything new, or all of them again."""
        with self._lock:
            self._is_quiet = quiet
            for queue, driver in list(self._running.items()):  # `start` adds to them without the lock
                try:
                    driver.be_quiet(quiet)
                except Exception:
                    _drivers_log.exception("a driver failed on a command to rest or go on", queue=queue)

    def ask_to_stop(self) -> None:
        """Lets none of them take anything new, and starts no more of them."""
        with self._lock:
            self._takes_more = False
        for queue, driver in self._running.items():
            try:
                driver.ask_to_stop()
            except Exception:
                _drivers_log.exception("a driver cannot be asked to stop", queue=queue)

    def stop(self, ends: float) -> None:
        """Stops all of them, which together have until then (monotonic clock)."""
        self.ask_to_stop()
        for queue, driver in self._running.items():
            try:
                driver.stop(max(ends - monotonic(), 0.0))
            except Exception:
                _drivers_log.exception("a driver did not stop as it should", queue=queue)
        self._running.clear()

    @property
    def in_hand(self) -> int:
        """Items they hold."""
        return sum(driver.in_hand for driver in list(self._running.values()))

    @property
    def running(self) -> list[tuple[str, CurrentBatch]]:
        """The batches they work for, with their queues."""
        found = list(self._running.items())
        return [(whole_queue(shard), batch) for shard, driver in found for batch in driver.running]

    @property
    def failure(self) -> DriverFailed | None:
        """Why one of them cannot go on, if one cannot."""
        for queue, driver in list(self._running.items()):
            if (cause := driver.failure) is not None:
                failed = DriverFailed(f"the driver of queue {queue!r} cannot go on: {type(cause).__name__}: {cause}")
                failed.__cause__ = cause
                return failed
        return None
