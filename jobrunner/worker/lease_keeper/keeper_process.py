"""The lease keeper: a process beside a worker that renews its leases, and hands them back when the worker is killed.

Usage: ``python -m jobrunner.worker.lease_keeper.keeper_process WAKE_PIPE MARKS WORKER PIDFD`` (two file descriptors, a
process id and its pidfd, -1 for none), with JSON lines on standard input::

    ["serve", url, prefix]                                   first: the server; not an argument, as `ps` shows those
    ["hold", queue, since_s, keepalive_s, [token…], [id…]]   held since then, by the monotonic clock of this machine
    ["drop", [token…]]                                       these are over

and lines on standard output: ``R`` (ready), ``S token`` (someone asked the task to stop) and ``L token`` (its lease is
lost). It reads when a byte comes on WAKE_PIPE, and once a second: no task waits until this process has been woken. It
gives signs of life in the memory MARKS (see keeper_link.py), and reads there what had begun when the worker died (see
crash_recovery.py).
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError
from jobrunner.loop import back_off
from jobrunner.worker.child_processes import is_suspended
from jobrunner.worker.lease_keeper.crash_recovery import CrashRecovery, WatchedProcess
from jobrunner.worker.lease_keeper.keeper_link import STOPS, SharedMemory
from jobrunner.worker.lease_keeper.renewals import LeaseRenewer
from jobrunner.worker.lease_keeper.standstill import Standstill

_SUSPENDED_PAUSE_S = 0.5
_READ_EVERY_S = 1.0
_REFRESH_EVERY_S = 10.0
_DIES_S = 5.0
"""A process that dies lets go of its pipes before it is dead."""
_CHUNK = 1 << 16
_AFTER_ERROR_S = 0.2
_LONGEST_AFTER_ERROR_S = 1.0
_HANGS_S = 60.0
"""A turn that takes longer hangs, as no exchange with the server does: its time-outs are shorter. Then there are no
more signs of life, and the worker starts another keeper."""
BEAT_S = 0.2
"""The interval of signs of life."""


class Inbox:
    """Reads the lines of the worker, as far as they have arrived, and passes each on."""

    def __init__(self, pipe: int, take: Callable[[bytes], None]) -> None:
        self._pipe = pipe
        self._take = take
        self._begun = b""
        self._lock = threading.Lock()
        os.set_blocking(pipe, False)

    def catch_up(self) -> None:
        """Reads everything written so far. Raises EOFError at the end."""
        with self._lock:
            read = [self._begun]
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(self._pipe, _CHUNK):
                    read.append(chunk)
                raise EOFError
            *lines, self._begun = b"".join(read).split(b"\n")
            for line in lines:
                self._take(line)


class TurnClock:
    """The start of the current turn, checked before each heartbeat: a hanging thread must not look alive."""

    def __init__(self) -> None:
        self.began: float | None = None

    @property
    def hang(self) -> bool:
        """Whether the turn at hand will not end."""
        began = self.began
        return began is not None and monotonic() - began > _HANGS_S


def main() -> None:
    """Serves the worker that started this process, until it ends."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    wake_pipe, marks = int(sys.argv[1]), SharedMemory(int(sys.argv[2]))
    worker = WatchedProcess(int(sys.argv[3]), int(sys.argv[4]))
    first = sys.stdin.buffer.readline()
    if not first:
        os._exit(0)
    _, url, prefix = msgspec.json.decode(first)
    # The worker has checked its URL. A certificate that is being replaced now must not end the keeper.
    endpoint = Endpoint(url, client_name="jobrunner-keeper", checks_files=False)
    broker, keys = Broker(endpoint, retry_timeout_s=0), Keys(prefix)
    keeper = LeaseRenewer(broker, keys, _print)
    inbox = Inbox(sys.stdin.fileno(), keeper.read)
    turns = TurnClock()
    threading.Thread(target=_renew, args=(keeper, inbox, worker, turns), daemon=True).start()
    _print("R")
    with contextlib.suppress(EOFError):
        _listen(inbox, wake_pipe, marks, turns, worker, Standstill(broker, keys, marks, keeper.holds))
    if not marks.ended_well and worker.wait(_DIES_S):
        CrashRecovery(broker, keys, marks, worker.death(marks.own_signal)).run()
    os._exit(0)


def _listen(
    inbox: Inbox, wake_pipe: int, marks: SharedMemory, turns: TurnClock, worker: WatchedProcess, still: Standstill
) -> None:
    """Until the worker is dead, or lets go of its ends of the pipes."""
    poll = select.poll()
    poll.register(wake_pipe, select.POLLIN)
    if worker.descriptor >= 0:
        poll.register(worker.descriptor, select.POLLIN)
    reads_at = refreshes_at = 0.0
    while True:
        if not turns.hang:
            marks.beat()
        ready = {descriptor for descriptor, _ in poll.poll(round(BEAT_S * 1000))}
        if worker.descriptor in ready or os.getppid() != worker.pid:
            return
        if wake_pipe in ready and not os.read(wake_pipe, _CHUNK):
            return  # the worker has closed its end: no wake-up can come
        if ready or monotonic() >= reads_at:
            inbox.catch_up()
            reads_at = monotonic() + _READ_EVERY_S
        if still.has_begun() and not is_suspended(worker.pid):
            inbox.catch_up()
            still.keep_unread()
        if monotonic() >= refreshes_at:
            worker.refresh()
            refreshes_at = monotonic() + _REFRESH_EVERY_S


def _renew(keeper: LeaseRenewer, inbox: Inbox, worker: WatchedProcess, turns: TurnClock) -> None:
    """Ends with the worker, and with the pipe that it writes to."""
    pause, failures = 0.0, 0
    with contextlib.suppress(JobrunnerError):
        keeper.connect()
    while not worker.has_died:
        keeper.changed.wait(pause)
        turns.began = monotonic()
        try:
            inbox.catch_up()  # what is over is not renewed
            pause = _SUSPENDED_PAUSE_S if is_suspended(worker.pid) else keeper.step()
            failures = 0
        except EOFError:
            return
        except Exception:  # whatever it is, the leases that can be kept are kept
            failures += 1
            pause = back_off(failures, _AFTER_ERROR_S, _LONGEST_AFTER_ERROR_S)
        finally:
            turns.began = None


def _print(line: str) -> None:
    with contextlib.suppress(OSError):
        print(line, flush=True)


if __name__ == "__main__":
    main()
