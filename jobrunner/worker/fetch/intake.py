"""Reserved tasks: from the server's reply to the executor, with the lease keeper in between."""

from jobrunner.attempt import Attempt
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.calls.queues import Probe
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError
from jobrunner.outcome import Released
from jobrunner.worker.fetch.backpressure import Backpressure
from jobrunner.worker.fetch.turn import FetchParts
from jobrunner.worker.quarantine import Quarantine


class Intake:
    """Starts reserved tasks, or releases them.

    Invariant: the lease keeper is notified of a task before it begins; a task whose lease may have ended on the way is
    never begun.
    """

    def __init__(self, parts: FetchParts, backpressure: Backpressure, *, isolates: bool) -> None:
        self._parts = parts
        self._rotation = parts.rotation
        self._backpressure = backpressure
        self._leases_are_short = False
        self.quarantine = Quarantine(parts.keeper.clear, isolates=isolates)

    @property
    def lacks_keeper(self) -> bool:
        """Whether leases would end before a keeper that is still starting renews them: then nothing is reserved."""
        return self._leases_are_short and not self._parts.keeper.is_ready

    def take_probe(self, queue: str, reply: Probe | JobrunnerError) -> JobrunnerError | None:
        """Takes in the answer to a probe; returns the error, if it was one."""
        if isinstance(reply, JobrunnerError):
            self._rotation.refused(queue)
            return reply
        self._parts.stats.synchronize(reply.now_ms)
        if reply.has_tasks:
            self._rotation.has_tasks(queue)
        else:
            self._rotation.sleep(queue, _until_s(reply), reply.keepalive_ms / 1000)
        return None

    def hold(self, queue: str, wanted: int, reply: Reservation, asked_at: float) -> list[Attempt]:
        """Takes in a reservation of up to `wanted` tasks; returns those that are held from now on and can begin."""
        self._parts.stats.synchronize(reply.now_ms)
        if len(reply.attempts) < wanted:
            self._rotation.sleep(queue, _until_s(reply), reply.keepalive_ms / 1000)
        else:
            self._rotation.gave_all(queue)
        late_ms = (monotonic() - asked_at) * 1000
        attempts = [attempt for attempt in reply.attempts if attempt.keepalive_ms > late_ms]  # others' leases are over
        if not attempts:
            return attempts
        self._backpressure.made_room(queue)
        self._parts.prefetch.took(len(attempts))
        self._parts.keeper.hold(attempts, asked_at)
        if self._parts.keeper.can_keep(attempts):
            return attempts
        self._leases_are_short = True
        self._rotation.wake(queue)
        self.give_back(attempts)
        return []

    def begin(self, queue: str, attempts: list[Attempt]) -> None:
        """Hands attempts to the executor, suspects of a crash one at a time and alone."""
        fit, back = self.quarantine.sort(attempts)
        if fit:
            self._parts.executor.submit(fit)
        if back:
            self.give_back(back)
            if self.quarantine.is_on or fit:
                self._rotation.wake(queue)
            else:  # nothing but suspects, and it is the turn of others
                self._rotation.rest(queue, self.quarantine.rest_s)

    def isolate(self, ended: list[Attempt]) -> None:
        """Begins the task that runs alone when nothing else does, and takes others again when it has."""
        if self.quarantine.is_over(ended):
            self._rotation.wake_all()
        elif (suspect := self.quarantine.to_begin(self._parts.prefetch.in_hand)) is not None:
            self.give_back_backlog()
            self._parts.executor.submit([suspect])

    def give_back(self, attempts: list[Attempt]) -> None:
        """Hands attempts back to their places in line, with no attempt spent."""
        self._parts.finished.add_all(attempts, Released())

    def give_back_backlog(self) -> None:
        """The same of what the executor has not begun."""
        self.give_back(self._parts.executor.take_back())

    def give_back_unbegun(self) -> None:
        """The same of that and of a suspect that waits to run alone."""
        self.give_back_backlog()
        self.give_back(self.quarantine.take_back())


def _until_s(reply: Reservation | Probe) -> float | None:
    """Seconds until the queue has something to do next, as the server answered."""
    return None if reply.next_event_ms is None else (reply.next_event_ms - reply.now_ms) / 1000
