"""Keeps the leases of what this worker holds, whatever its jobs do to the interpreter.

A job may hold the interpreter lock, or block the event loop, for longer than its lease: no thread of this process
would renew it then. So renewal is done by a small process of its own, the keeper (`keeper.py`). It is told of every
reservation before the first task of it starts, and of everything that ends; what is short never costs it a renewal.

What it is told lies in a pipe until it looks, once a second; a bell has it look at once. That is for leases of less
than fifteen seconds, and for a pipe that is full.
"""

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.clock import sleep
from jobrunner.logs import OwnLog

_LONG_AGO = 0.0
_SHORT_MS = 15_000.0
_FAREWELL_S = 0.2
_BETWEEN_STARTS_S = 0.5
_log = OwnLog("jobrunner.leases")


class Leases:
    """The keeper process as seen by the worker. Its duties:

    1. starts the keeper, and starts it again when it died;
    2. tells it all that is held when it is ready, and from then on what was reserved and what is over;
    3. hears which attempts were asked to stop or lost their lease (`is_stopped`).

    One that is still starting does not read, so it is told nothing: a full pipe would stop the worker.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._first_line = _serve_line(url, prefix)
        self._held: dict[str, Attempt] = {}
        self._stopped: set[str] = set()
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._closing = False
        self._keeper: subprocess.Popen[bytes] | None = None
        self._bell = -1
        self._watcher = threading.Thread(target=self._watch, name="jobrunner-leases", daemon=True)

    def start(self) -> None:
        """Starts the keeper."""
        self._watcher.start()

    @property
    def is_ready(self) -> bool:
        """Whether the keeper runs."""
        return self._ready.is_set()

    def can_keep(self, attempts: list[Attempt]) -> bool:
        """Whether none of these leases can end before the keeper renews it; one that is short might, while the keeper
        is still starting."""
        return self.is_ready or not _is_one_short(attempts)

    def hold(self, attempts: list[Attempt], since_s: float) -> None:
        """Attempts of one reservation, before any of them is begun; they are held since then (monotonic clock)."""
        with self._lock:
            self._held.update((attempt.token, attempt) for attempt in attempts)
            self._tell(_hold_lines(since_s, attempts))
            if self.is_ready and _is_one_short(attempts):
                self._ring()

    def drop(self, attempts: Iterable[Attempt]) -> None:
        """Attempts that are over."""
        with self._lock:
            tokens = [attempt.token for attempt in attempts if self._held.pop(attempt.token, None) is not None]
            if self._stopped:
                self._stopped.difference_update(tokens)
            if tokens:
                self._tell(_drop_line(tokens))

    def attempts(self) -> list[Attempt]:
        """Everything that is held."""
        with self._lock:
            return list(self._held.values())

    def is_stopped(self, token: str) -> bool:
        """Whether the attempt should stop: cancelled, or its lease is lost."""
        return token in self._stopped

    def stop_all(self) -> None:
        """Asks every running attempt to stop."""
        with self._lock:
            self._stopped.update(self._held)

    def close(self) -> None:
        """Ends the keeper; leases end by themselves from now on."""
        with self._lock:
            self._closing = True
            keeper = self._keeper
            self._forget_bell()
        if keeper is not None and keeper.stdin is not None:
            with suppress(OSError):
                keeper.stdin.close()
            try:
                keeper.wait(_FAREWELL_S)
            except subprocess.TimeoutExpired:
                keeper.kill()  # it may be starting still; it has nothing to lose
        self._watcher.join(1)

    def _watch(self) -> None:
        while True:
            with self._lock:
                keeper = None if self._closing else self._open()
            if keeper is not None:
                self._listen(keeper)
            if self._closing:
                return
            _log.warning("the lease keeper died; starting another", held=len(self._held))
            if self._ready.is_set():
                self._ready.clear()
            else:  # it never got so far: do not burn the processor on it
                sleep(_BETWEEN_STARTS_S)

    def _open(self) -> subprocess.Popen[bytes] | None:
        self._forget_bell()
        heard, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        try:
            self._keeper = subprocess.Popen(  # noqa: S603  words of our own
                [sys.executable, "-m", "jobrunner.worker.keeper", str(heard)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pass_fds=[heard],
            )  # fmt: skip
        except OSError as error:
            _log.warning("the lease keeper cannot be started", error=str(error))
            return None
        finally:
            os.close(heard)
        assert self._keeper.stdin is not None
        os.set_blocking(self._keeper.stdin.fileno(), False)
        self._write(self._first_line)
        return self._keeper

    def _forget_bell(self) -> None:
        bell, self._bell = self._bell, -1
        if bell >= 0:
            os.close(bell)

    def _ring(self) -> None:
        with suppress(OSError):  # it rings already, or nobody hears it
            os.write(self._bell, b"!")

    def _tell_all(self) -> None:
        self._write(_hold_lines(_LONG_AGO, self._held.values()))
        self._ring()

    def _tell(self, line: bytes) -> None:
        if self._ready.is_set():
            self._write(line)

    def _write(self, line: bytes) -> None:
        """To the keeper. One that died is found by the watcher, and the next one is told all that is held."""
        if self._keeper is None or self._keeper.stdin is None or self._closing:
            return
        pipe = self._keeper.stdin
        with suppress(OSError):
            while line := line[pipe.write(line) or 0 :]:
                self._ring()
                _wait_for_room(pipe.fileno())

    def _listen(self, keeper: subprocess.Popen[bytes]) -> None:
        assert keeper.stdout is not None
        for line in keeper.stdout:
            word, _, token = line.decode().strip().partition(" ")
            if word == "R":
                with self._lock:
                    self._tell_all()
                    self._ready.set()
            elif token in self._held:
                self._stopped.add(token)
                if word == "L":
                    _log.warning("a lease was lost while its task ran", token=token)
        keeper.wait()


def _is_one_short(attempts: Iterable[Attempt]) -> bool:
    return min(attempt.keepalive_ms for attempt in attempts) < _SHORT_MS


def _wait_for_room(pipe: int) -> None:
    room = select.poll()
    room.register(pipe, select.POLLOUT)
    room.poll()


def _serve_line(url: str, prefix: str) -> bytes:
    return msgspec.json.encode(["serve", url, prefix]) + b"\n"


def _hold_lines(since_s: float, attempts: Iterable[Attempt]) -> bytes:
    alike: dict[tuple[str, float], list[Attempt]] = {}
    for attempt in attempts:
        alike.setdefault((attempt.queue, attempt.keepalive_ms), []).append(attempt)
    lines = [
        ["hold", queue, since_s, ms / 1000, [attempt.token for attempt in some], [attempt.id for attempt in some]]
        for (queue, ms), some in alike.items()
    ]
    return b"".join([msgspec.json.encode(line) + b"\n" for line in lines])


def _drop_line(tokens: list[str]) -> bytes:
    return msgspec.json.encode(["drop", tokens]) + b"\n"
