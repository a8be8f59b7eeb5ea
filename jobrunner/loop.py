"""A loop owns thread, stop, crash report and back-off; it repeats a `step`, which does one turn.

A step returns the seconds until the next turn. Tests call `step()` and need no thread.
"""

import math
import random
import threading
from collections.abc import Callable
from contextlib import suppress

from jobrunner.clock import monotonic
from jobrunner.errors import ServerError
from jobrunner.logs import SafeLogger

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 3.0
_LOG_EVERY_S = 10.0


class Signal:
    """A flag one thread waits for and any thread sets. Cheaper than threading.Event; waiting clears it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wakes the waiter, now or as soon as it waits."""
        with suppress(RuntimeError):  # set already
            self._lock.release()

    def wait(self, timeout_s: float) -> bool:
        """Waits until it is set, at most `timeout_s`; returns whether it was."""
        if timeout_s <= 0:
            return self._lock.acquire(blocking=False)
        return self._lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))


class Complaints:
    """Logs the faults of loops: one line each ten seconds and one at the end, for all loops together.

    A server that is away is one fault of all loops that share the object, and over when it is over for the last of
    them; any other error is a loop's own fault.
    """

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}
        self._open: set[str] = set()
        self._troubled: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def may_tell(self, trouble: str, who: str = "") -> bool:
        """Whether ten seconds have passed since this fault, which `who` has now, was last logged."""
        with self._lock:
            self._troubled.setdefault(trouble, set()).add(who)
            now = monotonic()
            if now - self._told_at.get(trouble, -_LOG_EVERY_S) < _LOG_EVERY_S:
                return False
            self._told_at[trouble] = now
            self._open.add(trouble)
            return True

    def may_tell_end(self, trouble: str, who: str = "") -> bool:
        """Whether a fault was logged and its end was not, and `who` was the last to have it."""
        with self._lock:
            troubled = self._troubled.get(trouble, set())
            troubled.discard(who)
            if troubled or trouble not in self._open:
                return False
            self._open.remove(trouble)
            return True


class Loop:
    """Repeats a step in a thread. Its duties:

    1. runs one turn after the other, waiting as long as each says, less when woken;
    2. on an error backs off (doubling, with jitter) and goes on, for ever: a server that is away comes back;
    3. logs errors, and the recovery (see Complaints);
    4. stops on request, after the current turn.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float],
        complaints: Complaints | None = None,
        progressed_at: Callable[[], float] = lambda: -math.inf,
        is_well: Callable[[], bool] = lambda: True,
    ) -> None:
        """`progressed_at`: the instant of a turn's last progress (monotonic clock), for a loop with long turns.
        `is_well`: whether a turn without an error proves that the fault is over; a turn that did not use the server
        does not."""
        self.name = name
        self._step = step
        self._progressed_at = progressed_at
        self._is_well = is_well
        self._signal = Signal()
        self._stopping = False
        self._failures = 0
        """Failures in a row, for the pauses."""
        self._faults = 0
        """Failures since the fault began."""
        self._trouble = ""
        self._complaints = complaints or Complaints()
        self._thread: threading.Thread | None = None
        self._is_started = False
        self._ended = threading.Event()
        self._turn_began: float | None = None
        self._turning = threading.Lock()
        self._rests_until = math.inf
        self._log = SafeLogger("jobrunner.loop")

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self.run, name=f"jobrunner-{self.name}", daemon=True).start()
        self._is_started = True

    def wake(self) -> None:
        """Begins the next turn now."""
        self._signal.set()

    def turn_here(self) -> None:
        """Runs one turn in the calling thread, which saves the time to wake the loop's thread; or only wakes the loop
        while it has a turn."""
        if not self._turning.acquire(blocking=False):
            self.wake()
            return
        try:
            pause = 0.0 if self._stopping else self.turn()
        finally:
            self._turning.release()
        if monotonic() + pause < self._rests_until:
            self.wake()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Stops after the current turn. Returns whether the loop ended within `timeout_s`."""
        self._stopping = True
        self._signal.set()
        if not self._is_started or self._thread is threading.current_thread():
            return True
        ends = monotonic() + timeout_s
        if not self._ended.wait(timeout_s) or not self._turning.acquire(timeout=max(ends - monotonic(), 0.0)):
            return False
        self._turning.release()
        return True

    @property
    def is_alive(self) -> bool:
        """Whether the loop was started and has not ended."""
        return self._is_started and not self._ended.is_set()

    @property
    def has_died(self) -> bool:
        """Whether its thread has ended without a call of `stop`: a step raised a BaseException that is no Exception."""
        return self._ended.is_set() and not self._stopping

    @property
    def busy_s(self) -> float:
        """Seconds since the current turn began or last progressed; 0 between turns. It grows while a turn hangs."""
        began = self._turn_began
        return 0.0 if began is None else monotonic() - max(began, self._progressed_at())

    def run(self) -> None:
        """Repeats turns in the calling thread until it is stopped."""
        self._thread = threading.current_thread()
        try:
            while not self._stopping:
                with self._turning:
                    pause = self.turn()
                    self._rests_until = monotonic() + pause
                if pause > 0 and not self._stopping:
                    self._signal.wait(pause)
        finally:
            self._complaints.may_tell_end(self._trouble, self.name)  # the others' recovery must not wait for this loop
            self._ended.set()

    def turn(self) -> float:
        """Runs one turn and handles its error; returns the seconds to the next."""
        self._turn_began = monotonic()
        try:
            pause = self._step()
        except Exception as error:
            return self._after_failure(error)
        finally:
            self._turn_began = None
        self._failures = 0
        if self._faults and self._is_well():
            self._after_recovery()
        return pause

    def _after_recovery(self) -> None:
        if self._complaints.may_tell_end(self._trouble, self.name):
            self._log.info("recovered", loop=self.name, failures=self._faults)
        self._faults = 0

    def _after_failure(self, error: Exception) -> float:
        self._failures += 1
        self.complain(error)
        return back_off(self._failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    def complain(self, error: Exception) -> None:
        """Logs an error as one of this turn. A step calls it for the error of a part of it, for which the rest of its
        work must not back off."""
        self._faults += 1
        before, self._trouble = self._trouble, "server" if isinstance(error, ServerError) else self.name
        if self._trouble != before:
            self._complaints.may_tell_end(before, self.name)
        if self._complaints.may_tell(self._trouble, self.name) and not self._stopping:
            shown = f"{type(error).__name__}: {error}"
            self._log.warning("loop failed", loop=self.name, error=shown, failures=self._faults)


def back_off(failures: int, first_s: float, longest_s: float) -> float:
    """Seconds to pause after `failures` failures in a row; random, so that loops do not retry at the same time."""
    pause: float = min(first_s * 2 ** min(failures - 1, 10), longest_s)
    return pause * random.uniform(0.5, 1.0)
