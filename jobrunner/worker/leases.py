"""Keeps the leases of what this worker holds, whatever its jobs do to the interpreter.

A job may hold the interpreter lock, or block the event loop, for longer than its lease: no thread of this process
would renew it then. So renewal is done by a small process of its own, the keeper (`keeper.py`). It hears of every
reservation before the first task of it starts, and of everything that ends; what is short never costs it a renewal.
"""

import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import IO

import structlog

from jobrunner.attempt import Attempt

_log = structlog.get_logger("jobrunner.leases")


class Leases:
    """The keeper process as seen by the worker. Its duties:

    1. starts the keeper, and starts it again with all that is held when it died;
    2. tells it what was reserved and what is over;
    3. hears which attempts were asked to stop or lost their lease (`is_stopped`).
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._command = [sys.executable, "-m", "jobrunner.worker.keeper", url, prefix]
        self._held: dict[str, Attempt] = {}
        self._stopped: set[str] = set()
        self._lock = threading.Lock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._closing = False

    def start(self) -> None:
        """Starts the keeper; it is ready within the shortest lease."""
        with self._lock:
            self._start()

    def hold(self, attempts: list[Attempt]) -> None:
        """Attempts of one reservation, before any of them is begun."""
        first = attempts[0]
        with self._lock:
            self._held.update((attempt.token, attempt) for attempt in attempts)
            self._tell(_held_line(first.queue, attempts))

    def drop(self, attempts: Iterable[Attempt]) -> None:
        """Attempts that are over."""
        with self._lock:
            tokens = [attempt.token for attempt in attempts if self._held.pop(attempt.token, None) is not None]
            if self._stopped:
                self._stopped.difference_update(tokens)
            if tokens:
                self._tell(f"D {' '.join(tokens)}\n".encode())

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
        if keeper is not None and keeper.stdin is not None:
            with suppress(OSError):
                keeper.stdin.close()
            try:
                keeper.wait(5)
            except subprocess.TimeoutExpired:
                keeper.kill()

    def _start(self) -> None:
        self._keeper = subprocess.Popen(  # noqa: S603
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, close_fds=True
        )
        assert self._keeper.stdout is not None
        threading.Thread(
            target=self._listen, args=(self._keeper, self._keeper.stdout), name="jobrunner-leases", daemon=True
        ).start()

    def _tell(self, line: bytes) -> None:
        try:
            self._write(line)
        except OSError:
            self._restart()

    def _write(self, line: bytes) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        while line:
            line = line[self._keeper.stdin.write(line) or 0 :]

    def _restart(self) -> None:
        if self._closing:
            return
        _log.warning("the lease keeper died; starting another", held=len(self._held))
        self._start()
        for attempt in self._held.values():
            self._write(_held_line(attempt.queue, [attempt]))

    def _listen(self, keeper: subprocess.Popen[bytes], lines: IO[bytes]) -> None:
        for line in lines:
            word, _, token = line.decode().strip().partition(" ")
            if word in ("S", "L"):
                self._stopped.add(token)
            if word == "L":
                _log.warning("a lease was lost while its task ran", token=token)
        keeper.wait()
        with self._lock:
            if keeper is self._keeper:
                self._restart()


def _held_line(queue: str, attempts: list[Attempt]) -> bytes:
    words = [f"H {queue}"]
    words += [f"{attempt.id} {attempt.token} {attempt.keepalive_ms:.0f}" for attempt in attempts]
    return (" ".join(words) + "\n").encode()
