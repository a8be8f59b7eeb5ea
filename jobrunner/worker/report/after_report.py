"""Work after the server accepted a report: drops the lease, counts and logs the end, writes its event, and passes it on
to its flow.

A report is final once the server has accepted it, and none of this changes it: so a busy worker does this work while
the server handles the next reports.
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
    """Its length counts the steps still to be done. `take` costs nothing; `note` sends nothing to the server; `pass_on`
    does."""

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
        """Takes the server's replies to reports."""
        self._taken.append((settlement, verdicts))

    def note(self) -> None:
        """Does the part that needs no server: drops leases, counts, logs."""
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
        """Passes ends of tasks on to their flows, and sends events. The ends are in their outboxes, so the leader
        passes on those that fail here."""
        if self._untold:
            try:
                relay(self._broker, self._keys, ended=self._untold)
            except JobrunnerError as error:
                _log.warning("flows continue at the leader's next scan", ends=len(self._untold), error=str(error))
            finally:
                self._untold = []
        self._endings.send()
