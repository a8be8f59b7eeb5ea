"""Attempts at suspects, in a process of their own: tasks that processes died with again and again.

On threads a job that takes its process down costs all that run beside it an attempt as well, and comes back together
with them, until they are all dead. So who lost two leases without a report is tried where only it can be harmed.
"""

import sys
from collections.abc import Callable, Iterable

from jobrunner.attempt import Attempt
from jobrunner.jobs.registry import definition_for
from jobrunner.outcome import Outcome
from jobrunner.worker.executors.handover import RunAttempt, Slots
from jobrunner.worker.executors.processes import ProcessSlot
from jobrunner.worker.runner import Runner

_SUSPECT = 2
"""The first may have been a kill, a deploy or a machine that went away: that says nothing of the task."""
_MAIN = "__main__"


def is_suspect(attempt: Attempt) -> bool:
    """Whether it is to run alone. A job of the main program is not: no other process could import it."""
    return attempt.expiries >= _SUSPECT and _module_to_import(attempt) != ""


class Alone:
    """Slots that run suspects in child processes, and all others as `slots` do.

    A thread keeps its child for the next suspect, and ends it before it runs something else.
    """

    def __init__(
        self,
        slots: Slots,
        greeting: Callable[[Iterable[str]], bytes],
        runner: Runner,
        is_stopped: Callable[[str], bool],
    ) -> None:
        self._slots = slots
        self._greeting = greeting
        self._runner = runner
        self._is_stopped = is_stopped
        self._open: set[ProcessSlot] = set()
        self._closed = False

    def new_run(self) -> RunAttempt:
        """The function of one more thread."""
        together = self._slots.new_run()
        slot: ProcessSlot | None = None
        knows = ""

        def run(attempt: Attempt) -> Outcome:
            nonlocal slot, knows
            module = _module_to_import(attempt) if attempt.expiries >= _SUSPECT else ""
            if slot is not None and module != knows:
                self._end(slot)
                slot = None
            if not module:
                return together(attempt)
            if slot is None:
                slot, knows = self._begin(module), module
            return slot.run(attempt)

        return run

    def close(self) -> None:
        """Kills the children; what they ran is handed back."""
        self._closed = True
        self._slots.close()
        for slot in list(self._open):
            slot.close()

    def _begin(self, module: str) -> ProcessSlot:
        slot = ProcessSlot(self._greeting([module]), self._runner, self._is_stopped)
        self._open.add(slot)
        if self._closed:
            slot.close()
        return slot

    def _end(self, slot: ProcessSlot) -> None:
        self._open.discard(slot)
        slot.close()


def _module_to_import(attempt: Attempt) -> str:
    """The module that declares the job; empty when nobody does, or no other process could import it."""
    definition = definition_for(attempt)
    module = "" if definition is None else definition.origin.partition(":")[0]
    is_found = getattr(sys.modules.get(module), "__spec__", None) is not None
    return module if is_found and module != _MAIN else ""
