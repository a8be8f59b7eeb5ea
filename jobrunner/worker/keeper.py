"""The lease keeper: a process beside a worker that renews its leases and nothing else.

Usage: ``python -m jobrunner.worker.keeper BELL``, with JSON lines on standard input::

    ["serve", url, prefix]                                   first: the server; not an argument, as `ps` shows those
    ["hold", queue, since_s, keepalive_s, [token…], [id…]]   held since then, by the monotonic clock of this machine
    ["drop", [token…]]                                       these are over

and lines on standard output: ``R`` (ready), ``S token`` (someone asked the task to stop) and ``L token`` (its lease is
lost). It reads when something comes on the pipe BELL (a file descriptor), and once a second: no task waits until this
process has been woken. What must hold: it renews nothing for a worker that is dead (end of input, or another parent) or
suspended (a stopped process can finish nothing, so its tasks belong to others), and never more than the worker told it.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leases
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError
from jobrunner.loop import Signal, back_off

_SHARE = 1 / 3
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 10.0
_SUSPENDED_PAUSE_S = 0.5
_LOOK_EVERY_MS = 1000
_CHUNK = 1 << 16
_AFTER_ERROR_S = 0.2
_LONGEST_AFTER_ERROR_S = 1.0
_SLICE = 500


@dataclass(slots=True, eq=False)
class Batch:
    """Leases that were taken at once and are as long, and when they were last known to be renewed, on the monotonic
    clock. A worker of short tasks tells of thousands a second, so a lease on its own is an entry of a dictionary."""

    queue: str
    keepalive_s: float
    renewed: float
    ids: dict[str, str]
    """By token, of those that are held still."""

    @property
    def due(self) -> float:
        """When a third has passed."""
        return self.renewed + self.keepalive_s * _SHARE


class Keeper:
    """Renews each lease when a third of it has passed."""

    def __init__(self, broker: Broker, keys: Keys, tell: Callable[[str], None]) -> None:
        self._broker = broker
        self._keys = keys
        self._tell = tell
        self._batches: set[Batch] = set()
        self._batch_of: dict[str, Batch] = {}
        self._asked: set[str] = set()
        self._next_turn = 0.0
        self._lock = threading.Lock()
        self.changed = Signal()

    def connect(self) -> None:
        """Opens its connection, and has the server know the script: on a slow way either takes as long as a short
        lease lasts."""
        self._broker.connect()
        self._broker.run(leases.teach_extend())

    def read(self, line: bytes) -> None:
        """Takes in one line of the worker."""
        word, *rest = msgspec.json.decode(line)
        if word == "hold":
            self._hold(*rest)
        elif word == "drop":
            self._drop(*rest)

    def _hold(self, queue: str, since: float, keepalive_s: float, tokens: list[str], ids: list[str]) -> None:
        sooner = False
        with self._lock:
            for first in range(0, len(tokens), _SLICE):
                some = tokens[first : first + _SLICE]
                batch = Batch(queue, keepalive_s, since, dict(zip(some, ids[first : first + _SLICE], strict=True)))
                self._batches.add(batch)
                self._batch_of.update(dict.fromkeys(some, batch))
                sooner = sooner or batch.due < self._next_turn
        if sooner:
            self.changed.set()

    def _drop(self, tokens: list[str]) -> None:
        with self._lock:
            for token in tokens:
                self._forget(token)
            self._asked.difference_update(tokens)

    def _forget(self, token: str) -> bool:
        """Lets go of a lease; returns whether it was held. Called with the lock."""
        batch = self._batch_of.pop(token, None)
        if batch is None:
            return False
        del batch.ids[token]
        if not batch.ids:
            self._batches.discard(batch)
        return True

    def step(self) -> float:
        """Renews what is due; returns the seconds until something is due again."""
        now = monotonic()
        with self._lock:
            due = [batch for batch in self._batches if batch.due <= now]
        by_queue: dict[str, list[Batch]] = {}
        for batch in due:
            by_queue.setdefault(batch.queue, []).append(batch)
        for queue, batches in by_queue.items():
            for some in _slices(batches):
                self._extend(queue, some)
        return self._pause()

    def _extend(self, queue: str, batches: list[Batch]) -> None:
        now = monotonic()
        with self._lock:
            reports = [
                (task_id, token, round(batch.keepalive_s * 1000))
                for batch in batches
                for token, task_id in batch.ids.items()
            ]
        verdicts = self._broker.run(leases.extend(self._keys.queue(queue), reports))
        for batch in batches:
            batch.renewed = now
        for (_, token, _), verdict in zip(reports, verdicts, strict=True):
            if verdict in ("gone", "not_reserved", "lost"):
                with self._lock:
                    was_held = self._forget(token)
                if was_held and verdict != "gone":
                    self._tell(f"L {token}")
            elif verdict.startswith("!") and token not in self._asked:
                self._asked.add(token)
                self._tell(f"S {token}")

    def _pause(self) -> float:
        now = monotonic()
        with self._lock:
            waits = [batch.due - now for batch in self._batches]
            pause = min(max(min(waits, default=_LONGEST_PAUSE_S), _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
            self._next_turn = now + pause
        return pause


def _slices(batches: list[Batch]) -> Iterator[list[Batch]]:
    """As many whole batches at a time as one call renews."""
    some: list[Batch] = []
    count = 0
    for batch in batches:
        if count + len(batch.ids) > _SLICE and some:
            yield some
            some, count = [], 0
        some.append(batch)
        count += len(batch.ids)
    yield some


def is_suspended(pid: int) -> bool:
    """Whether a process is stopped or dead and so cannot finish what it holds."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        state = stat.rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").exists():
            return True
        shown = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603, S607
        state = shown.stdout.strip()[:1] or "X"
    return state in "TtZX"


