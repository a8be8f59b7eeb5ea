"""One run: the rounds, in which the contenders take turns, and then what needs no rounds."""

import os
import platform
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from benchmarks import enqueue
from benchmarks.board import OURS, Board
from benchmarks.child import ChildFailed
from benchmarks.contenders import jobrunner, prototype
from benchmarks.drain import Contender, Drain, drain
from benchmarks.idle import idle, latency
from benchmarks.peers.dramatiq_peer import dramatiq
from benchmarks.peers.taskiq_peer import taskiq
from benchmarks.server import PrivateServer

WHAT = ("drain", "enqueue", "bulk", "idle", "latency")
WHO = ("jobrunner", "peers", "yardstick")
IDLE_S = 20.0
STARTS = 200


class Run:
    """Measures `what` for `who`, on a server that is its own. Results: `board`; `about`, one line."""

    def __init__(self, *, what: Collection[str], who: Collection[str], tasks: int, rounds: int, venvs: Path) -> None:
        self._what, self._who, self._tasks, self._rounds = what, who, tasks, rounds
        peers = (dramatiq, taskiq) if "peers" in who and "drain" in what else ()
        self._peers = [install(venvs) for install in peers]
        self.board = Board()
        self.about = ""

    def measure(self, server: PrivateServer) -> None:
        """Takes all figures."""
        versions = [server.version, f"Python {platform.python_version()}", f"redis-py {version('redis')}"]
        machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the run"
        self.about = f"{', '.join(versions + [peer.about for peer in self._peers])}; {machine}"
        for turn in range(self._rounds):
            self._round(server, turn)
        if OURS in self._who:
            self._resting(server)

    def _round(self, server: PrivateServer, turn: int) -> None:
        if "drain" in self._what:
            contenders = self._contenders()
            first = turn % len(contenders)  # nobody always comes first, or after the same one
            for contender in contenders[first:] + contenders[:first]:
                with self._told(f"round {turn + 1}/{self._rounds}, drain, {contender.name}"):
                    self._drain(server, contender)
        for way, tasks in (("enqueue", self._tasks // 10), ("bulk", self._tasks)):
            who = self._enqueuers(turn)
            if way in self._what and who:
                with self._told(f"round {turn + 1}/{self._rounds}, {way}, {' and '.join(who)}"):
                    self._enqueue(server, way, tasks, who)

    def _drain(self, server: PrivateServer, contender: Contender) -> None:
        done = drain(server, contender, int(self._tasks * contender.share))
        for measure, figure in _figures(done).items():
            if done.void is None:
                self.board.add(measure, contender.name, figure)
            else:
                self.board.void(measure, contender.name, done.void)

    def _enqueue(self, server: PrivateServer, way: str, tasks: int, who: list[str]) -> None:
        for name, outcome in enqueue.measure(server, way, tasks, who).items():
            if isinstance(outcome, str):
                self.board.void(way, name, outcome)
            else:
                self.board.add(way, name, outcome)

    def _resting(self, server: PrivateServer) -> None:
        if "idle" in self._what:
            with self._told(f"idle for {IDLE_S:g} s"), self._void_if_it_fails("idle"):
                commands, cpu = idle(server, IDLE_S)
                self.board.add("idle", OURS, commands)
                if cpu is not None:
                    self.board.add("idle_cpu", OURS, cpu)
        if "latency" in self._what:
            with self._told(f"{STARTS} starts"), self._void_if_it_fails("start", "start_p99"):
                middle, worst = latency(server, STARTS)
                self.board.add("start", OURS, middle)
                self.board.add("start_p99", OURS, worst)

    def _contenders(self) -> list[Contender]:
        ours = [jobrunner()] if OURS in self._who else []
        return [*ours, *self._peers, *([prototype()] if "yardstick" in self._who else [])]

    def _enqueuers(self, turn: int) -> list[str]:
        chosen = (OURS if OURS in self._who else "", enqueue.BARE if "yardstick" in self._who else "")
        who = [name for name in chosen if name]
        return who[::-1] if turn % 2 else who

    @contextmanager
    def _void_if_it_fails(self, *measures: str) -> Iterator[None]:
        try:
            yield
        except ChildFailed as failed:
            for measure in measures:
                self.board.void(measure, OURS, str(failed))

    @contextmanager
    def _told(self, step: str) -> Iterator[None]:
        print(f"{step} ...", end=" ", flush=True, file=sys.stderr)
        started = time.monotonic()
        yield
        print(f"{time.monotonic() - started:.1f} s", file=sys.stderr)


def _figures(done: Drain) -> dict[str, float]:
    """The measures of one drain by their names on the board."""
    return {
        "drain": done.tasks / max(done.seconds, 1e-9),
        "round_trips": done.used.round_trips / done.tasks,
        "script_calls": done.used.script_calls / done.tasks,
        "commands": done.used.commands / done.tasks,
        "command_us": done.used.command_us / done.tasks,
        "cpu_us": done.used.cpu_us / done.tasks,
    }
