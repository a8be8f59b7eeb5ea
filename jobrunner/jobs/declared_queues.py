"""Declared queues: the registry of this process, and the calls that publish it.

Workers publish each declaration when they start and with each heartbeat, and the server decides which declaration is in
force (lua/queue_declare.lua): a setting that an operator changed by hand is kept until its declared value changes.
Programs publish the queues of a pipeline with their first push, which counts only while no worker publishes them.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Unpack

from jobrunner.broker.call import Call
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import Keys, split_queue
from jobrunner.client.settings_hash import Fields, settings_named, write_settings
from jobrunner.errors import DuplicateQueue, InvalidOption, UsageError
from jobrunner.formatting import describe
from jobrunner.jobs.registry import all_jobs, settle_anew
from jobrunner.option_names import check_options
from jobrunner.queue_settings import DeclarableSettings, QueueSettings, RateLimit, rate_of_text
from jobrunner.retry import Backoff, seconds_of_text
from jobrunner.settings import check_whole, file_settings, project_file

_KNOWN = (*QueueSettings.__slots__, "max_per_worker")
_LENGTHS = ("keepalive", "dead_ttl", "expires_in", "history")
_RATES = ("rate", "rate_per_partition")
_LEAST_TTL_S = 30.0
_BEATS = 3
"""The number of missed heartbeats after which a worker's declarations count no more."""


class DeclaredSettings(DeclarableSettings, total=False):
    """The settings of `Queue.configure`; None declares the default, a setting that is left out stays as it is.

    max_per_worker  most tasks of the queue at a time on one worker, so that slow tasks leave slots to other queues
    """

    max_per_worker: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredQueue:
    """The declaration of a queue."""

    name: str
    settings: Mapping[str, Any]
    place: str
    """module:line, or the table and the file that declare it."""
    stored: Fields
    """The settings as the server stores them; '' for a default."""
    max_per_worker: int = 0
    """The most tasks of the queue that one worker holds at a time; 0: no cap. The server does not know it."""
    code: CodeType | None = None
    """The code that made the declaration: a reloaded module has another code object."""
    publishes: Callable[[Keys], Call[Any]] | None = field(default=None, compare=False)
    """Makes the call that publishes the pipeline of the queue where it is missing; the same for all its queues."""


_declared: dict[str, DeclaredQueue] = {}
_of_pipelines: dict[str, DeclaredQueue] = {}
"""The queues of pipelines, which have the settings of their stations, by full name."""


def queue(name: str, /, **settings: Unpack[DeclaredSettings]) -> DeclaredQueue:
    """Declares a queue and its settings, beside the jobs that use it: `queue("tenants", fair=True, history=86400)`.

    The settings are those of `Queue.configure`, with the same checks: `max_inflight`, `rate`, `max_size`, `fair`,
    `max_inflight_per_partition`, `rate_per_partition`, `history`, `history_max`, `dead_ttl`, `dead_max`, and defaults
    for jobs that do not set them (`max_attempts`, `backoff`, `keepalive`, `expires_in`); and `max_per_worker`: the most
    tasks of the queue that one worker holds at a time.

    Workers that load the module publish the settings when they start. A change by an operator (command line, dashboard,
    `configure`) is kept until the declared value of that setting changes. The same declaration may be repeated.

    Raises UnknownOption, InvalidOption, InvalidName, and DuplicateQueue for a second declaration with other settings.
    """
    frame = sys._getframe(1)  # noqa: SLF001
    place = f"{frame.f_globals.get('__name__', '?')}:{frame.f_lineno}"
    made = declaration(name, settings, place, frame.f_code)
    known = _declared.get(name)
    if known is not None and not _is_reloaded(known, made):
        check_same(known, made)
        if known.code is not None:  # else the file declares it, and may be read again without it
            return known
    _declared[name] = made
    settle_anew()  # its jobs may use defaults that it declares
    return made


def declaration(
    name: str, settings: Mapping[str, Any], place: str, code: CodeType | None = None
) -> DeclaredQueue:
    """Checks and returns a declaration. Raises UnknownOption, InvalidOption, InvalidName."""
    tag, own = split_queue(name)
    if tag != own:
        raise InvalidOption(
            f"queue {name!r}, {place}, belongs to a pipeline: give its settings to the station, or to "
            f"pipeline.declare({own!r}, …)"
        )
    check_options(settings, _KNOWN, f"setting of queue {name!r}, {place}")
    check_partitions(settings, f"queue {name!r}, {place}", f"client.queue({name!r})")
    most = settings.get("max_per_worker")
    try:
        check_whole(most or 0, "max_per_worker", minimum=0 if most is None else 1)
        stored = write_settings({key: value for key, value in settings.items() if key != "max_per_worker"}, name)
    except UsageError as error:
        raise type(error)(f"queue {name!r}, {place}: {error}") from error
    return DeclaredQueue(
        name=name, settings=dict(settings), place=place, stored=stored, max_per_worker=most or 0, code=code
    )


def check_partitions(settings: Mapping[str, Any], what: str, queue: str) -> None:
    """Raises InvalidOption for `partitions`, which only the server has; `queue`: the expression for the queue in
    code."""
    if settings.get("partitions") not in (None, 1):
        raise InvalidOption(
            f"{what}: partitions={settings['partitions']!r} is set on the server and not declared: "
            f"use {queue}.configure(partitions=…)"
        )


