"""Checks of the server (reachable, safe for tasks, clock in step) and of this machine (Python, packages, the source of
the URL, the folder of the embedded server, modules)."""

import os
import platform
import re
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from jobrunner.broker.calls.rights import denied
from jobrunner.broker.calls.server import ServerFacts, fsync_policy, server_time
from jobrunner.broker.embedded.process import find_binary
from jobrunner.client.client import Client, broker_of, encryption_of, endpoint_of, keys_of
from jobrunner.clock import unix_ms
from jobrunner.errors import (
    EmbeddedServerError,
    NewerFormat,
    OlderFormat,
    PayloadStoreUnavailable,
    ServerError,
    ServerRefused,
    ServerUnavailable,
    UsageError,
)
from jobrunner.formatting import DISTRIBUTION, OTHER_DISTRIBUTION, REPAIR, duration, install_command, percent, size
from jobrunner.inspector.doctor import Check, fail, ok, warn
from jobrunner.inspector.doctor.workload import work_checks
from jobrunner.inspector.snapshot import latency_ms, server_facts, shown_url, write_refusal
from jobrunner.jobs.declared_queues import declare_configured
from jobrunner.jobs.import_errors import where_jobs_may_be
from jobrunner.jobs.job_defaults import read_configured_defaults
from jobrunner.jobs.registry import all_jobs, all_stations, driven_queues, load_modules
from jobrunner.payload_store.store import PayloadStore
from jobrunner.payload_store.stored_payloads import StoredPayloads
from jobrunner.settings import file_settings

_OLDEST_PYTHON = (3, 11)
_WAITS_FOR_DISK = (7, 2)
_SLOW_MS = 20.0
_SKEWED_MS = 2000.0
_FILES = 1024
_NEEDED = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(?:>=(?P<least>[0-9.]+))?")
_NEARLY_FULL = 0.8
_SEE_DISK = "look at the server's disk and log"


def check_server(client: Client, *, durability: str = "none") -> Iterator[Check]:
    """Checks the server; stops after the first check if it is unreachable. `durability`: the setting of the clients."""
    try:
        latency_ms(client)  # opens the connection, which is not to be measured
        slow_ms = latency_ms(client)
        refusal = write_refusal(client)
    except NewerFormat as error:
        yield fail("format", "a newer version of jobrunner wrote here", str(error))
        return
    except OlderFormat as error:
        yield fail("format", "an older version of jobrunner wrote here", str(error))
        return
    except ServerError as error:
        yield fail("server", "cannot be reached", str(error))
        return
    yield reached_check(slow_ms)
    if refusal:
        found, _, advice = refusal.rpartition("; ")
        yield fail("writes", found, advice)
    facts = server_facts(client)
    if facts is None:
        yield warn("settings", "this user may not ask for them (INFO)", "allow +info, or look at maxmemory-policy")
    else:
        yield from facts_checks(facts)
        yield from durability_checks(facts, appendfsync(client), durability)
    yield clock_check(client)
    yield rights_check(client)
    yield from work_checks(client, facts)


def reached_check(slow_ms: float) -> Check:
    """How long an answer takes."""
    found = f"answers in {duration(slow_ms / 1000)}"
    if slow_ms <= _SLOW_MS:
        return ok("server", found)
    return warn("server", found, "run workers near it: every batch of tasks waits so long")


