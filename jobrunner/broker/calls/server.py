"""Calls about the server itself."""

from dataclasses import dataclass

from jobrunner.broker.call import Call, command


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

    @property
    def evicts(self) -> bool:
        """Whether the server may delete tasks to make room."""
        return self.maxmemory_policy not in ("noeviction", "")


def facts() -> Call[ServerFacts]:
    """What the server says of itself."""
    return command("INFO", read=_facts)


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
    )
