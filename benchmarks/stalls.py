"""The longest stalls of the server by single commands, and the longest delays of any process by the machine.

The server's own clock runs on while another process has its core, so on a shared machine its slowest command of a
run says more of the machine than of the command. Three figures tell them apart: the slowest command, by name; the time
that all but one in a thousand of its kind stay below; and the longest pause that a process which only sleeps a
millisecond at a time saw in the same run.
"""

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Self

from jobrunner.broker.scripts import load

_SLEEPER = """
import sys, threading, time
stopped, longest = threading.Event(), 0.0
threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
while not stopped.is_set():
    began = time.perf_counter()
    time.sleep(0.001)
    longest = max(longest, time.perf_counter() - began - 0.001)
print(longest * 1000)
"""
_HARNESS = (b"FLUSHALL", b"CONFIG", b"SLOWLOG")


@dataclass(frozen=True, slots=True)
class Stall:
    """Milliseconds: the slowest command and its name, what all but one in a thousand scripts stay below, the pause."""

    longest_ms: float = 0.0
    command: str = "nothing above 1 ms"
    usual_ms: float = 0.0
    pause_ms: float = 0.0

    def or_worse(self, other: Self) -> Self:
        """The worse of each figure."""
        worse = max(self, other, key=lambda one: one.longest_ms)
        usual, pause = max(self.usual_ms, other.usual_ms), max(self.pause_ms, other.pause_ms)
        return type(self)(worse.longest_ms, worse.command, usual, pause)

    def __str__(self) -> str:
        return (f"longest command {self.longest_ms:.1f} ms ({self.command}), 99.9 % of scripts below "
                f"{self.usual_ms:.1f} ms, a sleeping process waited up to {self.pause_ms:.1f} ms")  # fmt: skip


class Watch:
    """Watches a server from its making to `stop`."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        redis.config_set("slowlog-log-slower-than", 1000)
        redis.config_set("slowlog-max-len", 20_000)
        redis.config_set("latency-tracking-info-percentiles", "99.9")
        redis.config_resetstat()
        redis.slowlog_reset()
        self._sleeper = subprocess.Popen(
            [sys.executable, "-c", _SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def stop(self) -> Stall:
        """The result since the watch began."""
        written, _ = self._sleeper.communicate()
        slow = [one for one in self._redis.slowlog_get(20_000) if not one["command"].startswith(_HARNESS)]
        slowest = max(slow, key=lambda one: one["duration"], default=None)
        kinds = self._redis.info("latencystats")
        usual = max((kinds.get(f"latency_percentiles_usec_{kind}", {}).get("p99.9", 0.0)
                     for kind in ("evalsha", "eval")), default=0.0)  # fmt: skip
        if slowest is None:
            return Stall(usual_ms=usual / 1000, pause_ms=float(written))
        return Stall(slowest["duration"] / 1000, _name(slowest["command"]), usual / 1000, float(written))


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
