"""Keeps the leases of the tasks that this worker holds, whatever its jobs do to the interpreter.

A job may hold the interpreter lock, or block the event loop, for longer than its lease: no thread of this process
would renew it then. So a small process of its own, the lease keeper (`keeper_process.py`), renews leases. The worker
reports every reservation to it before the first of its tasks starts, and every end; a short task costs no renewal.

Messages stay in a pipe until the keeper reads them, once a second; a byte in the wake pipe makes it read at once. The
worker writes that byte for leases below fifteen seconds, and when the pipe is full.

A keeper that is stopped or hangs no longer updates the shared memory (keeper_link.py): the worker kills it and starts
another within two seconds, and never waits for it longer than one.
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
from jobrunner.jobs.registry import waiting_on_crash
from jobrunner.logs import SafeLogger
from jobrunner.worker.child_processes import claims_children, environment_of_others, name_of_this
from jobrunner.worker.lease_keeper.keeper_link import (
    POLL_MS,
    HeldWork,
    KeeperHealth,
    SharedMemory,
    WakePipe,
    drop_line,
    has_space,
    hold_lines,
    serve_line,
    watch_own_kills,
)

_LONG_AGO = 0.0
_SHORT_MS = 15_000.0
_FAREWELL_S = 0.2
_BETWEEN_STARTS_S = 0.5
_CHUNK = 1 << 16
_log = SafeLogger("jobrunner.leases")


class KeeperClient:
    """The keeper process as seen by the worker. Its duties:

    1. starts the keeper, and starts another when it died or gives no signs of life;
    2. sends it all held leases when it is ready, and from then on every reservation and every end;
    3. receives which attempts were asked to stop or lost their lease (`is_stopped`);
    4. marks which attempts have begun, where the keeper can read it (`begin`), and leaves it what it needs to hand
       everything back when this process is killed (`leave`).

    Nothing is sent to a keeper that is still starting: it does not read yet, and a full pipe would block the worker.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._first_line = serve_line(url, prefix)
        self._held: dict[str, Attempt] = {}
        self._stopped: set[str] = set()
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._closing = False
        self._keeper: subprocess.Popen[bytes] | None = None
        self._wake_pipe = WakePipe()
        self._shared = SharedMemory()
        self.begin = self._shared.begin
        """Called with each attempt before it begins, by the thread that runs it."""
        self.clear = self._shared.clear
        """Called with an attempt that outlived its quarantine."""
        self.took = self._shared.took
        """Called with the lowest and the highest lease number of this worker."""
        self._watcher = threading.Thread(target=self._watch, name="jobrunner-leases", daemon=True)

    def start(self) -> None:
        """Starts the keeper."""
        self._watcher.start()

    def leave(self, queues: list[str], *, has_children: bool) -> None:
        """Leaves the keeper the facts it needs when this process is killed. Call it before anything is reserved."""
        name = name_of_this() if has_children or claims_children() else ""
        self._shared.waits = waiting_on_crash()
        self._shared.write(msgspec.json.encode(HeldWork(queues, name, claims_children())))
        watch_own_kills(self._shared)

    @property
    def is_watched(self) -> bool:
        """Whether the keeper is replaced when it dies."""
        return self._watcher.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether the keeper runs."""
        return self._ready.is_set()

    def can_keep(self, attempts: list[Attempt]) -> bool:
        """Whether the keeper renews each of these leases before it ends; a short one may end while the keeper is still
        starting."""
        return self.is_ready or not _is_one_short(attempts)

    def hold(self, attempts: list[Attempt], since_s: float) -> None:
        """Attempts of one reservation, before any of them is begun; they are held since then (monotonic clock)."""
        with self._lock:
            self._held.update((attempt.token, attempt) for attempt in attempts)
            self._send(hold_lines(since_s, attempts))
            if self.is_ready and _is_one_short(attempts):
                self._wake_pipe.ring()

    def drop(self, attempts: Iterable[Attempt]) -> None:
        """Attempts that are over."""
        with self._lock:
            over = [attempt for attempt in attempts if self._held.pop(attempt.token, None) is not None]
            tokens = [attempt.token for attempt in over]
            self._shared.end(over)
            if self._stopped:
                self._stopped.difference_update(tokens)
            if tokens:
                self._send(drop_line(tokens))

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
        """Ends the keeper, which hands nothing back; leases end by themselves from now on."""
        with self._lock:
            self._closing = True
            self._shared.end_well()
            keeper = self._keeper
            self._wake_pipe.close()
        if keeper is not None and keeper.stdin is not None:
            with suppress(OSError):
                keeper.stdin.close()
            try:
                keeper.wait(_FAREWELL_S)
            except subprocess.TimeoutExpired:
                keeper.kill()  # it may be starting still; it has nothing to lose
        self._watcher.join(1)
        self._shared.close()

    def _watch(self) -> None:
        while True:
            with self._lock:
                keeper = None if self._closing else self._open()
            was_ready = keeper is not None and self._listen(keeper)
            if self._closing:
                return
            self._ready.clear()
            _log.warning("the lease keeper died; starting another", held=len(self._held))
            if not was_ready:  # it never got so far: do not burn the processor on it
                sleep(_BETWEEN_STARTS_S)

    def _open(self) -> subprocess.Popen[bytes] | None:
        read_end = self._wake_pipe.open()
        inherited = read_end, self._shared.descriptor
        module = "jobrunner.worker.lease_keeper.keeper_process"
        words = [sys.executable, "-m", module, *map(str, inherited), str(os.getpid())]
        try:
            self._keeper = subprocess.Popen(  # noqa: S603  words of our own
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pass_fds=inherited,
                env=environment_of_others(),
            )  # fmt: skip
        except OSError as error:
            _log.warning("the lease keeper cannot be started", error=str(error))
            return None
        finally:
            os.close(read_end)
        assert self._keeper.stdin is not None
        os.set_blocking(self._keeper.stdin.fileno(), False)
        self._write(self._first_line)
        return self._keeper

    def _send_all(self) -> None:
        self._write(hold_lines(_LONG_AGO, self._held.values()))
        self._wake_pipe.ring()

    def _send(self, line: bytes) -> None:
        if self._ready.is_set():
            self._write(line)

    def _write(self, line: bytes) -> None:
        """Writes to the keeper. The watcher finds a dead keeper, and the next one receives all held leases. A keeper
        that does not read is killed, as the caller must not block."""
        if self._keeper is None or self._keeper.stdin is None or self._closing:
            return
        pipe = self._keeper.stdin
        with suppress(OSError):
            while line := line[pipe.write(line) or 0 :]:
                self._wake_pipe.ring()
                if not has_space(pipe.fileno()):
                    _log.warning("the lease keeper does not read; it is killed")
                    self._ready.clear()
                    self._keeper.kill()
                    return

    def _listen(self, keeper: subprocess.Popen[bytes]) -> bool:
        """Reads from a keeper until its end, or kills one that gives no signs of life. Returns whether it was ever
        ready."""
        assert keeper.stdout is not None
        health, was_ready, begun = KeeperHealth(self._shared, keeper.pid), False, b""
        output = keeper.stdout.fileno()
        written = select.poll()
        written.register(output, select.POLLIN)
        with suppress(OSError):  # a job may have closed what it does not know
            while True:
                if written.poll(POLL_MS):
                    if not (piece := os.read(output, _CHUNK)):
                        break
                    *lines, begun = (begun + piece).split(b"\n")
                    was_ready = self._take_lines(lines) or was_ready
                if health.is_lost(was_ready) and not self._closing:
                    _log.warning("the lease keeper gives no signs of life; it is killed", held=len(self._held))
                    break
        keeper.kill()
        keeper.wait()
        return was_ready

    def _take_lines(self, lines: list[bytes]) -> bool:
        """Handles lines of the keeper; returns whether one of them reported that it is ready."""
        is_ready = False
        for line in lines:
            word, _, token = line.decode().strip().partition(" ")
            if word == "R":
                with self._lock:
                    self._ready.set()
                    self._send_all()
                is_ready = True
            elif token in self._held:
                self._stopped.add(token)
                if word == "L":
                    _log.warning("a lease was lost while its task ran", token=token)
        return is_ready


def _is_one_short(attempts: Iterable[Attempt]) -> bool:
    return min(attempt.keepalive_ms for attempt in attempts) < _SHORT_MS
