"""Histories that tests make: by hand, call by call, or by simulated queues with concurrent clients and lost replies."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

LEASE_MS = 5_000.0
_START_MS = 1_700_000_000_000.0


def now_ms(at: float) -> float:
    """The time of the server's clock at an instant."""
    return _START_MS + at * 1000


@dataclass(eq=False)
class MadeCall:
    """One call with its reply; `ended` is None when the reply was lost."""

    call: dict[str, Any]
    reply: Any
    began: float
    ended: float | None


@dataclass
class MadeHistory:
    """Calls, attempts in workers as (task, lease, began, ended), and the final snapshot."""

    calls: list[MadeCall] = field(default_factory=list)
    runs: list[tuple[str, int, float, float | None]] = field(default_factory=list)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """By queue, in the final snapshot; and where each task is in it."""
    places: defaultdict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    end: float = 1000.0
    _at: float = 0.0

    def call(self, do: str, queue: str = "q", reply: Any = None, *, at: float | None = None, took: float = 0.1,
             is_lost: bool = False, **words: Any) -> MadeCall:  # fmt: skip
        """Adds a call; without an instant it follows the last one."""
        began = self._at + 1 if at is None else at
        self._at = max(self._at, began + took)
        made = MadeCall({"do": do, "queue": queue, **words}, reply, began, None if is_lost else began + took)
        self.calls.append(made)
        return made

    def enqueue(self, *ids: str, queue: str = "q", priority: int = 1, said: str = "new", **more: Any) -> MadeCall:
        """Adds tasks that are due at once."""
        tasks = [[one, priority, False] for one in ids]
        return self.call("enqueue", queue, {"ok": [said] * len(ids)}, tasks=tasks, **more)

    def reserve(self, taken: dict[str, int], queue: str = "q", *, attempt: int = 1, count: int = 10, first: int = 0,
                at: float | None = None, **more: Any) -> MadeCall:  # fmt: skip
        """Hands out tasks, each under the number of a lease, half-way between call and reply."""
        now = now_ms((self._at + 1 if at is None else at) + 0.05)
        ok = [[task, lease, attempt, now + LEASE_MS] for task, lease in taken.items()]
        return self.call("reserve", queue, {"now": now, "ok": ok}, count=count, first=first, at=at, **more)

    def report(self, do: str, task: str, lease: int, said: str = "ok", queue: str = "q", **more: Any) -> MadeCall:
        """Adds a report on one task."""
        return self.call(do, queue, {"ok": [said]}, tasks=[[task, lease]], **more)

    def left(self, queue: str = "q", settings: dict[str, str] | None = None, **sets: Iterable[str]) -> "MadeHistory":
        """Adds the tasks that are in a queue at the end to the snapshot."""
        self.settings[queue] = settings or {}
        for task, places in self.places.items():
            self.places[task] = [place for place in places if place[0] != queue]
        for state, ids in sets.items():
            for task in ids:
                self.places[task].append((queue, state))
        return self

    def write(self, folder: Path, *, processes: int = 3) -> Path:
        """Writes the files of so many processes, as the recorder does."""
        folder.mkdir(exist_ok=True, parents=True)
        files: list[list[tuple[float, dict[str, Any]]]] = [[] for _ in range(processes)]
        for op, one in enumerate(self.calls):
            lines = files[op % processes]
            lines.append((one.began, {"op": op, "th": 1, "calls": [one.call]}))
            if one.ended is not None:
                lines.append((one.ended, {"op": op, "replies": [one.reply]}))
        for number, (task, lease, began, ended) in enumerate(self.runs):
            files[0].append((began, {"run": number, "th": 1, "task": task, "lease": lease}))
            if ended is not None:
                files[0].append((ended, {"run": number, "outcome": "Succeeded"}))
        found = {"since": self.end, "settings": self.settings, "tasks": self.places}
        files.append([(self.end + 1, {"snapshot": found})])
        for number, lines in enumerate(files):
            start = {"start": {"format": 2, "pid": number, "boot": "one", "words": ""}}
            ordered = [(0.0, start), *sorted(lines, key=lambda line: line[0])]
            text = "".join(json.dumps({"n": n, "t": at, **line}) + "\n" for n, (at, line) in enumerate(ordered))
            (folder / f"{number}-0.jsonl").write_text(text)
        return seal(folder)


def seal(folder: Path) -> Path:
    """Names all files with their sizes."""
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.jsonl")}
    (folder / "seal.json").write_text(json.dumps({"format": 2, "files": sizes}))
    return folder


@dataclass
class _Task:
    queue: str
    priority: int
    turn: float
    attempt: int = 1
    lease: int = 0
    end_ms: float = 0.0
    known: bool = True
    """Whether a client received the reply with the lease."""
    state: str = "waiting"


