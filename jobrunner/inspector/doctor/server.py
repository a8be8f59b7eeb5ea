"""Checks of the server: reachable, safe for tasks (eviction, durability, memory), clock in step."""

from collections.abc import Iterator

from jobrunner.broker.calls.server import ServerFacts, fsync_policy, server_time
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of
from jobrunner.clock import unix_ms
from jobrunner.errors import NewerFormat, OlderFormat, ServerError, ServerRefused
from jobrunner.formatting import duration, percent, size
from jobrunner.inspector.doctor import Check, fail, ok, warn
from jobrunner.inspector.doctor.workload import work_checks
from jobrunner.inspector.snapshot import latency_ms, server_facts

_OLDEST = (6, 2)
_WAITS_FOR_DISK = (7, 2)
_SLOW_MS = 20.0
_SKEWED_MS = 2000.0
_NEARLY_FULL = 0.8


def check_server(client: Client, *, durability: str = "none") -> Iterator[Check]:
    """Checks the server; stops after the first check if it is unreachable. `durability`: the setting of the clients."""
    try:
        latency_ms(client)  # opens the connection, which is not to be measured
        slow_ms = latency_ms(client)
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
    facts = server_facts(client)
    if facts is None:
        yield warn("settings", "this user may not ask for them (INFO)", "allow +info, or look at maxmemory-policy")
    else:
        yield from facts_checks(facts)
        yield from durability_checks(facts, appendfsync(client), durability)
    yield clock_check(client)
    yield from work_checks(client, facts)


def reached_check(slow_ms: float) -> Check:
    """How long an answer takes."""
    told = f"answers in {duration(slow_ms / 1000)}"
    if slow_ms <= _SLOW_MS:
        return ok("server", told)
    return warn("server", told, "run workers near it: every batch of tasks waits so long")


def facts_checks(facts: ServerFacts) -> Iterator[Check]:
    """Version, role, eviction, memory, connections, and what survives a restart."""
    name = f"{facts.name} {facts.version}" + (f", {facts.nodes} primaries of a cluster" if facts.nodes > 1 else "")
    recent = _version(facts.version) >= _OLDEST
    yield ok("version", name) if recent else fail("version", name, "use Redis 6.2 or later, or Valkey")
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
        told = f"{facts.clients} of at most {facts.max_clients} connections"
        yield warn("clients", told, "raise maxclients, and the limit of open files of the server's process")
    if not facts.aof:
        yield warn("durability", "the append-only file is off: a crash of the server loses tasks", "set appendonly yes")
    elif facts.aof_written:
        yield ok("durability", "the append-only file is on")
    else:
        yield fail("durability", "the last write to the append-only file failed", "look at the server's disk and log")


def is_nearly_full(facts: ServerFacts) -> bool:
    """Whether the server will soon have no memory for more tasks."""
    return facts.share_used > _NEARLY_FULL


def durability_checks(facts: ServerFacts, fsync: str, asked: str) -> Iterator[Check]:
    """Whether the server can keep what the durability of a client promises. `fsync`: its policy, empty when unknown."""
    if facts.aof and fsync == "no":
        told = "appendfsync is no: a crash of the machine loses what the system did not write yet, often 30 s"
        yield warn("fsync", told, "set appendfsync everysec")
    elif facts.aof and fsync == "everysec" and asked == "none":
        yield ok("fsync", 'each second; durability="fsync" of a client waits for it')
    if asked == "fsync" and not facts.aof:
        yield fail("promise", 'durability="fsync" without an append-only file', "set appendonly yes")
    elif asked == "fsync" and "valkey" not in facts.name and _version(facts.version) < _WAITS_FOR_DISK:
        told = f'durability="fsync" on {facts.name} {facts.version}'
        yield fail("promise", told, "use Redis 7.2 or later, or Valkey")
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
    told = f"{duration(abs(skew_ms) / 1000)} from the server's"
    if abs(skew_ms) <= _SKEWED_MS:
        return ok("clock", told)
    return warn("clock", told, "synchronise both (NTP): at=… would be off")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
