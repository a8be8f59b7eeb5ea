"""What follows when the server took a report: the lease is let go, the end is counted, logged, told, and passed on to
its flow.

A report is over when the server said so, and none of this changes it: so a busy worker does it while the server works
on the next reports.
"""

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.flow_relay import relay
from jobrunner.errors import JobrunnerError
from jobrunner.join import Ended
from jobrunner.logs import SafeLogger
from jobrunner.worker.lease_keeper.keeper_client import KeeperClient
from jobrunner.worker.report.attempt_events import AttemptEvents
from jobrunner.worker.report.reports import ReportCall, ended, tell
from jobrunner.worker.report.stats import StatsRecorder

_log = SafeLogger("jobrunner.fetcher")


class AfterReport:
    """Its length is how much is still to be done. `take` costs nothing; `note` asks no server; `pass_on` does."""

    def __init__(
        self, broker: Broker, keys: Keys, held: KeeperClient, figures: StatsRecorder, endings: AttemptEvents
    ) -> None:
        self._broker = broker
        self._keys = keys
        self._held = held
        self._figures = figures
        self._endings = endings
        self._taken: list[tuple[ReportCall, list[str]]] = []
        self._untold: list[Ended] = []

    def __len__(self) -> int:
        return len(self._taken) + len(self._untold)

    def take(self, settlement: ReportCall, verdicts: list[str]) -> None:
        """Hears what the server answered to reports."""
        self._taken.append((settlement, verdicts))

    def note(self) -> None:
        """Does what stays in this process."""
        if not self._taken:
            return
        try:
            for settlement, verdicts in self._taken:
                if not settlement.targets:  # of moves, some may still have to be made in another way
                    self._held.drop(attempt for attempt, _ in settlement.reports)
                self._figures.observe(settlement.reports, verdicts)
                self._endings.observe(settlement.reports, verdicts)
                tell(settlement, verdicts)
                self._untold += ended(self._keys, settlement, verdicts)
        finally:
            self._taken = []  # last: no moment may look as if nothing were to be done

    def pass_on(self) -> None:
        """Takes ends of tasks of flows on, and sends events. The ends are in their outboxes: what goes wrong here the
        leader makes up for."""
        if self._untold:
            try:
                relay(self._broker, self._keys, ended=self._untold)
            except JobrunnerError as error:
                _log.warning("flows go on at the leader's next look", ends=len(self._untold), error=str(error))
            finally:
                self._untold = []
        self._endings.send()
