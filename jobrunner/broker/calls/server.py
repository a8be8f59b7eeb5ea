"""Calls about the server itself."""

import re
from dataclasses import dataclass
from functools import partial

from jobrunner.broker.call import Call, command
from jobrunner.errors import OutcomeUnknown

_DATABASE = re.compile(r"db[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What matters of INFO. Sizes in bytes; `maxmemory` 0 means no limit."""

    name: str
    version: str
    maxmemory: int
    maxmemory_policy: str
    used_memory: int
    clients: int
    aof: bool
    aof_written: bool = True
    """Whether its last write to the append-only file went well."""
    max_clients: int = 0
    """0: not told."""
    replica: bool = False
    replicas: int = 0
    databases: tuple[int, ...] = ()
    """Numbers of those that hold keys."""

    @property
    def evicts(self) -> bool:
        """Whether the server may delete tasks to make room."""
        return self.maxmemory_policy not in ("noeviction", "")


def facts() -> Call[ServerFacts]:
    """What the server says of itself."""
    return command("INFO", read=_facts)


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
            f"written, but not {where} within {timeout_s:g} s: it is lost if the server is lost now; send it again "
            "with the same id, or look at the server"
        )


def fsync_policy() -> Call[str]:
    """When the append-only file goes to the disk: "always", "everysec" or "no"; empty when it is not told."""
    return command("CONFIG", "GET", "appendfsync", read=lambda reply: reply[1].decode() if len(reply) > 1 else "")


def server_time() -> Call[float]:
    """The server's clock, Unix ms, as scripts compute it."""
    return command("TIME", read=lambda reply: int(reply[0]) * 1000 + int(reply[1]) / 1000)


def ping() -> Call[bool]:
    """Whether it answers."""
    return command("PING", read=lambda reply: reply == b"PONG")


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
        max_clients=int(found.get("maxclients", 0)),
        replica=found.get("role") == "slave",
        replicas=int(found.get("connected_slaves", 0)),
        databases=tuple(sorted(int(name[2:]) for name in found if _DATABASE.fullmatch(name))),
    )