class Inbox:
    """What the worker wrote, taken in line by line as far as it has come."""

    def __init__(self, pipe: int, take: Callable[[bytes], None]) -> None:
        self._pipe = pipe
        self._take = take
        self._begun = b""
        self._lock = threading.Lock()
        os.set_blocking(pipe, False)

    def catch_up(self) -> None:
        """Takes in what was written and not read. Raises EOFError at the end."""
        with self._lock:
            read = [self._begun]
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(self._pipe, _CHUNK):
                    read.append(chunk)
                raise EOFError
            *lines, self._begun = b"".join(read).split(b"\n")
            for line in lines:
                self._take(line)


def main() -> None:
    """Serves the worker that started this process, until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    first = sys.stdin.buffer.readline()
    if not first:
        os._exit(0)
    _, url, prefix = msgspec.json.decode(first)
    keeper = Keeper(Broker(Endpoint(url, client_name="jobrunner-keeper"), patience_s=0), Keys(prefix), _print)
    inbox = Inbox(sys.stdin.fileno(), keeper.read)
    threading.Thread(target=_renew, args=(keeper, inbox, parent), daemon=True).start()
    _print("R")
    with contextlib.suppress(EOFError):
        _listen(inbox, int(sys.argv[1]))
    os._exit(0)


def _listen(inbox: Inbox, bell: int) -> None:
    ringing = select.poll()
    ringing.register(bell, select.POLLIN)
    while True:
        inbox.catch_up()
        if ringing.poll(_LOOK_EVERY_MS) and not os.read(bell, _CHUNK):
            return  # nobody is left who could ring


def _renew(keeper: Keeper, inbox: Inbox, parent: int) -> None:
    pause, failures = 0.0, 0
    with contextlib.suppress(JobrunnerError):
        keeper.connect()
    while os.getppid() == parent:
        keeper.changed.wait(pause)
        try:
            inbox.catch_up()  # what is over is not renewed
            pause = _SUSPENDED_PAUSE_S if is_suspended(parent) else keeper.step()
            failures = 0
        except EOFError:
            break
        except Exception:  # whatever it is, the leases that can be kept are kept
            failures += 1
            pause = back_off(failures, _AFTER_ERROR_S, _LONGEST_AFTER_ERROR_S)
    os._exit(0)  # the worker is dead; if we were not told by the end of its pipe, something it forked holds that


def _print(line: str) -> None:
    with contextlib.suppress(OSError):
        print(line, flush=True)


if __name__ == "__main__":
    main()