def facts_checks(facts: ServerFacts) -> Iterator[Check]:
    """Version, role, eviction, memory, connections, what survives a restart, and whether replicas for writes lack."""
    name = f"{facts.name} {facts.version}" + (f", {facts.nodes} primaries of a cluster" if facts.nodes > 1 else "")
    if facts.is_too_old:
        yield fail("version", name, "it lacks commands that the scripts need: use Redis 6.2 or later, or Valkey")
    else:
        yield ok("version", name)
    if facts.replica:
        yield fail("role", "it is a replica, which takes no writes", "name the primary in the URL")
    policy = facts.maxmemory_policy or "unknown"
    if facts.evicts:
        yield fail("eviction", f"maxmemory-policy is {policy}: tasks may be deleted", "set it to noeviction")
    else:
        yield ok("eviction", f"maxmemory-policy is {policy}")
    if is_nearly_full(facts):
        fullest = ", of the fullest node" if facts.nodes > 1 else ""
        share = f"{percent(facts.share_used)} of maxmemory is used{fullest}"
        yield warn("memory", share, "raise maxmemory, or purge what is dead: a full server takes no tasks")
    else:
        yield ok("memory", f"{size(facts.used_memory)} used")
    if facts.max_clients and facts.clients > _NEARLY_FULL * facts.max_clients:
        found = f"{facts.clients} of at most {facts.max_clients} connections"
        yield warn("clients", found, "raise maxclients, and the limit of open files of the server's process")
    if not facts.aof:
        yield warn("durability", "the append-only file is off: a crash of the server loses tasks", "set appendonly yes")
    elif facts.aof_written:
        yield ok("durability", "the append-only file is on")
    else:
        yield fail("durability", "the append-only file cannot be written: the server takes no writes", _SEE_DISK)
    if facts.lacks_replicas:
        told = "the server has no replica, and takes no writes without (min-replicas-to-write)"
        yield fail("writes", told, "attach replicas, or lower min-replicas-to-write")
    if not facts.snapshot_written:
        yield warn("snapshot", "the last one failed: the server may take no writes until the next", _SEE_DISK)


def is_nearly_full(facts: ServerFacts) -> bool:
    """Whether the server will soon have no memory for more tasks."""
    return facts.share_used > _NEARLY_FULL


def durability_checks(facts: ServerFacts, fsync: str, asked: str) -> Iterator[Check]:
    """Whether the server can keep what the durability of a client promises. `fsync`: its policy, empty when unknown."""
    can_wait = "valkey" in facts.name or _version(facts.version) >= _WAITS_FOR_DISK
    if facts.aof and fsync == "no":
        found = "appendfsync is no: a crash of the machine loses what the system did not write yet, often 30 s"
        yield warn("fsync", found, "set appendfsync everysec")
    elif facts.aof and fsync == "everysec" and asked == "none":
        waits = 'durability="fsync" of a client waits for it'
        yield ok("fsync", f"each second; {waits if can_wait else 'no client can wait for it on this server'}")
    if asked == "fsync" and not facts.aof:
        yield fail("promise", 'durability="fsync" without an append-only file', "set appendonly yes")
    elif asked == "fsync" and not can_wait:
        found = f'durability="fsync" on {facts.name} {facts.version}'
        yield fail("promise", found, "use Redis 7.2 or later, or Valkey")
    elif asked == "replicated" and not facts.replicas:
        yield fail("promise", 'durability="replicated" and no replica is connected', "attach a replica (replicaof)")
    elif asked != "none":
        yield ok("promise", f'durability="{asked}" can be kept')


def appendfsync(client: Client) -> str:
    """The server's policy; empty when this user may not ask."""
    try:
        return broker_of(client).run(fsync_policy())
    except ServerRefused:
        return ""


def clock_check(client: Client) -> Check:
    """How far the clock of this machine is from that of the server."""
    before = unix_ms()
    server_ms = broker_of(client).run(server_time())
    skew_ms = server_ms - (before + unix_ms()) / 2
    found = f"{duration(abs(skew_ms) / 1000)} from the server's"
    if abs(skew_ms) <= _SKEWED_MS:
        return ok("clock", found)
    return warn("clock", found, "synchronise both (NTP): at=… would be off")


