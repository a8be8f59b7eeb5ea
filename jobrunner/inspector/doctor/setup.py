"""Checks of this machine: Python, packages, source of the URL, folder of the embedded server, modules."""

import os
import platform
import re
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from jobrunner.broker.embedded.process import find_binary
from jobrunner.client.client import Client
from jobrunner.client.internals import endpoint_of
from jobrunner.errors import EmbeddedServerError, UsageError
from jobrunner.inspector.doctor import Check, fail, ok, warn
from jobrunner.inspector.snapshot import shown_url
from jobrunner.jobs.registry import all_jobs, load_modules
from jobrunner.settings import file_settings

_OLDEST = (3, 11)
_NEEDED = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(?:>=(?P<least>[0-9.]+))?")
_FILES = 1024


def check_setup(client: Client, url: str | None, modules: tuple[str, ...]) -> Iterator[Check]:
    """Looks at this machine. `url` is the one given with the command, `modules` those to import."""
    yield python_check()
    yield packages_check()
    yield parser_check()
    yield files_check(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield ok("url", f"{shown_url(client)}, {url_source(url, os.environ)}")
    if endpoint_of(client).embedded is not None:
        yield folder_check(Path(endpoint_of(client).shared_url().removeprefix("embedded://")))
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
    needed = [found for line in required if "extra ==" not in line and (found := _NEEDED.match(line))]
    missing = [found["name"] for found in needed if not version_of(found["name"])]
    if missing:
        return fail("packages", f"{', '.join(missing)} missing", f"pip install {' '.join(missing)}")
    older = [found.group() for found in needed if _numbers(version_of(found["name"])) < _numbers(found["least"] or "")]
    if older:
        return fail("packages", f"older than {', '.join(older)}", f"pip install {' '.join(map(repr, older))}")
    return ok("packages", f"all {len(needed)} that jobrunner needs")


def parser_check() -> Check:
    """Checks the parser of the Redis protocol."""
    redis, hiredis = version_of("redis"), version_of("hiredis")
    if hiredis:
        return ok("protocol", f"redis-py {redis}, hiredis {hiredis}")
    advice = 'pip install "jobrunner[fast]" saves a part of each worker\'s time'
    return Check(what="protocol", verdict="ok", found=f"redis-py {redis} without hiredis", advice=advice)


def files_check(soft_limit: int) -> Check:
    """Whether this process may open enough files: connections, lease keepers and the pipes of children count."""
    if soft_limit < 0 or soft_limit >= _FILES:  # RLIM_INFINITY is negative
        return ok("files", f"{'any number' if soft_limit < 0 else soft_limit} may be open")
    return warn("files", f"only {soft_limit} may be open", f"ulimit -n {_FILES}, or LimitNOFILE= of the systemd unit")


def url_source(given: str | None, environment: Mapping[str, str]) -> str:
    """The source of the server's URL; the order is that of `client_settings`."""
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


def version_of(name: str) -> str:
    """The version of an installed package; empty when it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