def declare_of_pipeline(
    name: str, settings: Mapping[str, Any], place: str, publishes: Callable[[Keys], Call[Any]] | None = None
) -> DeclaredQueue:  # fmt: skip
    """Declares a queue of a pipeline with the checked settings of its station, or replaces them."""
    stored = write_settings(settings, name)
    made = _of_pipelines[name] = DeclaredQueue(
        name=name, settings=dict(settings), place=place, stored=stored, publishes=publishes
    )
    return made


def check_same(known: DeclaredQueue, other: DeclaredQueue) -> None:
    """Raises DuplicateQueue unless both declarations have the same settings."""
    if (known.stored, known.max_per_worker) == (other.stored, other.max_per_worker):
        return
    unset = object()
    fields = {*known.stored, *other.stored}
    differ = [name for name in fields if known.stored.get(name, unset) != other.stored.get(name, unset)]
    names = settings_named(differ) + ["max_per_worker"] * (known.max_per_worker != other.max_per_worker)
    told = ", ".join(f"{name} ({_value(known, name)}; {_value(other, name)})" for name in names)
    raise DuplicateQueue(
        f"queue {known.name!r} is declared by {known.place} and by {other.place} with different settings: {told}; "
        "keep one of them"
    )


def declare_configured() -> None:
    """Declares the queues of [tool.jobrunner.queues] in the project's file, and forgets its earlier declarations.

    Raises InvalidOption, UnknownOption, InvalidName, and DuplicateQueue for a queue that a module declares differently.
    """
    path, tables = project_file(), file_settings().queues
    for name in [name for name, known in _declared.items() if known.code is None]:
        del _declared[name]
    for name, table in tables.items():
        place = f"[tool.jobrunner.queues.{name}] of {path}"
        if not isinstance(table, Mapping):
            raise InvalidOption(f"queues.{name} = {table!r} in {path}: give a table, [tool.jobrunner.queues.{name}]")
        check_options(table, _KNOWN, f"setting in {place}")
        made = declaration(name, {key: _of_file(key, value, place) for key, value in table.items()}, place)
        if (known := _declared.setdefault(name, made)) is not made:
            check_same(known, made)


def _of_file(name: str, value: object, place: str) -> Any:
    """The value of a setting written in TOML: durations and rates as text, `none` for the default."""
    try:
        if value == "none":
            return None
        if name in _LENGTHS and isinstance(value, str):
            return seconds_of_text(value)
        if name in _RATES and isinstance(value, str):
            return rate_of_text(value)
        if name in _RATES and isinstance(value, Mapping):
            return RateLimit(**value)
        if name == "backoff" and isinstance(value, Mapping):
            return Backoff(**value)
    except (UsageError, TypeError) as error:
        raise InvalidOption(f"{name} = {describe(value)} in {place}: {error}") from error
    if name in _RATES or name == "backoff":
        example = 'write "15/1h"' if name in _RATES else "give a table, { base = 2, cap = 3600 }"
        raise InvalidOption(f"{name} = {describe(value)} in {place}: {example}")
    return value


def declared(name: str) -> DeclaredQueue | None:
    """The declaration of a queue, if there is one."""
    return _declared.get(name)


def declared_queues() -> list[DeclaredQueue]:
    """Every declared queue, by name."""
    return [_declared[name] for name in sorted(_declared)]


def declared_names() -> set[str]:
    """The queues of declared jobs, and the declared queues."""
    return {*(job.options.queue for job in all_jobs()), *_declared}


def cap_advice(name: str, slots: int) -> str:
    """The options that keep a queue from holding all slots of a worker, for logs and checks."""
    most = max(slots // 2, 1)
    return f"work --max-per-queue {name}={most}, queue(…, max_per_worker={most}), or a worker of its own"


def forget_queue(name: str) -> None:
    """Removes a declaration, for tests that make their own declarations."""
    _declared.pop(name, None)
    _of_pipelines.pop(name, None)


def published_by(served: Iterable[str]) -> list[DeclaredQueue]:
    """The declarations that a worker publishes: every declared queue, and the queues of pipelines that it serves, as
    another pipeline may belong to another server."""
    return [*declared_queues(), *(_of_pipelines[name] for name in sorted(served) if name in _of_pipelines)]


def publishing(
    keys: Keys, declared: Iterable[DeclaredQueue], heartbeat_s: float | None = None
) -> list[Call[list[str]]]:  # fmt: skip
    """Calls that publish these queues, in their order. Reply: the fields that changed. Without a heartbeat they are
    those of a program that is no worker, and change nothing that workers publish."""
    ttl_ms = 0 if heartbeat_s is None else round(max(heartbeat_s * _BEATS, _LEAST_TTL_S) * 1000)
    return [queues.declare(keys.queue(one.name), one.stored, place=one.place, ttl_ms=ttl_ms) for one in declared]


def _is_reloaded(known: DeclaredQueue, made: DeclaredQueue) -> bool:
    """Whether the same module declares the queue again, because it was reloaded, or is `__main__` of a notebook."""
    if known.code is None or made.code is None or known.code is made.code:
        return False
    is_module = known.code.co_name == made.code.co_name == "<module>"
    return is_module and known.place.rpartition(":")[0] == made.place.rpartition(":")[0]


def _value(declared: DeclaredQueue, name: str) -> str:
    return repr(declared.settings[name]) if name in declared.settings else "not given"
