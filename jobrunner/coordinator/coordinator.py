"""Leadership, and the maintenance tasks of the leader. The loop runs in every worker; a lock on the server decides
which worker acts."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import events
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls.leader import Leadership
from jobrunner.broker.keys import Keys
from jobrunner.clock import from_ms, monotonic
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.coordinator.maintenance import EvictionCheck, OwnQueues, QueueMaintenance, UnusedQueues
from jobrunner.coordinator.put_aside import ErrorsPutAside
from jobrunner.coordinator.records import DeathEvents, StatsCleanup, StatsSampler
from jobrunner.coordinator.recovery import BatchRecovery, FlowRecovery
from jobrunner.coordinator.scan import LeaderScan, ScanBudget

_NEVER = float("-inf")
_HANGS_S = 60.0
_NOBODY = Leadership(0.0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class LeaderTimes:
    """The intervals of a leader, in seconds."""

    ttl_s: float
    """The length of the leader's lock: without a renewal for this time another worker takes over."""
    sweep_s: float
    """The interval of its scan."""
    forget_queues_s: float = 0.0
    """How long a queue must be unused before it is forgotten; 0: never."""


class Coordinator:
    """Takes or renews leadership when that is due, and runs the maintenance tasks while it leads.

    When a leader dies, another worker takes over at the end of its lock, `ttl_s` after its last renewal; a leader that
    stops releases the lock. All instants are the server's: its clock is read with each renewal and extrapolated by this
    process's monotonic clock. A task that the server refuses, because of a damaged key or a cluster node that is away,
    does not keep the others from running. However long a turn takes, `renew` keeps the lock, from a thread of its own,
    unless a task hangs.
    """

    def __init__(
        self, broker: Broker, keys: Keys, worker_id: str, times: LeaderTimes, own: OwnQueues, cron: PeriodicTicks
    ) -> None:  # fmt: skip
        self._broker = broker
        self._keys = keys
        self._worker_id = worker_id
        self._ttl_s = times.ttl_s
        self._renewed = (_NOBODY, _NEVER, _NEVER)
        """The last reply of the server, and the instants of its request and of its arrival: one value, as two threads
        use it."""
        self._asking = threading.Lock()
        self._acted = _NOBODY
        self._progressed_at = monotonic()
        self._cron = cron
        self._death_events = DeathEvents(broker, keys)
        budget, unused_ms = ScanBudget(), round(times.forget_queues_s * 1000)
        flows, batches = FlowRecovery(broker, keys), BatchRecovery(broker, keys)
        maintenance = QueueMaintenance(broker, keys, times.sweep_s, own, self._server_now_ms)
        sampler = StatsSampler(broker, keys, budget)
        unused = self._unused_queues = UnusedQueues(
            broker, keys, budget, unused_ms, self._server_now_ms,
            needed=lambda: self._cron.queues.union(own.names),
        )  # fmt: skip
        takers = (self._death_events.take, flows.take, batches.take, maintenance.take, sampler.take, unused.take)
        self._scan = LeaderScan(broker, keys, times.sweep_s, takers, budget, unused_ms)
        self._tasks: tuple[Callable[[], float], ...] = (
            self._scan.step,
            maintenance.step,
            self._report_deaths,
            flows.step,
            batches.step,
            lambda: sampler.step(self._server_now_ms()),
            unused.step,
            StatsCleanup(broker, keys, budget).step,
            EvictionCheck(broker).step,
            lambda: self._cron.step(self._leadership.epoch, from_ms(self._server_now_ms())),
        )

    @property
    def leads(self) -> bool:
        """Whether this worker is the leader, as far as it knows."""
        leadership, asked_at, _ = self._renewed
        return leadership.epoch > 0 and monotonic() - asked_at < self._ttl_s

    def step(self) -> float:
        """Runs one turn; returns the seconds to the next. Raises the error of the first task that failed."""
        self._progress()
        self._lead_if_due()
        self._note_changes()
        if not self.leads:
            return self._renew_after_s()
        until_next = self._run_tasks()
        until_renewal = self._asked_at + self._renew_after_s() - monotonic()
        return max(min(until_renewal, until_next), 0.001)

    def progressed_at(self) -> float:
        """The instant of the last turn of a task or periodic job (monotonic clock): a hanging turn makes no
        progress."""
        return max(self._progressed_at, self._cron.progressed_at)

    def renew(self) -> float:
        """Renews leadership when that is due, however long the tasks take; returns the seconds to the next renewal."""
        if self._leadership.epoch and monotonic() - self.progressed_at() < _HANGS_S:
            self._lead_if_due()
        return max(self._asked_at + self._renew_after_s() - monotonic(), 0.05)

    def resign(self) -> None:
        """Gives leadership up, so that another worker takes over at once."""
        with self._asking:
            if self.leads:
                ttl_ms = self._ttl_ms()
                self._broker.run(leader_calls.take_leadership(self._keys, self._worker_id, ttl_ms=ttl_ms, resign=True))
                self._renewed = (_NOBODY, *self._renewed[1:])

    def _run_tasks(self) -> float:
        until_next, errors = self._ttl_s, ErrorsPutAside(self._broker)
        for task in self._tasks:
            self._progress()
            try:
                until_next = min(until_next, task())
            except Exception as error:
                errors.put(error)
        errors.raise_first()
        return until_next

    def _report_deaths(self) -> float:
        # A leader that was suspended since its scan must not report deaths that the next leader has reported meanwhile.
        return self._death_events.step() if self.leads else self._ttl_s

    def _lead_if_due(self) -> None:
        with self._asking:
            if monotonic() - self._asked_at >= self._renew_after_s():
                asked_at = monotonic()
                asked = leader_calls.take_leadership(self._keys, self._worker_id, ttl_ms=self._ttl_ms())
                leadership = self._broker.run(asked)
                self._renewed = (leadership, asked_at, monotonic())

    def _note_changes(self) -> None:
        """Passes changes of leadership since the last turn (taken, lost or renewed) on to the tasks."""
        before, self._acted = self._acted, self._leadership
        if self._acted.epoch != before.epoch:
            self._cron.forget()
            self._death_events.forget()
            self._scan.forget()
            if epoch := self._acted.epoch:
                self._broker.run(events.note(self._keys, "leader_changed", worker=self._worker_id, epoch=epoch))
        if self._acted.version != before.version:
            self._cron.reread()

    @property
    def _leadership(self) -> Leadership:
        return self._renewed[0]

    @property
    def _asked_at(self) -> float:
        return self._renewed[1]

    def _progress(self) -> None:
        self._progressed_at = monotonic()

    def _renew_after_s(self) -> float:
        if self._leadership.epoch:
            return self._ttl_s / 3
        return min(self._leadership.ends_in_ms / 1000 + 0.01, self._ttl_s / 3)

    def _server_now_ms(self) -> float:
        """The server's clock, late by the time of the reply at most. Counted from the request, it would be ahead when
        that took long or was sent again, and ticks would fire before their time."""
        leadership, _, arrived_at = self._renewed
        return leadership.now_ms + (monotonic() - arrived_at) * 1000

    def _ttl_ms(self) -> int:
        return round(self._ttl_s * 1000)
