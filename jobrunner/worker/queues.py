"""Which queues a worker serves, and what their declarations ask of it."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from jobrunner.broker.broker import Broker, run_each_of_nodes
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.batch_reads import size
from jobrunner.broker.calls.batches import foremost
from jobrunner.broker.keys import Keys, split_queue
from jobrunner.client.client import Client, broker_of, keys_of, middleware_of
from jobrunner.errors import InvalidOption, JobrunnerError, OutcomeUnknown, ServerRefused, ServerUnavailable
from jobrunner.formatting import describe
from jobrunner.jobs.declared_queues import declared_names, declared_queues
from jobrunner.jobs.registry import Definition, all_jobs, all_stations, driven_queues, driver_of, targets_of
from jobrunner.logs import SafeLogger
from jobrunner.worker.declarations import align_stations, publish_declared
from jobrunner.worker.settings import WorkerSettings

_LOOKED_AT = 100
"""Open batches of a queue whose items are counted at most."""
_log = SafeLogger("jobrunner.worker")


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
    if isinstance(given, Mapping) and given:
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


def _warn_of_unknown(names: Iterable[str], client: Client) -> None:
    """Logs a warning for each queue that may be a slip of the pen, with the nearest known one. It is not refused: any
    job may be enqueued into any queue, so its first task may come later. Raises ServerError."""
    try:
        unknown = unknown_queues(names, client)
        registered = broker_of(client).run(queues.some_registered(keys_of(client))) if unknown else ()
        known = sorted({*default_queues(), *declared_names(), *registered} if unknown else ())
    except (ServerRefused, ServerUnavailable, OutcomeUnknown) as error:  # this user may not read it, or it is away
        _log.warning("unknown queues cannot be found: the registry is not readable", error=str(error))
        return
    from difflib import get_close_matches  # most workers know their queues

    for name in unknown:
        near = get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else "it is served all the same"
        _log.warning("no declared job or station has this queue, and nothing was ever enqueued there",
                     queue=name, hint=hint)  # fmt: skip


def warn_of_open_batches(queues: Sequence[str], broker: Broker, keys: Keys) -> None:
    """Logs a warning for each of these queues, which this worker serves item by item, that has items in open batches:
    only a station on Spark gets at them, as the one that served the queue before a deployment. Raises ServerError."""
    found = run_each_of_nodes(broker, [foremost(keys.queue(queue), "batches", _LOOKED_AT) for queue in queues])
    opened = [
        (queue, one)
        for queue, batches in zip(queues, found, strict=True)
        if not isinstance(batches, JobrunnerError)  # its node is away, or this user may not read it
        for one in batches
    ]
    sizes = run_each_of_nodes(broker, [size(keys.queue(queue), one) for queue, one in opened])
    held: Counter[str] = Counter()
    for (queue, _), count in zip(opened, sizes, strict=True):
        held[queue] += 0 if isinstance(count, JobrunnerError) else count
    for queue, items in held.items():
        if items:  # else they are writes
            _log.warning("items are in batches of a station on Spark, which this worker does not have", queue=queue,
                         items=items, hint="serve the queue as before the deployment until none is pending; else "
                         "they are back in line a week after their last attempt")  # fmt: skip


def log_declared(modules: Sequence[str]) -> None:
    """Logs which jobs, stations and schedules the modules of a worker declare; a warning when they declare nothing, as
    a package that does not import its modules with jobs."""
    jobs = sorted(all_jobs(), key=lambda definition: definition.name)
    stations = sorted(f"{station.name} ({station.queue})" for station in all_stations())
    schedules = [f"{job.name}: {job.periodic.schedule.describe()}" for job in jobs if job.periodic is not None]
    _log.info("jobs loaded", jobs=[job.name for job in jobs], **({"stations": stations} if stations else {}),
              queues=default_queues(), schedules=schedules)  # fmt: skip
    if not jobs and not stations and not driven_queues():
        from jobrunner.jobs.import_errors import where_jobs_may_be  # most modules declare some

        _log.warning("no job and no station is declared: this worker runs nothing", modules=list(modules),
                     hint=where_jobs_may_be(modules))  # fmt: skip


def prepare_queues(served: Collection[str], client: Client, settings: WorkerSettings) -> dict[str, str]:
    """Checks the queues that a worker is to serve, and publishes what they and the targets of their stations are
    declared with. Returns the queues of which some shards have not got it, as their server is away, with the place of
    their declaration. Raises MiddlewareError, InvalidOption, ServerError."""
    _warn_of_unknown(served, client)
    declared = _declared_on(served)
    if (middleware := middleware_of(client)) is not None:
        middleware.check((f"{one.kind} {one.name!r}", one.is_async) for one in declared)
        middleware.check((f"the station on Spark of {queue!r}", False) for queue in served if driver_of(queue))
    if settings.executor == "processes":
        _refuse_main(declared)
    known = targets_of(served).union(served)
    return publish_declared(client, settings.heartbeat, known) | align_stations(client, known)


def _declared_on(queues: Collection[str]) -> list[Definition]:
    """The declared jobs and stations of these queues."""
    found: list[Definition] = [job for job in all_jobs() if job.options.queue in queues]
    return found + [station for station in all_stations() if station.queue in queues]


def _refuse_main(declared: Iterable[Definition]) -> None:
    """Raises InvalidOption when a job or station is declared by the program itself, which the child processes of an
    executor do not import."""
    for found in declared:
        if found.origin.startswith("__main__:"):
            raise InvalidOption(
                f"executor='processes': {found.kind} {found.name!r} is declared in __main__, the program itself, which "
                "child processes do not import; declare it in a module that the program imports"
            )


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


def longest_poll_s(poll_s: float) -> float:
    """No longer than the shortest lease, so that a look at the queue tells of every lease before it ends."""
    return min(poll_s, shortest_lease_s())


def shortest_lease_s() -> float:
    """The length of the shortest lease that a job, a station or a queue is declared with; infinity without any."""
    declared = [*(job.options for job in all_jobs()), *(station.options for station in all_stations())]
    lengths = [options.keepalive for options in declared if options.keepalive]
    lengths += [float(one.stored.get("keepalive_ms") or 0) / 1000 for one in declared_queues()]
    return min((length for length in lengths if length), default=math.inf)
