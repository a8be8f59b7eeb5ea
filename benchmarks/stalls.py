"""The longest time that the server was held up, by what it did and by the machine, told apart.

A shared machine takes the processor away from a server in the middle of a command, and the server's own clock runs on.
So a process asks the server for a PONG again and again, and takes off from each answer's delay the time in which the
server's main thread and the process itself were ready to run and had no processor (/proc/PID/schedstat, Linux only;
what a hypervisor takes away is not in there). What is left is the server's own work: `own_ms`. Beside it stand the
slowest command by the server's clock, the time that all but one in a thousand scripts stay below, and the longest delay
with the machine's part.
"""

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Self

from jobrunner.broker.scripts import load

_PROBE = """
import socket, sys, threading, time
host, port, pid = sys.argv[1], int(sys.argv[2]), sys.argv[3]
server, own = (open(f"/proc/{one}/schedstat", "rb", buffering=0) for one in (pid, "self"))

def held_up_ns():
    server.seek(0), own.seek(0)
    return int(server.read().split()[1]) + int(own.read().split()[1])

stopped = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
link = socket.create_connection((host, port))
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
whole = rest = 0
while not stopped.is_set():
    time.sleep(0.001)
    before, began = held_up_ns(), time.perf_counter_ns()
    link.sendall(b"PING\\r\\n")
    link.recv(64)
    took = time.perf_counter_ns() - began
    whole, rest = max(whole, took), max(rest, took - (held_up_ns() - before))
print(whole / 1e6, rest / 1e6)
"""
_HARNESS = (b"FLUSHALL", b"CONFIG", b"SLOWLOG")


@dataclass(frozen=True, slots=True)
class Stall:
    """Milliseconds: the longest that the server's own work held others up, and the same with what the machine did; the
    slowest command by the server's clock and its name, and what all but one in a thousand scripts stay below."""

    own_ms: float = 0.0
    with_machine_ms: float = 0.0
    longest_ms: float = 0.0
    command: str = "nothing above 1 ms"
    usual_ms: float = 0.0

    def or_worse(self, other: Self) -> Self:
        """The worse of each figure."""
        worse = max(self, other, key=lambda one: one.longest_ms)
        own, whole = max(self.own_ms, other.own_ms), max(self.with_machine_ms, other.with_machine_ms)
        return type(self)(own, whole, worse.longest_ms, worse.command, max(self.usual_ms, other.usual_ms))

    def __str__(self) -> str:
        whole = f"{self.with_machine_ms:.1f} with the machine's own"
        slowest = f"slowest command {self.longest_ms:.1f} ms ({self.command})"
        usual = f"99.9 % of scripts below {self.usual_ms:.1f} ms"
        return f"longest stall {self.own_ms:.1f} ms ({whole}), {slowest}, {usual}"


class Watch:
    """Watches a server from its making to `stop`."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        redis.config_set("slowlog-log-slower-than", 1000)
        redis.config_set("slowlog-max-len", 20_000)
        redis.config_set("latency-tracking-info-percentiles", "99.9")
        redis.config_resetstat()
        redis.slowlog_reset()
        at = redis.connection_pool.connection_kwargs
        about = redis.info("server")
        self._probe = subprocess.Popen(
            [sys.executable, "-c", _PROBE, at["host"], str(at["port"]), str(about["process_id"])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def stop(self) -> Stall:
        """The result since the watch began."""
        said, _ = self._probe.communicate()
        whole, own = map(float, said.split())
        slow = [one for one in self._redis.slowlog_get(20_000) if not one["command"].startswith(_HARNESS)]
        slowest = max(slow, key=lambda one: one["duration"], default=None)
        kinds = self._redis.info("latencystats")
        usual = max((kinds.get(f"latency_percentiles_usec_{kind}", {}).get("p99.9", 0.0)
                     for kind in ("evalsha", "eval")), default=0.0)  # fmt: skip
        if slowest is None:
            return Stall(own, whole, usual_ms=usual / 1000)
        return Stall(own, whole, slowest["duration"] / 1000, _name(slowest["command"]), usual / 1000)


def _name(command: bytes) -> str:
    words = command.split(b" ", 2)
    if words[0] == b"EVALSHA":
        return _script_names().get(words[1], "a script")
    return words[0].decode("ascii", "replace")


@cache
def _script_names() -> dict[bytes, str]:
    folder = files("jobrunner.broker") / "lua"
    names = [one.name.removesuffix(".lua") for one in folder.iterdir() if one.name.endswith(".lua")]
    return {load(name).sha: name for name in names}
