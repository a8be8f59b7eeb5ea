"""One run: in each round the contenders take turns at every measure."""

import os
import platform
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from benchmarks import enqueue
from benchmarks.board import Board
from benchmarks.child import ChildFailed
from benchmarks.contender import Contender
from benchmarks.contenders import bare_pop, bare_spin, jobrunner, jobrunner_threads, prototype
from benchmarks.drain import NotDelivered
from benchmarks.measures import OURS, PEERS
from benchmarks.open_loop import TooSlow
from benchmarks.peers.roster import ROSTER
from benchmarks.peers.venvs import NotInstalled, environment
from benchmarks.server import PrivateServer
from benchmarks.turns import TURNS

ENQUEUEING = ("enqueue", "bulk")
MEASURED = (
    "drain", "drain2", "waits", "cpu", "enqueue", "bulk", "latency", "open1", "open5", "import", "ready", "idle",
)  # fmt: skip
CONTENDERS = ("jobrunner", "yardstick", *PEERS)


class Run:
    """Measures `what` for `who`, on a server that is its own. Results: `board`; `about`, one line."""

    def __init__(self, *, what: Collection[str], who: Collection[str], tasks: int, rounds: int, venvs: Path) -> None:
        self._what, self._who, self._tasks, self._rounds = what, who, tasks, rounds
        self.board = Board()
        self.about = ""
        self._too_slow: set[tuple[str, str]] = set()
        self._peers = list(self._installed(venvs))
        self._ours: list[Contender] = []
        if OURS in who:  # in an environment like the peers', without what its developers have installed
            python = str(environment(venvs, OURS) / "python")
            self._ours = [jobrunner(python), jobrunner_threads(python)]

    def measure(self, server: PrivateServer) -> None:
        """Takes all figures."""
        versions = [server.version, f"Python {platform.python_version()}", f"redis-py {version('redis')}"]
        machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the run"
        self.about = f"{', '.join(versions + [peer.about for peer in self._peers])}; {machine}"
        self._note_absences()
        for number in range(self._rounds):
            for what in self._what:
                if what in ENQUEUEING:
                    self._enqueue(server, what, number)
                elif TURNS[what].every_round or number == 0:
                    self._turn(server, what, number)

    def _turn(self, server: PrivateServer, what: str, number: int) -> None:
        for contender in _in_turn([one for one in self._contenders() if self._takes_part(one, what)], number):
            with self._progress(number, what, contender.name):
                self._take(server, what, contender, number)

    def _takes_part(self, contender: Contender, what: str) -> bool:
        return contender.takes_part(what) and (what, contender.name) not in self._too_slow

    def _take(self, server: PrivateServer, what: str, contender: Contender, number: int) -> None:
        turn = TURNS[what]
        server.renew()
        try:
            figures = turn.take(server, contender, contender.tasks(int(self._tasks * turn.part)))
        except TooSlow as failed:
            if contender.name in self.board.figures(turn.measures[0]):
                self.board.absences.append(f"{what}, {contender.name}, in round {number + 1}: {failed}")
            else:  # it will not be faster next time
                self._too_slow.add((what, contender.name))
                self.board.absences.append(f"{what}, {contender.name}: {failed}")
            return
        except (NotDelivered, ChildFailed) as failed:
            for measure in turn.measures:
                self.board.void(measure, contender.name, str(failed))
            return
        for measure, figure in figures.items():
            if figure is not None:
                self.board.add(measure, contender.name, figure)

    def _enqueue(self, server: PrivateServer, way: str, number: int) -> None:
        tasks = self._tasks // 10 if way == "enqueue" else self._tasks
        who = self._enqueuers(number)
        if who:
            with self._progress(number, way, " and ".join(who)):
                server.renew()
                for name, outcome in enqueue.measure(server, way, tasks, who).items():
                    self._note(way, name, outcome)
        for peer in _in_turn([peer for peer in self._peers if peer.takes_part(way)], number):
            with self._progress(number, way, peer.name):
                server.renew()
                self._note(way, peer.name, enqueue.measure_peer(server, way, peer.tasks(tasks), peer))

    def _note(self, measure: str, who: str, outcome: float | str) -> None:
        if isinstance(outcome, str):
            self.board.void(measure, who, outcome)
        else:
            self.board.add(measure, who, outcome)

    def _note_absences(self) -> None:
        self.board.absences += [
            f"{what}, {one.name}: {one.cannot[what]}"
            for one in self._contenders()
            for what in self._what
            if what in one.cannot
        ]

    def _contenders(self) -> list[Contender]:
        bare = [prototype(), bare_pop(), bare_spin()] if "yardstick" in self._who else []
        return [*self._ours, *self._peers, *bare]

    def _enqueuers(self, number: int) -> list[str]:
        chosen = (OURS if OURS in self._who else "", enqueue.BARE if "yardstick" in self._who else "")
        who = [name for name in chosen if name]
        return who[::-1] if number % 2 else who

    def _installed(self, venvs: Path) -> Iterator[Contender]:
        for name in PEERS:
            if name in self._who:
                try:
                    yield ROSTER[name](venvs)
                except NotInstalled as failed:
                    self.board.absences.append(f"everything, {name}: {failed}")

    @contextmanager
    def _progress(self, number: int, what: str, who: str) -> Iterator[None]:
        print(f"round {number + 1}/{self._rounds}, {what}, {who} ...", end=" ", flush=True, file=sys.stderr)
        started = time.monotonic()
        yield
        print(f"{time.monotonic() - started:.1f} s", file=sys.stderr)


def _in_turn(contenders: list[Contender], number: int) -> list[Contender]:
    """Another order in each round: no contender always runs first, or always after the same one."""
    first = number % max(len(contenders), 1)
    return contenders[first:] + contenders[:first]
