"""Quarantine: a task that was running when a worker crashed runs alone the next time, so a second crash hits no other.
"""

import math
from collections.abc import Callable, Sequence

from jobrunner.attempt import ALONE, SUSPECT, Attempt
from jobrunner.clock import monotonic

QUARANTINE_S = 5.0
_REST = 4
_LULL_S = 2.0


class Quarantine:
    """Isolates suspects of a crash, at most one at a time.

    A suspect that is reserved with other tasks is kept, and the others go back to their places without a spent attempt.
    The suspect begins when the worker has no other task in hand, or has waited `QUARANTINE_S` for that. No other task
    begins until the suspect ends or has run for `QUARANTINE_S`. Then other tasks, of all queues, have their turn for
    `_REST` times as long as they were held up: so suspects take a fifth of a worker that has other work, and neither
    kind starves the other. A worker that got no other task for `_LULL_S` takes the next suspect then, so suspects that
    run for hours begin one after the other at that pace.

    `clear` is called with a suspect that outlived its quarantine. With executor="processes" a crash ends a child and no
    neighbour, so no task is isolated (`isolates`).
    """

    def __init__(self, clear: Callable[[Attempt], object], *, isolates: bool) -> None:
        self._clear = clear
        self._isolates = isolates
        self._suspect: Attempt | None = None
        self._since = 0.0
        self._has_begun = False
        self._others_first = False
        self._held_up_since = 0.0
        self._others_at = self._rests_until = -math.inf

    @property
    def is_on(self) -> bool:
        """Whether the worker must take no other task."""
        return self._suspect is not None

    @property
    def rest_s(self) -> float:
        """Seconds for which other tasks have their turn, as far as is known."""
        return max(min(self._rests_until, self._others_at + _LULL_S) - monotonic(), 0.0)

    def sort(self, attempts: list[Attempt]) -> tuple[list[Attempt], list[Attempt]]:
        """Splits reserved attempts into those that may start and those to release. One suspect may be kept here
        instead."""
        if self.is_on:
            return [], attempts
        suspects = [attempt for attempt in attempts if attempt.suspect] if self._isolates else []
        if not suspects:
            self._others_at = monotonic()
            return attempts, []
        others = [attempt for attempt in attempts if not attempt.suspect]
        if (self._others_first and others) or self.rest_s > 0:
            self._others_first = False
            if others:
                self._others_at = monotonic()
            return others, suspects
        self._suspect, self._since, self._has_begun = suspects[0], monotonic(), False
        self._held_up_since = self._since
        return [], [attempt for attempt in attempts if attempt is not self._suspect]

    def to_begin(self, in_hand: int) -> Attempt | None:
        """The suspect, when it may begin. `in_hand`: the number of tasks that the worker holds, with the suspect."""
        if self._suspect is None or self._has_begun or (in_hand > 1 and self.left_s > 0):
            return None
        self._has_begun, self._since, self._suspect.suspect = True, monotonic(), ALONE
        return self._suspect

    def take_back(self) -> list[Attempt]:
        """The suspect, unless it has begun."""
        if self._suspect is None or self._has_begun:
            return []
        suspect, self._suspect = self._suspect, None
        return [suspect]

    def is_over(self, ended: Sequence[Attempt]) -> bool:
        """Whether the suspect is among the `ended` attempts, or has run for long enough; then others may begin."""
        if self._suspect is None or not self._has_begun:
            return False
        has_ended = any(attempt is self._suspect for attempt in ended)
        if not has_ended:
            if self.left_s > 0:
                return False
            self._suspect.suspect = SUSPECT
            self._clear(self._suspect)
        self._suspect, self._others_first, self._others_at = None, True, monotonic()
        self._rests_until = self._others_at + _REST * (self._others_at - self._held_up_since)
        return True

    def pause_s(self, in_hand: int) -> float:
        """Seconds until the state changes, if no attempt ends before."""
        return self.left_s if self._has_begun or in_hand > 1 else 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the wait, or the quarantine, is over."""
        return max(self._since + QUARANTINE_S - monotonic(), 0.0)
