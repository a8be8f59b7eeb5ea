"""How long a server holds up whoever asks, told apart from how long the machine it shares does.

A process of its own asks the server about every millisecond and takes the time. The kernel says how much of that the
server had a processor for: that is the stall which the server makes, and a machine busy with other things cannot add to
it. Beside it stand the longest answer by the clock, by how much longer than asked the machine let a sleeper sleep, and
the longest command in the server's log of slow ones, which is by the clock too.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import redis

from tests.acceptance.forks import forks
from tests.conftest import Server, wait_for

_LOOK_S = 0.001
_LOGGED_FROM_US = 1_000
_ENTRIES = 100_000


@dataclass(slots=True)
class Stalls:
    """The longest ones, in milliseconds."""

    server_ms: float = 0.0
    """That the server ran while somebody waited for its answer."""
    answer_ms: float = 0.0
    """Until an answer came."""
    machine_ms: float = 0.0
    """That a sleep took longer than asked."""
    command_ms: float = 0.0
    """One command, by the clock of the server."""
    asked: int = 0


@contextmanager
def stalls(server: Server, raw: redis.Redis) -> Iterator[Stalls]:
    """Measures while the body runs; the figures are there behind it."""
    found, over, said = Stalls(), server.folder / "over", server.folder / "stalls"
    over.unlink(missing_ok=True)
    said.unlink(missing_ok=True)
    raw.config_set("slowlog-log-slower-than", _LOGGED_FROM_US)
    raw.config_set("slowlog-max-len", _ENTRIES)
    process = forks().Process(target=_watch, args=(str(server.socket), server.pid, over, said), daemon=True)
    process.start()
    try:
        wait_for(said.exists, timeout_s=60)
        raw.slowlog_reset()
        yield found
        over.touch()
        process.join(60)
        found.server_ms, found.answer_ms, found.machine_ms, found.asked = json.loads(said.read_text())
        slowest = max(raw.slowlog_get(_ENTRIES), key=itemgetter("duration"), default={"duration": 0})
        found.command_ms = round(slowest["duration"] / 1000, 2)
    finally:
        process.kill()
        process.join()


@contextmanager
def right_of_way(pid: int) -> Iterator[None]:
    """This thread and that process go before all others of the machine, where that is allowed: what is measured then is
    theirs. Only for bodies that wait most of the time."""
    threads = (0, pid)
    with suppress(PermissionError):
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
    yield
    with suppress(PermissionError):
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _watch(socket: str, pid: int, over: Path, said: Path) -> None:
    server_s, answer_s, machine_s, asked = 0.0, 0.0, 0.0, 0
    with redis.Redis(unix_socket_path=socket, protocol=2) as connection, right_of_way(0):
        connection.ping()
        said.touch()
        while not over.exists():
            slept_from = time.perf_counter()
            time.sleep(_LOOK_S)
            ran_before_s, began = ran_s(pid), time.perf_counter()
            machine_s = max(machine_s, began - slept_from - _LOOK_S)
            connection.ping()
            took_s = time.perf_counter() - began
            answer_s = max(answer_s, took_s)
            server_s = max(server_s, min(ran_s(pid) - ran_before_s, took_s))
            asked += 1
    spans = [round(seconds * 1000, 2) for seconds in (server_s, answer_s, machine_s)]
    said.write_text(json.dumps([*spans, asked]))


def ran_s(pid: int) -> float:
    """For how long the thread of the server that answers has had a processor."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
