"""Calls about the server itself, and about what is kept on it for a whole prefix: the format, the names to redact."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from jobrunner.broker.call import Call, command
from jobrunner.broker.keys import Keys
from jobrunner.errors import NewerFormat, OlderFormat, OutcomeUnknown

_FSYNCS = ("no", "everysec", "always")
_DATABASE = re.compile(r"db[0-9]{1,9}")


class ServerFacts(msgspec.Struct, frozen=True):
    """The parts of INFO that jobrunner uses. Sizes in bytes; `maxmemory` 0 means no limit."""

    name: str
    version: str
    maxmemory: int
    maxmemory_policy: str
    used_memory: int
    clients: int
    aof: bool
    aof_written: bool = True
    """Whether its last write to the append-only file went well: else it takes no writes."""
    snapshot_written: bool = True
    """Whether its last snapshot (RDB) went well: else it takes no writes, unless its settings say otherwise."""
    max_clients: int = 0
    """0: not told."""
    replica: bool = False
    replicas: int = 0
    lacks_replicas: bool = False
    """Whether it takes no writes, as it has none of the replicas that it needs for one (min-replicas-to-write)."""
    databases: tuple[int, ...] = ()
    """Numbers of those that hold keys."""
    nodes: int = 1
    """Of how many primaries of a cluster this tells: sums of sizes and clients, of all else the worst."""
    fullest: float | None = None
    """Which share of its maxmemory the fullest of several primaries uses."""

    @property
    def share_used(self) -> float:
        """Which share of maxmemory is used, where most is; 0 without a limit."""
        if self.fullest is not None:
            return self.fullest
        return self.used_memory / self.maxmemory if self.maxmemory else 0.0

    @property
    def evicts(self) -> bool:
        """Whether the server may delete tasks to make room."""
        return evicts(self.maxmemory_policy)

    @property
    def is_too_old(self) -> bool:
        """Whether it lacks commands of the scripts, such as ZMSCORE and HRANDFIELD; False where the version is
        unknown."""
        numbers = _numbers(self.version)
        return bool(numbers) and numbers < [6, 2]


def facts() -> Call[ServerFacts]:
    """The server's INFO; for a cluster that of its primaries together."""
    return command("INFO", read=_facts_of_all, everywhere=True)


def eviction_policy() -> Call[str]:
    """The server's maxmemory-policy; of a cluster one that evicts, where a primary has such. Empty for a user without
    the right to ask."""
    return command("INFO", "memory", read=_eviction_policy, may_fail=True, everywhere=True)


def evicts(policy: str) -> bool:
    """Whether a server with this maxmemory-policy may delete tasks to make room."""
    return policy not in ("noeviction", "")


def _eviction_policy(reply: bytes | list[bytes] | None) -> str:
    info = b"\n".join(reply) if isinstance(reply, list) else reply or b""
    found = [one.decode() for one in re.findall(rb"^maxmemory_policy:([\w-]+)", info, re.MULTILINE)]
    return max(found, key=evicts, default="")


SEND_AGAIN = "; send it again with the same id, or look at the server"
"""The advice for a task or item, which does not hold for a flow: its ids are new with each enqueue."""


def confirmation(durability: str, timeout_s: float) -> Call[None] | None:
    """The command behind a write that waits until it is safe: on disk ("fsync"), or on a replica ("replicated").

    Its reply is read as OutcomeUnknown when that takes longer than `timeout_s`: the write was done, and may be lost
    with the server. None for "none". WAITAOF needs Redis 7.2 or Valkey, and an append-only file.
    """
    timeout_ms = max(round(timeout_s * 1000), 1)
    if durability == "fsync":
        return command("WAITAOF", 1, 0, timeout_ms, read=partial(_confirmed, "on the server's disk", timeout_s))
    if durability == "replicated":
        return command("WAIT", 1, timeout_ms, read=partial(_confirmed, "on a replica", timeout_s))
    return None


def _confirmed(where: str, timeout_s: float, reply: int | list[int]) -> None:
    if (reply[0] if isinstance(reply, list) else reply) < 1:
        raise OutcomeUnknown(
            f"written, but not {where} within {timeout_s:g} s: it is lost if the server is lost now{SEND_AGAIN}"
        )


def fsync_policy() -> Call[str]:
    """When the append-only file goes to the disk: "always", "everysec" or "no"; empty when it is not told."""
    return command("CONFIG", "GET", "appendfsync", read=_weakest, everywhere=True)


def server_time(key: bytes | None = None) -> Call[float]:
    """The server's clock, Unix ms, as scripts compute it; of a cluster that of the node that has the key."""
    return Call(read=_time, words=("TIME",), keys=() if key is None else (key,))


def earliest_time() -> Call[float]:
    """The same; of a cluster the clock of the primary that is furthest behind, which may be one that is hard to reach.
    All that any of them does later has that instant or a later one."""
    return command("TIME", read=_earliest_time, everywhere=True, needs_all=True)


def _time(reply: list[bytes]) -> float:
    return int(reply[0]) * 1000 + int(reply[1]) / 1000


def _earliest_time(reply: list[Any]) -> float:
    return min(map(_time, reply if isinstance(reply[0], list) else [reply]))


def processor_time() -> Call[float]:
    """Seconds of processor time that the server has used since it runs; of a cluster all primaries together."""
    return command("INFO", "cpu", read=_processor_time, everywhere=True)


def run_id(key: bytes) -> Call[str]:
    """The random id that the server with this key chose at its start: another one after a failover or a restart. Empty
    for a user without the right to ask."""
    return Call(read=_run_id, words=("INFO", "server"), keys=(key,), may_fail=True)


