"""Leadership and the leader's chores. Its loop runs in every worker; the lock on the server decides who acts."""

from collections.abc import Callable, Collection

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import coordination, events
from jobrunner.broker.calls.coordination import Leadership
from jobrunner.broker.keys import Keys
from jobrunner.clock import from_ms, monotonic
from jobrunner.coordinator.decided import Decided
from jobrunner.coordinator.fire import Fire
from jobrunner.coordinator.look import Look
from jobrunner.coordinator.outboxes import Outboxes
from jobrunner.coordinator.sample import Sample
from jobrunner.coordinator.sweep import Sweep
from jobrunner.coordinator.watch import Watch
from jobrunner.errors import OutcomeUnknown, ServerUnavailable

_NEVER = float("-inf")


class Coordinator:
    """One turn: takes or renews leadership when that is due, and does the chores while it leads.

    A leader that dies is followed when its lock ends, `ttl_s` after its last renewal; one that stops gives it up. All
    instants are the server's: its clock is read with each renewal and carried on by this process's monotonic clock. A
    chore that the server refuses, as somebody damaged a key say, keeps no other from being done.
    """

    def __init__(
        self, broker: Broker, keys: Keys, worker_id: str, *, ttl_s: float, sweep_s: float, served: Collection[str],
        late: Callable[[str, str, float], object] = lambda *_: None,
    ) -> None:  # fmt: skip
        self._broker = broker
        self._keys = keys
        self._worker_id = worker_id
        self._ttl_s = ttl_s
        self._leadership = Leadership(0.0, 0, 0, 0)
        self._asked_at = _NEVER
        self._fire = Fire(broker, keys, late)
        self._sweep = Sweep(broker, keys, sweep_s, served)
        self._watch = Watch(broker, keys)
        outboxes, decided = Outboxes(broker, keys), Decided(broker, keys)
        takers = (self._watch.take, outboxes.take, decided.take)
        sample = Sample(broker, keys, lambda: self._sweep.queues)
        self._chores: tuple[Callable[[], float], ...] = (
            self._sweep.step,
            Look(broker, keys, sweep_s, lambda: self._sweep.queues, takers).step,
            self._tell,
            outboxes.step,
            decided.step,
            lambda: sample.step(self._server_now_ms()),
            lambda: self._fire.step(self._leadership.epoch, from_ms(self._server_now_ms())),
        )

    @property
    def leads(self) -> bool:
        """Whether this worker is the leader, as far as it knows."""
        return self._leadership.epoch > 0 and monotonic() - self._asked_at < self._ttl_s

    def step(self) -> float:
        """One turn; returns the seconds to the next. Raises what the first chore raised that could not be done."""
        if monotonic() - self._asked_at >= self._renew_after_s():
            self._lead()
        if not self.leads:
            return self._renew_after_s()
        until_next = self._run_chores()
        until_renewal = self._asked_at + self._renew_after_s() - monotonic()
        return max(min(until_renewal, until_next), 0.001)

    def resign(self) -> None:
        """Gives leadership up, so that another worker follows at once."""
        if self.leads:
            self._broker.run(coordination.lead(self._keys, self._worker_id, ttl_ms=self._ttl_ms(), resign=True))
            self._leadership = Leadership(0.0, 0, 0, 0)

    def _run_chores(self) -> float:
        until_next, refused = self._ttl_s, None
        for chore in self._chores:
            try:
                until_next = min(until_next, chore())
            except (ServerUnavailable, OutcomeUnknown):
                raise
            except Exception as error:
                refused = refused or error
        if refused is not None:
            raise refused
        return until_next

    def _tell(self) -> float:
        # One that was suspended since it looked must not tell what the next leader told meanwhile.
        return self._watch.step() if self.leads else self._ttl_s

    def _lead(self) -> None:
        before = self._leadership
        asked_at = monotonic()
        self._leadership = self._broker.run(coordination.lead(self._keys, self._worker_id, ttl_ms=self._ttl_ms()))
        self._asked_at = asked_at
        if self._leadership.epoch != before.epoch:
            self._fire.forget()
            self._watch.forget()
            if epoch := self._leadership.epoch:
                self._broker.run(events.note(self._keys, "leader_changed", worker=self._worker_id, epoch=epoch))
        if self._leadership.version != before.version:
            self._fire.reread()

    def _renew_after_s(self) -> float:
        if self._leadership.epoch:
            return self._ttl_s / 3
        return min(self._leadership.ends_in_ms / 1000 + 0.01, self._ttl_s / 3)

    def _server_now_ms(self) -> float:
        return self._leadership.now_ms + (monotonic() - self._asked_at) * 1000

    def _ttl_ms(self) -> int:
        return round(self._ttl_s * 1000)