class SimulatedQueues:
    """Two queues that keep all rules, one call at a time. Each call seems to last longer than its instant, so that
    calls overlap, and of some the reply is lost, whether they were applied or not."""

    def __init__(self, seed: int, *, calls: int = 60, max_inflight: int = 0) -> None:
        self.draw = Random(seed)
        self.history = MadeHistory()
        self.tasks: dict[str, _Task] = {}
        self._at = 1.0
        self._leases = 0
        self._most = max_inflight
        for _ in range(calls):
            self._at += self.draw.choice((0.01, 0.05, 0.05, 0.3))
            if self.draw.random() < 0.03:
                self._at += LEASE_MS / 1000 + 1
            self.draw.choice((self._enqueue, self._reserve, self._reserve, self._report, self._report))()
        self._at += 1000
        self._give_back()
        self.history.end = self._at + 1000
        for queue in ("a", "b"):
            here = {name: task for name, task in self.tasks.items() if task.queue == queue}
            waiting = [name for name, task in here.items() if task.state == "waiting"]
            dead = [name for name, task in here.items() if task.state == "dead"]
            limits = {"max_inflight": str(max_inflight)} if max_inflight else {}
            self.history.left(queue, limits, waiting=waiting, dead=dead)

    def _around(self, do: str, queue: str, reply: Any, *, is_lost: bool, **words: Any) -> None:
        before, behind = self.draw.random() * 0.2, self.draw.random() * 0.2
        made = MadeCall({"do": do, "queue": queue, **words}, reply, self._at - before, self._at + behind)
        if is_lost:
            made.ended = None
        self.history.calls.append(made)

    def _give_back(self) -> None:
        for task in self.tasks.values():
            if task.state == "held" and task.end_ms <= now_ms(self._at):
                task.state, task.attempt = "waiting", task.attempt + 1

    def _enqueue(self) -> None:
        queue, priority = self.draw.choice("ab"), self.draw.choice((1, 1, 2))
        ids = [f"t{len(self.tasks) + n}" for n in range(self.draw.randint(1, 3))]
        is_lost, is_applied = self.draw.random() < 0.15, self.draw.random() < 0.7
        words = [[one, priority, False] for one in ids]
        if is_lost:
            self._around("enqueue", queue, None, is_lost=True, tasks=words)
            if not is_applied and self.draw.random() < 0.5:
                self.tasks.update({one: _Task(queue, priority, 0.0, state="ended") for one in ids})
                return
        self.tasks.update({one: _Task(queue, priority, self._at + n / 1e4) for n, one in enumerate(ids)})
        if not is_lost or self.draw.random() < 0.5:  # sent again, the call has the same reply
            self._around("enqueue", queue, {"ok": ["new"] * len(ids)}, is_lost=False, tasks=words)

    def _reserve(self) -> None:
        self._give_back()
        queue, count = self.draw.choice("ab"), self.draw.randint(1, 4)
        is_lost = self.draw.random() < 0.1
        first, self._leases = self._leases, self._leases + count
        held = sum(task.state == "held" for task in self.tasks.values() if task.queue == queue)
        most = min(count, self._most - held) if self._most else count
        line = [name for name, task in self.tasks.items() if task.state == "waiting" and task.queue == queue]
        line.sort(key=lambda name: (-self.tasks[name].priority, self.tasks[name].turn))
        taken = line[: most if not is_lost or self.draw.random() < 0.5 else 0]
        end_ms = now_ms(self._at) + LEASE_MS
        for n, name in enumerate(taken):
            task = self.tasks[name]
            task.state, task.lease, task.end_ms, task.known = "held", first + n, end_ms, not is_lost
        ok = [[name, self.tasks[name].lease, self.tasks[name].attempt, end_ms] for name in taken]
        reply = {"now": now_ms(self._at), "ok": ok}
        self._around("reserve", queue, reply, is_lost=is_lost, count=count, first=first)

    def _report(self) -> None:
        self._give_back()
        held = [name for name, task in self.tasks.items() if task.state == "held" and task.known]
        if not held:
            return
        name, do = self.draw.choice(held), self.draw.choice(("commit", "commit", "fail", "release", "extend", "move"))
        task, is_lost = self.tasks[name], self.draw.random() < 0.15
        words, queue, said = [[name, task.lease]], task.queue, "ok"
        to = {"to": "b" if queue == "a" else "a"} if do == "move" else {}
        if is_lost and self.draw.random() < 0.5:
            task.known = False  # its holder died with it, and the report never arrived
        elif do == "extend":
            task.end_ms = now_ms(self._at) + LEASE_MS
            said = str(task.end_ms)
        elif do == "commit":
            task.state = "ended"
        elif do == "fail":
            said = self.draw.choice(("scheduled", "dead"))
            task.state, task.turn, task.attempt = "dead" if said == "dead" else "waiting", self._at, task.attempt + 1
        elif do == "release":
            said, task.state = "waiting", "waiting"
        else:
            task.state, task.queue, task.turn, task.attempt = "waiting", to["to"], self._at, 1
        self._around(do, queue, {"ok": [said]}, is_lost=is_lost, tasks=words, **to)
