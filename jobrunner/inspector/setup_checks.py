"""What is looked at on this machine: Python, packages, where the URL comes from, the embedded folder, the modules."""

import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from jobrunner.broker.embedded_process import find_binary
from jobrunner.client.client import Client
from jobrunner.errors import EmbeddedServerError, UsageError
from jobrunner.inspector.check import Check, fail, ok, warn
from jobrunner.inspector.overview import shown_url
from jobrunner.jobs.registry import all_jobs, load_modules
from jobrunner.settings import file_settings

_OLDEST = (3, 11)
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def check_setup(client: Client, url: str | None, modules: tuple[str, ...]) -> Iterator[Check]:
    """Looks at this machine. `url` is the one given with the command, `modules` those to import."""
    yield python_check()
    yield packages_check()
    yield ok("url", f"{shown_url(client)}, {url_source(url, os.environ)}")
    if client.endpoint.embedded is not None:
        yield folder_check(Path(client.endpoint.shared_url().removeprefix("embedded://")))
        yield program_check()
    yield from modules_checks(modules)


def python_check() -> Check:
    """Whether this Python is recent enough."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info >= _OLDEST:
        return ok("python", found)
    return fail("python", found, "install Python 3.11 or later")


def packages_check(distribution: str = "jobrunner") -> Check:
    """Whether what jobrunner requires is installed."""
    try:
        required = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return warn("packages", "jobrunner runs from a folder and is not installed", "pip install jobrunner")
    names = [found.group() for line in required if "extra ==" not in line and (found := _NAME.match(line))]
    missing = [name for name in names if not _is_installed(name)]
    if missing:
        return fail("packages", f"{', '.join(missing)} missing", f"pip install {' '.join(missing)}")
    return ok("packages", f"all {len(names)} that jobrunner needs")


def url_source(given: str | None, environment: Mapping[str, str]) -> str:
    """Who named the server; the order is that of `client_settings`."""
    if given:
        return "named by --url"
    for name in ("JOBRUNNER_URL", "REDIS_URL"):
        if environment.get(name):
            return f"named by {name}"
    if file_settings().url:
        return "named by [tool.jobrunner] in pyproject.toml"
    return "the embedded server of this folder, as no URL is named"


def folder_check(folder: Path) -> Check:
    """Whether the embedded server can keep its files there."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return ok("folder", f"{folder} is writable")
    return fail("folder", f"{folder} cannot be written", "make it writable, or name another: --url embedded:///folder")


def program_check() -> Check:
    """Whether there is a server program for the embedded server."""
    try:
        return ok("program", str(find_binary()))
    except EmbeddedServerError as error:
        found, _, advice = str(error).partition(": ")
        return fail("program", found, advice)


def modules_checks(modules: Iterable[str]) -> Iterator[Check]:
    """Whether each module can be imported, and what jobs they declare."""
    named = False
    for module in modules:
        named = True
        try:
            load_modules([module])
        except UsageError as error:
            yield fail("module", module, str(error))
        else:
            yield ok("module", f"{module} can be imported")
    if not named:
        yield warn("modules", "none is named", "write modules = [...] in [tool.jobrunner], or name them: doctor MODULE")
    elif jobs := all_jobs():
        yield ok("jobs", ", ".join(job.name for job in jobs))
    else:
        yield warn("jobs", "the modules declare none", "put @job() above a Job class or a function")


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
