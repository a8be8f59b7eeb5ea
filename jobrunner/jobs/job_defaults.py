"""Default options for all jobs of this process: from `job_defaults(…)`, then from the project's file.

The first of these sources that has an option decides: the job's `@job`, the declaration of its queue,
`job_defaults(…)`, [tool.jobrunner.job_defaults]. Jobs resolve their options at their first use, so the order of imports
does not matter.
"""

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from jobrunner.errors import InvalidOption, UsageError
from jobrunner.formatting import describe
from jobrunner.jobs.options import JobOptions, settle
from jobrunner.jobs.registry import DEFAULTS, settle_anew
from jobrunner.option_names import check_options
from jobrunner.retry import Backoff, BackoffPolicy, RetryOn, seconds_of_text
from jobrunner.settings import Duration, file_settings, project_file

_OF_QUEUES = ("max_attempts", "backoff", "keepalive", "expires_in")
"""The options that a queue may declare, too."""
_LENGTHS = ("keepalive", "timeout", "result_ttl", "expires_in")
_KNOWN = (*_OF_QUEUES, "retry_on", "max_stalled", "timeout", "result_ttl")


class JobDefaults(TypedDict, total=False):
    """Options of `@job` that may have defaults for all jobs; None removes a default."""

    max_attempts: int | None
    backoff: BackoffPolicy | None
    retry_on: RetryOn | None
    max_stalled: int | None
    keepalive: Duration | None
    timeout: Duration | None
    result_ttl: Duration | None
    expires_in: Duration | None


def job_defaults(**options: Unpack[JobDefaults]) -> None:
    """Sets options for all jobs of this process whose `@job` does not: `job_defaults(max_attempts=10, timeout=300)`.

    They override [tool.jobrunner.job_defaults]; options that the queue of a job declares override them. Call it in a
    module of the jobs, so that both producers and workers run it, before or after the jobs are declared; it changes
    only the options that it names. Stations of pipelines have options of their own. Raises UnknownOption,
    InvalidOption.
    """
    given = _checked(options, "option of job_defaults()", "")
    for name in options:
        DEFAULTS.pop(name, None)
    DEFAULTS.update(given)
    settle_anew()


def read_configured_defaults() -> None:
    """Has jobs resolve their options again with the present content of the project's file. Raises UnknownOption,
    InvalidOption."""
    _read_file()
    settle_anew()


def with_defaults(given: Mapping[str, Any], declared: JobOptions) -> JobOptions:
    """The options of a job: those of its `@job`, and defaults for the others. Raises the errors of the project's
    file."""
    found = _read_file() | DEFAULTS
    of_queue = _settings_of(declared.queue)
    added = {name: value for name, value in found.items() if name not in given and name not in of_queue}
    return settle({**added, **given}, default_name="job")[1] if added else declared


def _settings_of(queue: str) -> set[str]:
    """The names of the options that the queue declares, in code or in the file."""
    from jobrunner.jobs.declared_queues import declared  # a program without defaults does not need it

    found, table = declared(queue), file_settings().queues.get(queue)
    names = {*(found.settings if found else ()), *(table if isinstance(table, Mapping) else ())}
    return names.intersection(_OF_QUEUES)


def _read_file() -> dict[str, Any]:
    table = file_settings().job_defaults
    if not table:
        return {}
    place = f"[tool.jobrunner.job_defaults] of {project_file()}"
    read = {name: _of_text(name, value, place) for name, value in table.items()}
    return _checked(read, f"option in {place}", f"{place}: ")


def _of_text(name: str, value: object, place: str) -> Any:
    try:
        if name in _LENGTHS and isinstance(value, str):
            return seconds_of_text(value)
        if name == "backoff" and isinstance(value, Mapping):
            return Backoff(**value)
    except (UsageError, TypeError) as error:
        raise InvalidOption(f"{name} = {describe(value)} in {place}: {error}") from error
    if name == "backoff":
        raise InvalidOption(f"{name} = {describe(value)} in {place}: give a table, {{ base = 2, cap = 3600 }}")
    if name == "retry_on":
        raise InvalidOption(f"{name} in {place}: a file has no error classes; write job_defaults(retry_on=…) in code")
    return value


def _checked(options: Mapping[str, Any], what: str, place: str) -> dict[str, Any]:
    check_options(options, _KNOWN, what)
    given = {name: value for name, value in options.items() if value is not None}
    try:
        settle(given, default_name="job")
    except UsageError as error:
        raise type(error)(f"{place}{error}") from error
    return given


def forget_defaults() -> None:
    """Removes the defaults of `job_defaults(…)`, for tests; the file's defaults are read again."""
    DEFAULTS.clear()
    settle_anew()
