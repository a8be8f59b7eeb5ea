"""Reserves whose reply was lost with the connection: what they took goes back to its place, with no attempt spent.

Nobody here knows of these leases, so their tasks would wait until they end; a task with one attempt would be dead then
and have never run. The numbers of the leases are known, so the server is asked for them as soon as it answers again. It
is asked more than once, as a command may still be on its way: the system goes on sending what a closed connection left.
The first questions follow each other closely, as they may be lost like the reserve, and leases may last one second.
"""

from collections import deque
from typing import Any, Final

import msgspec

from jobrunner.broker.broker import Broker, run_each_or_errors
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic
from jobrunner.logs import SafeLogger

_log = SafeLogger("jobrunner.worker")
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 32.0
"""Pauses between the questions double, up to this one; behind it nothing is on its way any more."""


class _LostReply(msgspec.Struct):
    queue: str
    first: int
    last: int
    pause_s: float = _FIRST_PAUSE_S
    due_at: float = 0.0


class LostReplies:
    """Any thread notes them; the fetch loop does the rest."""

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._lost: deque[_LostReply] = deque()

    def note(self, queue: str, count: int, first: int) -> None:
        """A reserve of up to `count` tasks may have been applied, under leases with the numbers from `first` on."""
        self._lost.append(_LostReply(queue, first, first + count - 1))

    def hand_back(self) -> None:
        """Asks for the leases when that is due, and releases their tasks. One that does not answer is asked again."""
        now = monotonic()
        due = [one for one in list(self._lost) if one.due_at <= now]  # a copy: others are noted meanwhile
        if not due:
            return
        asked = [leases.taken_in(self._keys.queue(one.queue), one.first, one.last) for one in due]
        found = run_each_or_errors(self._broker, asked)
        self._release([(one.queue, held) for one, held in zip(due, found, strict=True) if _has_any(held)])
        for one, held in zip(due, found, strict=True):
            one.due_at = now + one.pause_s
            if one.pause_s < _LONGEST_PAUSE_S:
                one.pause_s *= 2
            elif not isinstance(held, Exception):
                self._lost.remove(one)

    def _release(self, taken: list[tuple[str, list[tuple[str, int]]]]) -> None:
        calls = [
            leases.release(self._keys.queue(queue), [(task_id, str(number), "") for task_id, number in held])
            for queue, held in taken
        ]
        for (queue, held), verdicts in zip(taken, run_each_or_errors(self._broker, calls), strict=True):
            if not isinstance(verdicts, Exception):
                _log.info("tasks of a lost reply handed back", queue=queue, count=len(held))

    def until_next(self, pause_s: float) -> float:
        """The pause, or less where the server is to be asked before."""
        if not self._lost:
            return pause_s
        return min(pause_s, max(min(one.due_at for one in list(self._lost)) - monotonic(), 0.0))


def _has_any(held: Any) -> bool:
    return bool(held) and not isinstance(held, Exception)
