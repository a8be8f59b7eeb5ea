"""The keeper's recovery of a dead worker: hands back the tasks it held without waiting for their leases to end.

1. What its jobs started and still runs is killed, so that nothing runs twice at once.
2. Tasks that had not begun go back to their places, with no attempt spent; so do those whose reservation the worker
   never heard of. They are known by the numbers of their leases: whatever the worker did not mark as begun.
3. Tasks that had begun are reported as crashed: back to their places, the attempt stays spent; unless their job says
   on_crash="wait". Where the worker was not killed from outside, each of them may have done it, and is a suspect
   (quarantine.py). Those that ended and whose report the server had not taken count as begun: nobody can know more.

Every report carries the number of its lease, so it changes nothing where that is not the newest any more.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic, sleep
from jobrunner.errors import JobrunnerError
from jobrunner.loop import back_off
from jobrunner.worker.child_processes import end_all_of
from jobrunner.worker.lease_keeper.process_exit import ProcessExit
from jobrunner.worker.lease_keeper.shared_memory import BegunAttempt, SharedMemory

_SLICE = 200
"""Of reports in one call, each of which is some ten commands of the server."""
_GIVES_UP_S = 60.0
_AFTER_ERROR_S = 0.1
_LONGEST_AFTER_ERROR_S = 1.0
_CHILDREN_END_S = 2.0


class HeldWork(msgspec.Struct, frozen=True):
    """The facts that the keeper needs to clean up after a dead worker."""

    queues: list[str]
    """Those it reserves from."""
    process: str
    """The name of its process, which others inherited; '' when it started none."""
    claims_children: bool
    """Whether all that its process started belongs to its jobs; else only the processes of its slots."""


class CrashRecovery:
    """Cleans up after one worker. `run` goes on through errors of the server, for a minute."""

    def __init__(self, broker: Broker, keys: Keys, marks: SharedMemory, death: ProcessExit) -> None:
        self._broker = broker
        self._keys = keys
        self._death = death
        self._taken = marks.taken
        self._begun = {one.number: one for one in marks.begun()}
        self._waits_all = False
        self._lacks_marks = marks.lacks_marks
        text = marks.read()
        self._will = msgspec.json.decode(text, type=HeldWork) if text else None

    def run(self) -> None:
        """Until everything is handed back, or the time is up: then the leases end by themselves."""
        if self._will is None:
            return
        will = self._will
        if will.process and not end_all_of(will.process, _CHILDREN_END_S, forked=will.claims_children):
            self._waits_all = True
        ends, failures = monotonic() + _GIVES_UP_S, 0
        queues = self._will.queues
        while queues and monotonic() < ends:
            queues = self._hand_back(queues)
            if queues:
                failures += 1
                sleep(back_off(failures, _AFTER_ERROR_S, _LONGEST_AFTER_ERROR_S))

    def _hand_back(self, queues: list[str]) -> list[str]:
        """Returns the queues of which something could not be handed back."""
        lost = set()
        reports: list[tuple[str, Call[Any]]] = []
        found = self._ask([leases.taken_in(self._keys.queue(queue), *self._taken) for queue in queues])
        for queue, held in zip(queues, found, strict=True):
            if isinstance(held, Exception):
                lost.add(queue)
            else:
                reports += [(queue, call) for call in self._calls(queue, held)]
        for (queue, _), verdicts in zip(reports, self._ask([call for _, call in reports]), strict=True):
            if isinstance(verdicts, Exception):
                lost.add(queue)
        return [queue for queue in queues if queue in lost]

    def _calls(self, queue: str, held: list[tuple[str, int]]) -> Iterator[Call[Any]]:
        keys = self._keys.queue(queue)
        begun = [
            (task_id, str(number), self._is_suspect(self._begun[number]))
            for task_id, number in held
            if number in self._begun and not (self._begun[number].waits or self._waits_all)
        ]
        for some in _slices(begun):
            yield leases.crash(keys, some, reason=self._death.reason)
        if not self._lacks_marks:
            unbegun = [(task_id, str(number), "") for task_id, number in held if number not in self._begun]
            for rest in _slices(unbegun):
                yield leases.release(keys, rest)

    def _is_suspect(self, one: BegunAttempt) -> bool:
        """Whether an attempt may have caused the crash: the one in quarantine if there was one, else any."""
        if self._death.is_from_outside:
            return False
        return one.is_alone or not any(other.is_alone for other in self._begun.values())

    def _ask(self, calls: list[Call[Any]]) -> list[Any]:
        try:
            return self._broker.run_each(calls) if calls else []
        except JobrunnerError as error:
            return [error] * len(calls)


def _slices(reports: list[Any]) -> Iterator[list[Any]]:
    rest = iter(reports)
    while some := list(islice(rest, _SLICE)):
        yield some