def rights_check(client: Client) -> Check:
    """Whether a worker could run as this user, whose scripts would else end half way. A user who only reads, as the
    role of viewers, cannot harm."""
    keys, advice = keys_of(client), "see Roles in docs/security.md"
    try:
        found = broker_of(client).run(denied(keys, keys.queue("default")))
    except ServerRefused as error:
        return warn("rights", f"no worker can run as this user: {error}", advice)
    except ServerUnavailable as error:  # a node of a cluster; `check_server` reached another
        return warn("rights", "cannot be asked", str(error))
    if found.only_reads:
        return ok("rights", "this user may only read")
    if found:
        return warn("rights", f"no worker can run as this user: it may not run {found}", advice)
    return ok("rights", "this user has all that a worker needs")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def check_setup(client: Client, url: str | None, *, is_configured: bool) -> Iterator[Check]:
    """Looks at this machine. `url` is the one given with the command; else a module may have configured the client."""
    yield python_check()
    yield name_check()
    yield packages_check()
    yield parser_check()
    yield files_check(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield ok("url", f"{shown_url(client)}, {url_source(url, os.environ, is_configured=is_configured)}")
    if (folder := endpoint_of(client).folder) is not None:
        yield folder_check(folder)
        yield program_check()
    if isinstance(encryption := encryption_of(client), StoredPayloads):
        yield payloads_check(encryption.store)


def python_check() -> Check:
    """Whether this Python is recent enough."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info >= _OLDEST_PYTHON:
        return ok("python", found)
    return fail("python", found, "install Python 3.11 or later")


def name_check() -> Check:
    """Whether the package `jobrunner` of another project is installed, which writes into the same folder."""
    other = version_of(OTHER_DISTRIBUTION)
    if not other:
        return ok("name", DISTRIBUTION)
    found = f"another project's package, {OTHER_DISTRIBUTION} {other}, shares the folder jobrunner/"
    return fail("name", found, REPAIR)


def packages_check(distribution: str = DISTRIBUTION) -> Check:
    """Whether what jobrunner requires is installed."""
    try:
        required = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return warn("packages", "jobrunner runs from a folder and is not installed", f"pip install {DISTRIBUTION}")
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
    advice = f"{install_command('fast')} saves a part of each worker's time"
    return Check(what="protocol", verdict="ok", found=f"redis-py {redis} without hiredis", advice=advice)


def files_check(soft_limit: int) -> Check:
    """Whether this process may open enough files: connections, lease keepers and the pipes of children count."""
    if soft_limit < 0 or soft_limit >= _FILES:  # RLIM_INFINITY is negative
        return ok("files", f"{'any number' if soft_limit < 0 else soft_limit} may be open")
    return warn("files", f"only {soft_limit} may be open", f"ulimit -n {_FILES}, or LimitNOFILE= of the systemd unit")


def url_source(given: str | None, environment: Mapping[str, str], *, is_configured: bool = False) -> str:
    """The source of the server's URL; the order is that of `client_settings`."""
    if given:
        return "named by --url"
    if is_configured:
        return "of the client that a module configures"
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


def payloads_check(store: PayloadStore) -> Check:
    """Whether the payload store can be listed, as its sweep does. It writes nothing there, so it does not try whether
    this process may."""
    try:
        store.check()
    except PayloadStoreUnavailable as error:
        found, _, advice = str(error).partition("; ")
        return warn("payloads", found, advice)
    return ok("payloads", f"the payload store {store.shown_url} can be listed")


def modules_checks(modules: Iterable[str]) -> Iterator[Check]:
    """Whether each module can be imported and the project's file declares what a worker understands, and the jobs."""
    named = []
    for module in modules:
        named.append(module)
        try:
            load_modules([module])
        except UsageError as error:
            yield fail("module", module, str(error))
        else:
            yield ok("module", f"{module} can be imported")
    try:
        declare_configured()
        read_configured_defaults()
    except UsageError as error:
        yield fail("file", str(error), "no worker starts with it")
    if not named:
        yield warn("modules", "none is named", "write modules = [...] in [tool.jobrunner], or name them: doctor MODULE")
    elif jobs := all_jobs():
        yield ok("jobs", ", ".join(job.name for job in jobs))
    elif all_stations() or driven_queues():
        yield ok("jobs", "none; the modules declare stations of pipelines")
    else:
        yield warn("jobs", "the modules declare none", where_jobs_may_be(named))


def version_of(name: str) -> str:
    """The version of an installed package; empty when it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
