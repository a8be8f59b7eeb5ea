"""Measures how long a server delays its clients, apart from the delays of the machine that it shares.

A process of its own asks the server about every millisecond and takes the time. The kernel says how much of that the
server had a processor for: that is the stall which the server makes, and a machine busy with other things cannot add
to it. Beside it stand the longest answer by the clock and the longest command in the server's log of slow ones, which
is by the clock too; and for comparison how long the machine held up that process itself, which does what takes no
time: it sleeps for a millisecond, and touches memory that it has not touched before, meanwhile now and then, and behind
it without a pause for as long as it took. On a virtual machine either may take tens of milliseconds, when the host does
something else first.
"""

import json
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import redis

from tests.acceptance.forks import forks
from tests.reliability.repeating import repeating
from tests.support.server import Server
from tests.support.waiting import wait_for

_LOOK_S = 0.001
_LOGGED_FROM_US = 1_000
_ENTRIES = 100_000
_WORKS_S, _RESTS_MS = 0.4, 60
_PAGES_AT_ONCE, _PAGES = 25, 25_000


@dataclass(slots=True)
class Stalls:
    """The longest ones, in milliseconds."""

    server_ms: float = 0.0
    """CPU time of the server while a client waited for its answer."""
    answer_ms: float = 0.0
    """Until an answer came."""
    machine_ms: float = 0.0
    """That a sleep took longer than asked, or that touching 25 pages of fresh memory took."""
    command_ms: float = 0.0
    """One command, by the clock of the server."""
    asked: int = 0

    @property
    def beyond_ms(self) -> float:
        """The longest command, without what the machine held up a bare loop meanwhile."""
        return round(max(self.command_ms - self.machine_ms, 0.0), 2)


@contextmanager
def stalls(server: Server, raw: redis.Redis) -> Iterator[Stalls]:
    """Measures while the body runs; the figures are complete after it."""
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
        process.join()
        found.server_ms, found.answer_ms, found.machine_ms, found.asked = json.loads(said.read_text())
        slowest = max(raw.slowlog_get(_ENTRIES), key=itemgetter("duration"), default={"duration": 0})
        found.command_ms = round(slowest["duration"] / 1000, 2)
    finally:
        process.kill()
        process.join()


@contextmanager
def right_of_way(pid: int) -> Iterator[None]:
    """Gives this thread and that process real-time priority, where that is allowed, so that delays are their own. Only
    for bodies that wait most of the time."""
    threads = (0, pid)
    with suppress(PermissionError):
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
    yield
    with suppress(PermissionError):
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def rests(server: Server) -> Iterator[None]:
    """Lets a server that has the right of way rest for a moment in each second: from what runs in real time for longer
    the kernel takes 50 ms away, in the middle of a command."""
    with (
        server.connect() as connection,
        repeating(lambda: connection.execute_command("CLIENT", "PAUSE", _RESTS_MS), every_s=_WORKS_S),
    ):
        yield


def _watch(socket: str, pid: int, over: Path, said: Path) -> None:
    server_s, answer_s, machine_s, asked = 0.0, 0.0, 0.0, 0
    memory, since = _Fresh(), time.perf_counter()
    with redis.Redis(unix_socket_path=socket, protocol=2) as connection, right_of_way(0):
        connection.ping()
        said.touch()
        while not over.exists():
            slept_from = time.perf_counter()
            time.sleep(_LOOK_S)
            ran_before_s, began = ran_s(pid), time.perf_counter()
            connection.ping()
            took_s = time.perf_counter() - began
            machine_s = max(machine_s, began - slept_from - _LOOK_S, memory.touch())
            answer_s = max(answer_s, took_s)
            server_s = max(server_s, min(ran_s(pid) - ran_before_s, took_s))
            asked += 1
        machine_s = max(machine_s, max(_touching(memory, time.perf_counter() - since), default=0.0))
    spans = [round(seconds * 1000, 2) for seconds in (server_s, answer_s, machine_s)]
    said.write_text(json.dumps([*spans, asked]))


def _touching(memory: "_Fresh", seconds: float) -> Iterator[float]:
    """The times that touches took within so many seconds, with rests like those of the server."""
    ends = time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        while time.perf_counter() < began + _WORKS_S:
            yield memory.touch()
        time.sleep(_RESTS_MS / 1000)


class _Fresh:
    """Memory that no process has touched yet."""

    def __init__(self) -> None:
        self._pages = mmap.mmap(-1, _PAGES * mmap.PAGESIZE)
        self._next = 0

    def touch(self) -> float:
        """Writes to the next 25 pages; returns the seconds that this took."""
        if self._next == _PAGES:
            self._pages.close()
            self._pages, self._next = mmap.mmap(-1, _PAGES * mmap.PAGESIZE), 0
        first, self._next = self._next, self._next + _PAGES_AT_ONCE
        began = time.perf_counter()
        for page in range(first, self._next):
            self._pages[page * mmap.PAGESIZE] = 1
        return time.perf_counter() - began


def ran_s(pid: int) -> float:
    """For how long the thread of the server that answers has had a processor."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
