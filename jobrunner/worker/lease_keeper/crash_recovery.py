"""The keeper's recovery of a dead worker: hands back the tasks it held without waiting for their leases to end.

1. What its jobs started and still runs is killed, so that nothing runs twice at once.
2. Tasks that had not begun go back to their places, with no attempt spent; so do those whose reservation the worker
   never heard of. They are known by the numbers of their leases: whatever the worker did not mark as begun.
3. Tasks that had begun are reported as crashed: back to their places, the attempt stays spent; unless their job says
   on_crash="wait". Where the worker was not killed from outside, each of them may have done it, and is a suspect
   (fetch/quarantine.py). Those that ended and whose report the server had not taken count as begun: nobody can know
   more.

4. The worker is taken off the list of workers, with an event that names its queues, how it died and what it ran then,
   and a line in the log of `jobrunner work`. The leader does so for a worker whose keeper died with it, when its
   heartbeats are missing; it cannot know what that ran.

Every report carries the number of its lease, so it changes nothing where that is not the newest any more.

The worker's death is seen by a descriptor of the process (pidfd): a pipe may be held open by something it forked. How
the process ended the kernel says at any time from Linux 6.15 on, before that only until the parent has asked.
"""

import fcntl
import os
import select
import signal
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from jobrunner.broker.broker import Broker, run_each_or_errors
from jobrunner.broker.call import Call, command, text
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.broker.resp import Arg
from jobrunner.clock import monotonic, sleep
from jobrunner.loop import back_off
from jobrunner.worker.child_processes import end_all_of
from jobrunner.worker.lease_keeper.keeper_link import BegunAttempt, HeldWork, SharedMemory

_INFO: Final = struct.Struct("=QQ11Ii")
"""struct pidfd_info: mask of requested and returned fields, cgroup, ids, exit status."""
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_EXIT = 1 << 3
_LOOK_S = 0.05
_SLICE = 200
"""Of reports in one call, each of which is some ten commands of the server."""
_GIVES_UP_S = 60.0
_AFTER_ERROR_S = 0.1
_LONGEST_AFTER_ERROR_S = 1.0
_CHILDREN_END_S = 2.0
_NAMED = 10
"""The most tasks that the event and the line name: a worker may run thousands of coroutines."""
_LEFT_RUNNING = ("waiting", "dead")
"""Results of a report for a task whose attempt the crash ended."""
_FROM_OUTSIDE = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a worker died. `signal` and `code` are 0 where that is not known; `by_itself`: code of its own sent the
    signal, or the kernel did because there was no memory left."""

    signal: int = 0
    code: int | None = None
    by_itself: bool = False

    @property
    def reason(self) -> str:
        """In words."""
        if self.signal:
            return f"its worker died (signal {self.signal}{', sent by itself' if self.by_itself else ''})"
        return "its worker died" if self.code is None else f"its worker died (exit code {self.code})"

    @property
    def is_from_outside(self) -> bool:
        """Whether it was sent from outside, so that nothing it ran is suspected of it."""
        return self.signal in _FROM_OUTSIDE and not self.by_itself


class WatchedProcess:
    """A process whose death is waited for. `has_died` costs no time; `descriptor` is its pidfd, or -1. The process
    opens that itself: a task that is first in line may end it before this one has started."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.descriptor = descriptor
        self._killed_for_memory = _killed_for_memory()

    @property
    def has_died(self) -> bool:
        """Whether it did; it is our parent."""
        return self._poll(0) or os.getppid() != self.pid

    def wait(self, seconds: float) -> bool:
        """Waits for its death; returns whether it came."""
        ends = monotonic() + seconds
        while not self.has_died and monotonic() < ends:
            self._poll(_LOOK_S)
        return self.has_died

    def _poll(self, seconds: float) -> bool:
        if self.descriptor < 0:
            sleep(seconds)
            return False
        died = select.poll()
        died.register(self.descriptor, select.POLLIN)
        return bool(died.poll(seconds * 1000))

    def refresh(self) -> None:
        """Called now and then while it lives: processes that the kernel kills for memory from now on may be it."""
        self._killed_for_memory = _killed_for_memory()

    def death(self, own_signal: int) -> ProcessExit:
        """How it died. `own_signal`: the last that its own code was seen to send to it, 0 for none."""
        status = self._status()
        if status is None:
            return ProcessExit()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            by_itself = number == own_signal or (
                number == signal.SIGKILL and _killed_for_memory() != self._killed_for_memory
            )
            return ProcessExit(signal=number, by_itself=by_itself)
        return ProcessExit(code=os.WEXITSTATUS(status))

    def _status(self) -> int | None:
        with suppress(OSError, ValueError):
            state, *fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            if state == "Z":
                return int(fields[-1])
        if self.descriptor >= 0:
            asked = bytearray(_INFO.size)
            struct.pack_into("=Q", asked, 0, _EXIT)
            with suppress(OSError):
                fcntl.ioctl(self.descriptor, _GET_INFO, asked, True)
                given, *_, status = _INFO.unpack(bytes(asked))
                return status if given & _EXIT else None
        return None


