"""The jobs of this process by name. A task names its job; nothing in Redis can name code to import."""

import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobrunner.errors import DuplicateJob, ModuleNotLoadable, UnknownJob
from jobrunner.jobs.options import JobOptions, PeriodicOptions
from jobrunner.jobs.params import Parameters
from jobrunner.settings import check_options


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefinition:
    """A declared job: what the worker needs to run its tasks."""

    name: str
    origin: str
    """module:qualified name of the class or function."""
    options: JobOptions
    periodic: PeriodicOptions | None
    parameters: Parameters[Any]
    is_async: bool
    hooks: frozenset[str]
    """Which of before, after, on_failure and on_dead the job defines."""
    doc: str = ""


_definitions: dict[str, JobDefinition] = {}


def register(definition: JobDefinition) -> None:
    """Adds a job. Raises DuplicateJob when another one has its name; the same one again replaces itself (reload)."""
    known = _definitions.get(definition.name)
    if known is not None and known.origin != definition.origin:
        raise DuplicateJob(
            f"job name {definition.name!r} is used by {known.origin} and by {definition.origin}; "
            "give one of them name='…'"
        )
    _definitions[definition.name] = definition


def find(name: str) -> JobDefinition | None:
    """The job of that name, or None."""
    return _definitions.get(name)


def lookup(name: str) -> JobDefinition:
    """The job of that name. Raises UnknownJob that names the nearest one."""
    try:
        check_options([name], list(_definitions), "job")
    except ValueError as error:
        raise UnknownJob(f"{error}; is its module loaded?") from error
    return _definitions[name]


def all_jobs() -> list[JobDefinition]:
    """Every declared job, by name."""
    return [_definitions[name] for name in sorted(_definitions)]


def forget(name: str) -> None:
    """Removes a job, for tests that declare their own."""
    _definitions.pop(name, None)


def load_modules(names: Iterable[str]) -> None:
    """Imports modules that declare jobs, also from the working directory. Raises ModuleNotLoadable."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        try:
            importlib.import_module(name)
        except DuplicateJob:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".split("\n")[0]
            raise ModuleNotLoadable(f"module {name!r} cannot be imported: {reason}; mend its name or code") from error
