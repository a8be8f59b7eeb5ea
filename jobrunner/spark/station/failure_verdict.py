"""Consequences of a failed batch: whether its items lose an attempt (`Verdict`), and how long the station pauses
(`StationPauses`). No I/O.

Invariants: an item dies only of an error that other items do not have. While all batches fail with the same error, no
failure is the last of an item, and after the first few no failure counts.
"""

from dataclasses import dataclass
from enum import StrEnum

from jobrunner.clock import monotonic
from jobrunner.spark.failures import Cause
from jobrunner.spark.station.failure_history import PATIENT_WITH, SEARCHED, Evidence

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
_LONGEST_OUTAGE_S = 10.0
"""Longest pause while the server answers but takes no rows, for example because it is full. Short, as other batches of
the station wait meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedBatch:
    """Facts about a failed batch itself."""

    cause: Cause
    """ROWS, ITEMS or CODE: other causes say nothing about the batch, and need no verdict."""
    size: int
    is_final: bool = False
    """Whether its single item dies if the failure counts, while more items come, which will show whether the function
    works."""
    is_divisible: bool = True
    """Whether parts may succeed where the whole failed: not when a table or folder takes no rows at all."""


class Fate(StrEnum):
    """The result of a failed batch."""

    COUNTED = "counted"
    """The failure counts against its items."""
    DIVIDED = "divided"
    """The batch is split, uncounted: a part that succeeds proves that some items work."""
    RELEASED = "released"
    """The batch is handed back unchanged, uncounted."""


class Pause(StrEnum):
    """The scope of a pause after a failure."""

    NONE = "none"
    BATCH = "batch"
    """This batch waits, longer and longer; other batches go on."""
    STATION = "station"
    """All batches wait, after the first failures in a row."""
    STATION_AT_ONCE = "station at once"
    """All batches wait, from the first failure on."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The consequences of a failure."""

    fate: Fate
    pause: Pause


def verdict_on(batch: FailedBatch, evidence: Evidence) -> Verdict:
    """Returns the consequences of a failure for the batch and the station."""
    if evidence.others_worked:
        return Verdict(Fate.COUNTED, Pause.NONE)
    is_code = batch.cause is Cause.CODE
    if is_code and not evidence.has_worked:
        return Verdict(Fate.RELEASED, Pause.STATION_AT_ONCE)  # a function that never worked must be fixed first
    pause = Pause.STATION if evidence.in_a_row > 1 else Pause.BATCH if is_code else Pause.NONE
    is_spared = batch.is_final and not evidence.failed_alone
    all_fail = evidence.is_one_error and (evidence.in_a_row > PATIENT_WITH or is_spared)
    if not (is_code or all_fail):
        return Verdict(Fate.COUNTED, pause)
    divides = batch.size > 1 and batch.is_divisible and evidence.in_a_row <= SEARCHED
    return Verdict(Fate.DIVIDED if divides else Fate.RELEASED, pause)


class CircuitBreaker:
    """Counts failures in a row. The first `patient_with` failures cost no pause, later failures a growing pause.

    While all batches fail, the items are not to blame, and splitting their batches until they are dead would lose good
    items.
    """

    def __init__(self, patient_with: int = PATIENT_WITH, longest_s: float = LONGEST_PAUSE_S) -> None:
        self.in_a_row = 0
        self.patient_with = patient_with
        self._longest_s = longest_s

    def succeeded(self) -> None:
        """Ends the row of failures."""
        self.in_a_row = 0

    def failed(self) -> float:
        """Counts a failure. Returns the seconds to wait before the next attempt: 0 for the first few."""
        self.in_a_row += 1
        beyond = self.in_a_row - self.patient_with
        return 0.0 if beyond <= 0 else min(FIRST_PAUSE_S * 2.0 ** min(beyond - 1, 10), self._longest_s)


class StationPauses:
    """The pauses of one station: after failures in a row, and in an outage. Not thread-safe."""

    def __init__(self) -> None:
        self._breaker = CircuitBreaker()
        self._outages = CircuitBreaker(patient_with=1, longest_s=_LONGEST_OUTAGE_S)
        self._until = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the pause is over; 0 or less without one."""
        return self._until - monotonic()

    def end(self) -> None:
        """Ends pauses and rows of failures: a batch succeeded."""
        self._breaker.succeeded()
        self._outages.succeeded()
        self._until = 0.0

    def after(self, pause: Pause, began: float) -> float:
        """Seconds to pause after a failure of an attempt that began at `began` (monotonic clock)."""
        if pause is Pause.NONE:
            return 0.0
        self._breaker.patient_with = 0 if pause is Pause.STATION_AT_ONCE else PATIENT_WITH
        return self._breaker.failed() if pause is Pause.BATCH else self._begin(began, self._breaker)

    def after_outage(self, began: float) -> float:
        """Seconds to pause after an outage: the second in a row begins a pause."""
        return self._begin(began, self._outages)

    def _begin(self, began: float, breaker: CircuitBreaker) -> float:
        """Begins a pause, or returns the rest of the current one: failures of batches that were already running when it
        began do not extend it."""
        now = monotonic()
        if began < self._until and now < self._until:
            return self._until - now
        pause_s = breaker.failed()
        self._until = now + pause_s
        return pause_s