def _killed_for_memory() -> int:
    """How many processes the kernel killed so far because memory ran out; 0 where it does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


class CrashRecovery:
    """Cleans up after one worker. `run` goes on through errors of the server, for a minute."""

    def __init__(self, broker: Broker, keys: Keys, marks: SharedMemory, death: ProcessExit) -> None:
        self._broker = broker
        self._keys = keys
        self._death = death
        self._taken = marks.taken
        self._begun = {one.number: one for one in marks.begun()}
        self._ran: list[tuple[str, str]] = []
        self._waits_all = False
        self._lacks_marks = marks.lacks_marks
        left = marks.read()
        self._work = msgspec.json.decode(left, type=HeldWork) if left else None
        self._worker = self._work.worker if self._work else ""

    def run(self) -> None:
        """Until everything is handed back, or the time is up: then the leases end by themselves."""
        if self._work is None:
            return
        work = self._work
        if work.process and not end_all_of(work.process, _CHILDREN_END_S, forked=work.claims_children):
            self._waits_all = True
        ends, failures = monotonic() + _GIVES_UP_S, 0
        queues = self._work.queues
        while queues and monotonic() < ends:
            queues = self._hand_back(queues)
            if queues:
                failures += 1
                sleep(back_off(failures, _AFTER_ERROR_S, _LONGEST_AFTER_ERROR_S))
        self._take_off_the_list(work)

    def _take_off_the_list(self, work: HeldWork) -> None:
        from jobrunner.broker.calls import events, leader  # a keeper whose worker lives needs none of it

        *_, removed = run_each_or_errors(self._broker, leader.retire(self._keys, work.worker))
        how = self._death.reason.removeprefix("its ")
        if removed == 1:  # else it had not announced itself yet, or the leader was faster
            named = [task_id for _, task_id in self._ran[:_NAMED]]
            ran: dict[str, Arg] = {"tasks": ",".join(named), "running": len(self._ran)} if named else {}
            lost = events.note(self._keys, "worker_lost", worker=work.worker, queues=work.serves, how=how, **ran)
            run_each_or_errors(self._broker, [lost])
        if self._ran and work.log_format:
            self._log(work, how)

    def _log(self, work: HeldWork, how: str) -> None:
        """Writes the line that the worker could not write: which tasks it ran when it died."""
        from jobrunner.log_output import log_to_stderr
        from jobrunner.logs import SafeLogger

        named = self._ran[:_NAMED]
        asked = [
            command("HGET", self._keys.queue(queue).task(task_id), "type", read=lambda reply: text(reply or b""))
            for queue, task_id in named
        ]
        found = run_each_or_errors(self._broker, asked)
        jobs = sorted({one for one in found if one and not isinstance(one, Exception)})
        log_to_stderr(work.log_format, work.log_level)
        SafeLogger("jobrunner.leases").warning(
            "a worker died while it ran these tasks", worker=work.worker, how=how, running=len(self._ran),
            tasks=[task_id for _, task_id in named], jobs=jobs,
        )  # fmt: skip

    def _hand_back(self, queues: list[str]) -> list[str]:
        """Returns the queues of which something could not be handed back."""
        lost = set()
        reports: list[tuple[str, list[str], Call[Any]]] = []
        asked = [leases.taken_in(self._keys.queue(queue), *self._taken) for queue in queues]
        found = run_each_or_errors(self._broker, asked)
        for queue, held in zip(queues, found, strict=True):
            if isinstance(held, Exception):
                lost.add(queue)
            else:
                reports += [(queue, begun, call) for begun, call in self._calls(queue, held)]
        replies = run_each_or_errors(self._broker, [call for *_, call in reports])
        for (queue, begun, _), verdicts in zip(reports, replies, strict=True):
            if isinstance(verdicts, Exception):
                lost.add(queue)
            elif begun:
                ends = zip(begun, verdicts, strict=True)
                self._ran += [(queue, task_id) for task_id, verdict in ends if verdict in _LEFT_RUNNING]
        return [queue for queue in queues if queue in lost]

    def _calls(self, queue: str, held: list[tuple[str, int]]) -> Iterator[tuple[list[str], Call[Any]]]:
        """The reports, each with the ids of the tasks in it that had begun."""
        keys = self._keys.queue(queue)
        begun = [
            (task_id, str(number), self._is_suspect(self._begun[number]))
            for task_id, number in held
            if number in self._begun and not (self._begun[number].waits or self._waits_all)
        ]
        for some in _slices(begun):
            crash = leases.crash(keys, some, reason=self._death.reason, worker=self._worker)
            yield [task_id for task_id, *_ in some], crash
        if not self._lacks_marks:
            unbegun = [(task_id, str(number), "") for task_id, number in held if number not in self._begun]
            for rest in _slices(unbegun):
                yield [], leases.release(keys, rest)

    def _is_suspect(self, one: BegunAttempt) -> bool:
        """Whether an attempt may have caused the crash: the one in quarantine if there was one, else any."""
        if self._death.is_from_outside:
            return False
        return one.is_alone or not any(other.is_alone for other in self._begun.values())


def _slices(reports: list[Any]) -> Iterator[list[Any]]:
    rest = iter(reports)
    while some := list(islice(rest, _SLICE)):
        yield some
