"""A watching thread that interrupts code that takes too long: one thread for all guards of an executor.

On an event loop each step of a coroutine runs under a guard of its own. asyncio alone cannot end a step that blocks the
loop: the cancellation of a task is delivered by the loop, which does not turn.
"""

import ctypes
import math
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from functools import partial
from types import CodeType
from typing import Any

from jobrunner.clock import monotonic
from jobrunner.errors import AttemptTimeout
from jobrunner.loop import Signal
from jobrunner.outcome import Outcome

_AGAIN_S = 0.01
_LOCK_S = 0.1


class Guard:
    """Raises AttemptTimeout in the thread that made it, unless it is disarmed before `ends` (monotonic clock).

    CPython delivers the error between two bytecodes, so a call that blocks in C ends first.
    """

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.fired = False
        self.thread = threading.get_ident()
        self._thread_id = ctypes.c_ulong(self.thread)

    def fire(self) -> None:
        """Raises the error. Called by the watching thread, with the lock."""
        self.fired = True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread_id, ctypes.py_object(AttemptTimeout))

    def recall(self) -> None:
        """Revokes an error that was raised and not delivered. Called by the thread of the guard, with the lock."""
        if self.fired:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread_id, None)

    def after(self) -> None:
        """Does nothing: `fire` has done all."""


class Alarm:
    """Calls a function in the watching thread, unless it is disarmed before `ends`."""

    def __init__(self, ends: float, ring: Callable[[], object]) -> None:
        self.ends = ends
        self._ring = ring

    def recall(self) -> None:
        """Does nothing: a function that was called cannot be recalled."""

    def after(self) -> None:
        """Calls the function. Called by the watching thread, without the lock."""
        self._ring()


class Watchdog:
    """Fires guards and alarms. Its thread starts with the first of them.

    Arming, firing and disarming take one lock, so an error can hit only the code for which its guard was armed.
    """

    def __init__(self) -> None:
        self._armed: set[Guard | Alarm] = set()
        self._late: set[Guard] = set()
        """The guards that fired and are not disarmed: their jobs go on."""
        self._soonest = math.inf
        # Not a Condition: its enter is Python code, in which the error could be raised and leave it locked.
        self._lock = threading.Lock()
        self._changed = Signal()
        self._thread: threading.Thread | None = None
        self._closed = False

    def arm(self, guard: Guard | Alarm) -> None:
        """Arms a guard: it fires at its `ends`."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._keep_watch, name="jobrunner-deadlines", daemon=True)
                thread.start()  # raises, with nothing armed, if the process may have no more threads
                self._thread = thread
                _running.add(self)
                _hear_what_is_ignored()
            self._armed.add(guard)
            sooner = guard.ends < self._soonest
            if sooner:
                self._soonest = guard.ends
        if sooner:
            self._changed.set()

    def disarm(self, guard: Guard | Alarm) -> None:
        """Disarms a guard: it fires no more, and an error that was not delivered is revoked."""
        with self._lock:
            self._armed.discard(guard)
            self._late.discard(guard)
            guard.recall()

    def raise_again(self) -> bool:
        """Raises the error of this thread's guard once more, soon; False when no guard of the thread has fired."""
        if not self._lock.acquire(timeout=_LOCK_S):  # this thread holds it, as it disarms the guard just now
            return False
        try:
            guard = next((one for one in self._late if one.thread == threading.get_ident()), None)
        finally:
            self._lock.release()
        if guard is None:
            return False
        self.arm(Alarm(monotonic() + _AGAIN_S, partial(self._fire_late, guard)))
        return True

    def close(self) -> None:
        """Ends the thread."""
        self._closed = True
        self._changed.set()

    def _keep_watch(self) -> None:
        while not self._closed:
            self._changed.wait(self._fire_due())

    def _fire_due(self) -> float:
        """Fires guards and alarms that are due; returns the seconds to the next."""
        with self._lock:
            now = monotonic()
            due = [guard for guard in self._armed if guard.ends <= now]
            for guard in due:
                self._armed.discard(guard)
                if isinstance(guard, Guard):
                    self._late.add(guard)
                    self._raise(guard)
            self._soonest = min((guard.ends for guard in self._armed), default=math.inf)
        for guard in due:
            guard.after()
        return self._soonest - monotonic()

    def _fire_late(self, guard: Guard) -> None:
        with self._lock:
            if guard in self._late:
                self._raise(guard)
                self._soonest = min((guard.ends for guard in self._armed), default=math.inf)

    def _raise(self, guard: Guard) -> None:
        """Fires a guard, but not while its thread is in the hook for ignored errors, where Python would silently drop
        the error, too: then it tries again later. Called with the lock."""
        if _hears_what_is_ignored(guard.thread):
            self._armed.add(Alarm(monotonic() + _AGAIN_S, partial(self._fire_late, guard)))
        else:
            guard.fire()


_running: "weakref.WeakSet[Watchdog]" = weakref.WeakSet()
_hooks: set[CodeType] = set()


def _hears_what_is_ignored(thread: int) -> bool:
    """Whether a thread is in the hook for ignored errors. It does not go on while the caller has the interpreter."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way to look at another thread
    while frame is not None and frame.f_code not in _hooks:
        frame = frame.f_back
    return frame is not None


def _hear_what_is_ignored() -> None:
    """Installs the hook for ignored errors: Python ignores an error that is raised in a `__del__` or in a callback of a
    weak reference, so a timeout raised there would be lost, and its job would go on for ever."""
    before = sys.unraisablehook
    if getattr(before, "__module__", None) == __name__:
        return

    def ignored(args: "sys.UnraisableHookArgs") -> None:
        if args.exc_type is not AttemptTimeout or not any(watch.raise_again() for watch in list(_running)):
            before(args)

    _hooks.add(ignored.__code__)
    sys.unraisablehook = ignored


class StepTimeouts:
    """Awaits the coroutine of an attempt, each step under a guard: a step that goes on after the timeout without
    awaiting blocks the loop, and gets an AttemptTimeout."""

    def __init__(self, work: Any, watch: Watchdog, ends: float) -> None:
        self._work = work
        self._watch = watch
        self._ends = ends

    def __await__(self) -> Generator[Any, Any, Outcome]:
        steps = self._work.__await__()
        step: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                awaited = self._guarded(step)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            except AttemptTimeout as error:
                if getattr(self._work, "cr_frame", None) is None:
                    raise
                step = partial(steps.throw, error)  # raised after the end of the step
                continue
            try:
                sent = yield awaited
                step = partial(steps.send, sent)
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                step = partial(steps.throw, error)

    def _guarded(self, step: Callable[[], Any]) -> Any:
        guard = Guard(self._ends)
        if guard.ends <= monotonic():  # the attempt cleans up: its alarm limits that
            return step()
        self._watch.arm(guard)
        try:
            return step()
        finally:
            self._watch.disarm(guard)