def _run_id(reply: bytes | None) -> str:
    found = re.search(rb"^run_id:(\w+)", reply or b"", re.MULTILINE)
    return found[1].decode() if found else ""


def ping() -> Call[bool]:
    """Whether it answers."""
    return command("PING", read=lambda reply: reply == b"PONG")


def _weakest(reply: list[Any]) -> str:
    replies = reply if reply and isinstance(reply[0], list) else [reply]
    policies = [one[1].decode() for one in replies if len(one) > 1]
    return min(policies, key=_FSYNCS.index, default="")


def _facts_of_all(reply: bytes | list[bytes]) -> ServerFacts:
    if isinstance(reply, bytes):
        return _facts(reply)
    first, *others = nodes = [_facts(one) for one in reply]
    if not others:
        return first
    unlimited = any(one.maxmemory == 0 for one in nodes)
    return ServerFacts(
        name=first.name,
        version=min((one.version for one in nodes), key=_numbers),
        maxmemory=0 if unlimited else sum(one.maxmemory for one in nodes),
        maxmemory_policy=next((one.maxmemory_policy for one in nodes if one.evicts), first.maxmemory_policy),
        used_memory=sum(one.used_memory for one in nodes),
        clients=sum(one.clients for one in nodes),
        aof=all(one.aof for one in nodes),
        aof_written=all(one.aof_written for one in nodes),
        snapshot_written=all(one.snapshot_written for one in nodes),
        max_clients=sum(one.max_clients for one in nodes),
        replicas=min(one.replicas for one in nodes),
        lacks_replicas=any(one.lacks_replicas for one in nodes),
        databases=first.databases,
        nodes=len(nodes),
        fullest=max(one.share_used for one in nodes),
    )


def _processor_time(reply: bytes | list[bytes]) -> float:
    info = b"\n".join(reply) if isinstance(reply, list) else reply
    return sum(float(used) for used in re.findall(rb"^used_cpu_(?:user|sys):([0-9.]+)", info, re.MULTILINE))


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def _facts(reply: bytes) -> ServerFacts:
    lines = reply.decode("utf-8", "replace").splitlines()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    return ServerFacts(
        name=found.get("server_name", "redis"),
        version=found.get("valkey_version", found.get("redis_version", "?")),
        maxmemory=int(found.get("maxmemory", 0)),
        maxmemory_policy=found.get("maxmemory_policy", ""),
        used_memory=int(found.get("used_memory", 0)),
        clients=int(found.get("connected_clients", 0)),
        aof=found.get("aof_enabled") == "1",
        aof_written=found.get("aof_last_write_status", "ok") == "ok",
        snapshot_written=found.get("rdb_last_bgsave_status", "ok") == "ok",
        max_clients=int(found.get("maxclients", 0)),
        replica=found.get("role") == "slave",
        replicas=int(found.get("connected_slaves", 0)),
        lacks_replicas=found.get("min_slaves_good_slaves") == "0",  # told only where some are needed
        databases=tuple(sorted(int(name[2:]) for name in found if _DATABASE.fullmatch(name))),
    )


FORMAT = 2
"""The format of keys that this version writes, and the newest that it reads.

A version raises it only when it writes what an older one would misread. What an older version does not know and may
leave alone (a further field of a hash, a further kind of event, a further key) does not raise it, so that two versions
work side by side during a deploy.
"""
OLDEST = 2
"""The oldest format that it reads. Format 1 had other names for ten kinds of keys."""
_WHOLE = re.compile(rb"[0-9]{1,9}")


def check_format(keys: Keys) -> Call[None]:
    """Reading its reply raises NewerFormat or OlderFormat. A user without the right to read the key is let through."""
    return command("GET", keys.format, read=partial(refuse_other_format, keys), may_fail=True)


def refuse_other_format(keys: Keys, found: bytes | None) -> None:
    """Raises NewerFormat or OlderFormat for a format that this version cannot read; None: no format was noted."""
    if found is None:
        return
    if not (_WHOLE.fullmatch(found) and int(found) <= FORMAT):
        raise NewerFormat(
            f"the keys below prefix {keys.prefix!r} have format {found[:40].decode('utf-8', 'replace')}, this "
            f"version of jobrunner knows up to format {FORMAT}; nothing was changed: install the version that "
            "the others here have, or choose another prefix"
        )
    if int(found) < OLDEST:
        raise OlderFormat(
            f"the keys below prefix {keys.prefix!r} have format {int(found)}, this version of jobrunner reads formats "
            f"from {OLDEST} on; nothing was changed: let the version that wrote them finish its tasks and delete the "
            "keys, or choose another prefix"
        )


def redacted_names(keys: Keys) -> Call[list[str]]:
    """The names of parameters that pages and commands redact, sorted; none for a user who may not read them."""

    def read(reply: list[bytes] | None) -> list[str]:
        return sorted(name.decode("utf-8", "replace") for name in reply or [])

    return command("SMEMBERS", keys.redact, read=read, may_fail=True)


def add_redacted_names(keys: Keys, names: Sequence[str], *, may_fail: bool = False) -> Call[None]:
    """Adds names to redact."""
    return command("SADD", keys.redact, *names, read=lambda _: None, may_fail=may_fail)


def remove_redacted_names(keys: Keys, names: Sequence[str]) -> Call[int]:
    """Removes names to redact. Reply: how many of them there were."""
    return command("SREM", keys.redact, *names, read=int)
