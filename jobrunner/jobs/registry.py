"""The registry of this process: jobs by name, stations and drivers by queue.

A task has the name of its job, or is in the queue of a station; nothing in Redis can name code to import.
"""

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.broker.keys import split_queue
from jobrunner.broker.shards import whole_queue
from jobrunner.errors import DuplicateJob, UnknownJob
from jobrunner.jobs.enqueue_options import own_result_ttl, own_timeout
from jobrunner.jobs.options import JobOptions, PeriodicOptions
from jobrunner.jobs.params import JobParameters
from jobrunner.jobs.running_task import JobRun
from jobrunner.option_names import check_names
from jobrunner.retry import whole_ms
from jobrunner.settings import DEFAULT_RESULT_TTL_S, see_project
from jobrunner.task import Task

if TYPE_CHECKING:
    from jobrunner.jobs.batch_driver import MakeDriver

_KEPT_S = 10.0
"""How long lua/lib/enqueue_call.lua keeps its notes."""


def kept_s(result_ttl: float) -> float:
    """`Task.kept_s` of a job with that `result_ttl`, in seconds."""
    return result_ttl if result_ttl >= _KEPT_S else 0.0


class JobDefinition(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A declared job, complete for a worker that runs its tasks."""

    kind: ClassVar[str] = "job"
    name: str
    origin: str
    """module:qualified name of the class or function."""
    declared: JobOptions
    """The options of its @job."""
    with_defaults: Callable[[JobOptions], JobOptions]
    """Returns the declared options, completed with the defaults for all jobs."""
    periodic: PeriodicOptions | None
    parameters: JobParameters[Any]
    is_async: bool
    hooks: frozenset[str]
    """The hooks that the job defines, of before, after, on_failure and on_dead."""

    @cached_property
    def options(self) -> JobOptions:
        """The options of its tasks, resolved at the first use: a module that is imported later may set defaults."""
        return self.with_defaults(self.declared)

    @property
    def may_run_code_early(self) -> bool:
        """Whether code of the program may run before the job's own, when it is built."""
        return self.parameters.may_run_code

    @cached_property
    def template(self) -> Task:
        """A task without options of its own, complete except id, payload, key and lock. Its id is the tag that ends
        ids."""
        options = self.options
        return Task(
            id=split_queue(options.queue)[0],
            queue=options.queue,
            type=self.name,
            payload=b"",
            priority=options.priority,
            keepalive_ms=whole_ms(options.keepalive),
            max_attempts=options.max_attempts,
            max_stalled=options.max_stalled,
            expires_in_ms=whole_ms(options.expires_in),
            kept_s=kept_s(options.result_ttl),
        )

    def build(self, attempt: Attempt, run: JobRun) -> Any:
        """The job of an attempt, with its parameters. Raises ParameterError."""
        job = self.parameters.read(attempt.payload or b"")
        job.__dict__["_current"] = run
        return job


class StationDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A station of a pipeline, complete for a worker that runs the items of its queue."""

    kind: ClassVar[str] = "station"
    name: str
    origin: str
    """module:qualified name of the function."""
    queue: str
    """Full name."""
    options: JobOptions
    build: Callable[[Attempt, JobRun], Any]
    """Makes the object that runs one attempt: its `run()` (a coroutine function if `is_async`) returns an outcome, a
    steering value or a result. Raises ParameterError for an item that cannot be read."""
    is_async: bool
    hooks: frozenset[str] = frozenset()
    periodic: None = None
    may_run_code_early: ClassVar[bool] = True

    @property
    def declared(self) -> JobOptions:
        """The options of the station: defaults for all jobs do not hold for stations."""
        return self.options


Definition = JobDefinition | StationDefinition


_definitions: dict[str, JobDefinition] = {}
_stations: dict[str, StationDefinition] = {}
_drivers: "dict[str, tuple[str, MakeDriver, Callable[[str], MakeDriver] | None]]" = {}
_targets: dict[str, tuple[str, ...]] = {}


def register(definition: JobDefinition) -> None:
    """Adds a job. Raises DuplicateJob when another job has its name; a reloaded job replaces itself."""
    known = _definitions.get(definition.name)
    if known is not None and known.origin != definition.origin:
        raise DuplicateJob(
            f"job name {definition.name!r} is used by {known.origin} and by {definition.origin}; "
            "give one of them name='…'"
        )
    _definitions[definition.name] = definition


def find(name: str) -> JobDefinition | None:
    """The job with this name, or None."""
    return _definitions.get(name)


def lookup(name: str) -> JobDefinition:
    """The job with this name. Raises UnknownJob, which names the nearest job."""
    try:
        check_names([name], list(_definitions), "job")
    except ValueError as error:
        raise UnknownJob(f"{error}{'' if str(error).endswith('?') else '; is its module loaded?'}") from error
    return _definitions[name]


DEFAULTS: dict[str, Any] = {}
"""Options of `job_defaults(…)` for jobs that do not declare them."""


def settle_anew() -> None:
    """Has every job resolve its options again at their next use, after defaults changed."""
    for definition in _definitions.values():
        definition.__dict__.clear()


def all_jobs() -> list[JobDefinition]:
    """Every declared job, by name."""
    return [_definitions[name] for name in sorted(_definitions)]


def waiting_on_crash() -> Callable[[Attempt], bool] | None:
    """A function that tells whether an attempt waits for the end of its lease when its worker dies (`on_crash`); None
    when no job or station declared so far does."""
    declared: list[Definition] = [*_definitions.values(), *_stations.values()]
    if not any(found.options.on_crash == "wait" for found in declared):
        return None

    def waits(attempt: Attempt) -> bool:
        found = definition_for(attempt)
        return found is not None and found.options.on_crash == "wait"

    return waits


def forget(name: str) -> None:
    """Removes a job, for tests that declare their own jobs."""
    _definitions.pop(name, None)


def register_station(queue: str, definition: StationDefinition) -> None:
    """Adds the station of a queue, by full name. Raises DuplicateJob when another station or driver serves the queue; a
    reloaded station replaces itself."""
    _check_free(queue, definition.origin)
    _stations[queue] = definition


def all_stations() -> list[StationDefinition]:
    """Every station, by queue."""
    return [_stations[queue] for queue in sorted(_stations)]


def register_driver(
    queue: str, factory: "MakeDriver", *, origin: str = "", of_shard: "Callable[[str], MakeDriver] | None" = None
) -> None:
    """Adds the driver of a queue; `origin` is the module:qualified name of its function. `of_shard` returns the factory
    for another shard of the queue; without it the queue can have no partitions. Raises as register_station."""
    _check_free(queue, origin)
    _drivers[queue] = (origin, factory, of_shard)


def driver_of(queue: str) -> "MakeDriver | None":
    """The factory of the driver of a queue or shard, or None."""
    if queue in _drivers:
        return _drivers[queue][1]
    of_shard = _drivers[whole][2] if (whole := whole_queue(queue)) in _drivers else None
    return None if of_shard is None else of_shard(queue)


def driven_queues() -> list[str]:
    """The queues that have a driver, by name."""
    return sorted(_drivers)


def note_targets(queue: str, targets: tuple[str, ...]) -> None:
    """Records the queues to which the station or driver of this queue sends items."""
    _targets[queue] = targets


def targets_of(queues: Iterable[str]) -> set[str]:
    """The queues to which the stations and drivers of these queues send items."""
    return {target for queue in queues for target in _targets.get(whole_queue(queue), ())}


def held_up(
    targets: Mapping[str, Collection[str]], paused: Collection[str],
    is_blocked: Callable[[str, str], bool] = lambda *_: True,
) -> list[str]:  # fmt: skip
    """The queues, given with their targets, whose items can leave into no target: each is paused or held up itself, and
    `is_blocked(queue, target)`."""
    found: list[str] = []
    while new := [
        queue for queue, its in targets.items()
        if queue not in found and its and all((to in paused or to in found) and is_blocked(queue, to) for to in its)
    ]:  # fmt: skip
        found += new
    return found


def forget_station(queue: str) -> None:
    """Removes the station or driver of a queue, for tests that declare their own."""
    for known in (_stations, _drivers, _targets):
        known.pop(queue, None)


def definition_for(attempt: Attempt) -> Definition | None:
    """The station of an attempt's queue, else the job of its type; None when neither is known."""
    if _stations and (found := _stations.get(whole_queue(attempt.queue))) is not None:
        return found
    return _definitions.get(attempt.type)


def timeout_of(attempt: Attempt, definition: Definition) -> float | None:
    """Seconds that an attempt may take: its task's own timeout, else that of the job or station; None: no limit."""
    if attempt.headers is None or definition.kind != "job":
        return definition.options.timeout
    own_s = own_timeout(attempt.headers)
    return definition.options.timeout if own_s is None else own_s


def result_ttl_of(attempt: Attempt) -> float:
    """Seconds that the finished task of an attempt stays readable."""
    own_s = own_result_ttl(attempt.headers)
    if own_s is not None:
        return own_s
    definition = definition_for(attempt)
    return DEFAULT_RESULT_TTL_S if definition is None else definition.options.result_ttl


def declaring_modules() -> list[str]:
    """The modules that declare jobs and stations; without the program itself, which no other process imports."""
    declared: list[Definition] = [*_definitions.values(), *_stations.values()]
    return sorted({found.origin.partition(":")[0] for found in declared} - {"__main__"})


def load_modules(names: Iterable[str]) -> None:
    """Imports modules that declare jobs, also from the working directory and the folder of the project's
    pyproject.toml. Raises ModuleNotLoadable."""
    see_project()
    for name in names:
        try:
            importlib.import_module(name)
        except DuplicateJob:
            raise
        except (Exception, SystemExit) as error:
            from jobrunner.jobs.import_errors import is_exit_of_module, not_loadable  # most modules can be imported

            if isinstance(error, SystemExit) and not is_exit_of_module(error):
                raise
            raise not_loadable(name, error) from error


def _check_free(queue: str, origin: str) -> None:
    known = _stations[queue].origin if queue in _stations else _drivers.get(queue, (origin,))[0]
    if known != origin:
        raise DuplicateJob(f"queue {queue!r} is served by {known} and by {origin}; a queue has one station")
