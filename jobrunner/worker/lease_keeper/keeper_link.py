"""The worker's end of the lease keeper: the lines it writes, the wake pipe, and the keeper's signs of life."""

import os
import select
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic
from jobrunner.worker.lease_keeper.keeper_process import is_suspended
from jobrunner.worker.lease_keeper.shared_memory import SharedMemory

POLL_MS = 250
_LONGEST_START_S = 30.0
_LONGEST_WAIT_MS = 1000
"""For space in the pipe. A keeper reads within milliseconds of a byte in the wake pipe."""
_MISSED = 6
"""Polls without a heartbeat after which a keeper counts as hanging; it sends one every 0.2 s."""
_MISSED_STOPPED = 2
"""The same of a keeper that the system reports as stopped."""


class WakePipe:
    """A byte in it makes the keeper read its messages at once. Errors are ignored: a job may have closed the
    descriptor, and a keeper that is not woken reads within a second."""

    def __init__(self) -> None:
        self._descriptor = -1

    def open(self) -> int:
        """Opens a new one; returns the end of the keeper, which the caller closes when it is inherited."""
        self.close()
        heard, self._descriptor = os.pipe()
        os.set_blocking(self._descriptor, False)
        return heard

    def close(self) -> None:
        """Closes the end of the worker."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def ring(self) -> None:
        """Wakes the keeper. A pipe that is full has woken it already."""
        with suppress(OSError):
            os.write(self._descriptor, b"!")


class KeeperHealth:
    """Whether a keeper gives signs of life. Polls are counted, not time: after a machine or this process was suspended,
    the keeper had no time to give any, and gets it."""

    def __init__(self, marks: SharedMemory, pid: int) -> None:
        self._marks = marks
        self._pid = pid
        self._beats = marks.beats
        self._missed = 0
        self._looked_at = self._began = monotonic()

    def is_lost(self, is_ready: bool) -> bool:
        """Whether it is stopped or hangs, or does not come to be ready."""
        now = monotonic()
        if now - self._looked_at < POLL_MS / 1000:
            return False
        self._looked_at = now
        if not is_ready:  # one that starts gives no signs of life yet
            self._missed = self._missed + 1 if is_suspended(self._pid) else 0
            return self._missed >= _MISSED_STOPPED or now - self._began > _LONGEST_START_S
        beats = self._marks.beats
        if beats != self._beats:
            self._beats, self._missed = beats, 0
            return False
        self._missed += 1
        return self._missed >= _MISSED or (self._missed >= _MISSED_STOPPED and is_suspended(self._pid))


def has_space(pipe: int) -> bool:
    """Waits until a pipe takes more, or its reader is dead; returns whether that was so before the time was up."""
    space = select.poll()
    space.register(pipe, select.POLLOUT)
    return bool(space.poll(_LONGEST_WAIT_MS))


def serve_line(url: str, prefix: str) -> bytes:
    """The first line: the server of the leases."""
    return msgspec.json.encode(["serve", url, prefix]) + b"\n"


def hold_lines(since_s: float, attempts: Iterable[Attempt]) -> bytes:
    """Lines for attempts held since then (monotonic clock): one for each queue and length of lease."""
    alike: dict[tuple[str, float], list[Attempt]] = {}
    for attempt in attempts:
        alike.setdefault((attempt.queue, attempt.keepalive_ms), []).append(attempt)
    lines = [
        ["hold", queue, since_s, ms / 1000, [attempt.token for attempt in some], [attempt.id for attempt in some]]
        for (queue, ms), some in alike.items()
    ]
    return b"".join([msgspec.json.encode(line) + b"\n" for line in lines])


def drop_line(tokens: list[str]) -> bytes:
    """The line for attempts that are over."""
    return msgspec.json.encode(["drop", tokens]) + b"\n"
