"""Failures on Spark: an error in one line that a person can use, its cause, and its cost for a batch.

Spark wraps what happened in a Python worker into a page of two languages. What counts is the last line of the
innermost Python traceback, or the first sentence of the engine's own error.

Invariant: an error of the function, or of a row, counts against the items of the batch; an outage, a lost lease or a
dead engine never does.
"""

import re
import threading
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import TypeVar

from pyspark.errors import (
    AnalysisException,
    PySparkAttributeError,
    PySparkException,
    PySparkImportError,
    PySparkNotImplementedError,
    PySparkTypeError,
)
from pyspark.sql import SparkSession

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.batches import BatchLease
from jobrunner.client.settings_hash import read_settings
from jobrunner.clock import monotonic
from jobrunner.errors import BatchLost, OutcomeUnknown, ServerError, ServerFull, ServerUnavailable, StationError
from jobrunner.etl.spark_station import SparkStation
from jobrunner.jobs.registry import BatchEnd, Seen
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Retry, Snooze
from jobrunner.spark.executor_load import UNFIT

_LONGEST = 1000
_TRACEBACK = "Traceback (most recent call last):"
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}.*$")
_OURS = re.compile(r"(?:worker:\n|: )jobrunner\.errors\.(\w+: .*)")
"""An error of the data source, which comes without a traceback."""
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \([^()]*\) \([^()]*\): (?:[\w.$]+: )?(?P<why>.*)")
_JAVA_CALL = re.compile(r"^An error occurred while calling \S+$")
_BEFORE_ANY_ROW = (
    AnalysisException, ImportError, NameError, PySparkAttributeError, PySparkImportError, PySparkNotImplementedError,
    PySparkTypeError, StationError,
)  # fmt: skip
"""Raised while a plan is made: a column that is misspelt, a name that is not defined, a frame without the columns that
steer. Errors of rows come out of tasks and have other classes."""
_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_SESSION", "NO_ACTIVE_OR_DEFAULT_SESSION", "SESSION_NOT_SAME")
_MODULES = ("ModuleNotFoundError: ", f"ImportError: {UNFIT}")
_OUTAGE = tuple(kind.__name__ for kind in (ServerUnavailable, OutcomeUnknown, ServerFull))


class Cause(StrEnum):
    """Which side caused an error."""

    ITEMS = "items"
    """The items in the batch, as far as it can be determined: counted as a failure."""
    CODE = "code"
    """The function or the session, before any row was read: the items are not to blame."""
    OUTAGE = "outage"
    """The connection to the server: says nothing about the items."""
    LOST = "lost"
    """The lease ended: another driver may hold the batch."""
    ENGINE = "engine"
    """Spark itself is gone: this process must end, too."""


def cause_of(error: BaseException, spark: SparkSession) -> Cause:
    """Which side caused an error of a batch. Runs a small query to see whether the engine is alive."""
    name = error_line(error).partition(":")[0]
    if isinstance(error, BatchLost) or name == BatchLost.__name__:
        return Cause.LOST
    if isinstance(error, ServerError) or name in _OUTAGE:
        return Cause.OUTAGE
    if not is_alive(spark):
        return Cause.ENGINE
    return Cause.CODE if isinstance(error, _BEFORE_ANY_ROW) or is_never_of_items(error) else Cause.ITEMS


def is_never_of_items(error: BaseException) -> bool:
    """Whether Spark found no session where one is needed, or an executor lacks a module."""
    if error_line(error).startswith(_MODULES):
        return True
    return isinstance(error, PySparkException) and error.getCondition() in _SESSION


def is_alive(spark: SparkSession) -> bool:
    """Whether the session can still run something."""
    try:
        return spark.range(1).count() == 1
    except Exception:  # a dead JVM shows itself by errors of many libraries
        return False


def error_line(error: BaseException) -> str:
    """`Name: what happened`, at most 1 000 characters."""
    text = str(error)
    if plain := _OURS.search(text):
        return _shortened(_SQLSTATE.sub("", plain[1]).rstrip())
    if _TRACEBACK in text:
        return _shortened(_last_of_traceback(text[text.rindex(_TRACEBACK) :]))
    lost = _LOST_TASK.search(text)
    if lost:
        return _shortened(f"SparkError: {lost['why']}")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _JAVA_CALL.match(line.strip())]
    first = _SQLSTATE.sub("", lines[0]) if lines else "no reason given"
    return _shortened(f"{type(error).__name__}: {first}")


def _last_of_traceback(text: str) -> str:
    """`module.Name: words` without the module, with the lines that belong to the words."""
    lines = text.splitlines()[1:]
    ends = next((place for place, line in enumerate(lines) if line and not line[0].isspace()), None)
    if ends is None:
        return "PythonError: no reason given"
    name, colon, words = _SQLSTATE.sub("", lines[ends]).partition(":")
    return f"{name.rpartition('.')[2]}{colon}{words}"


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


_PATIENT_WITH = 5
"""Failures in a row that a few bad items make among many good ones, as halves that succeed come between."""
_FIRST_S = 1.0
_LONGEST_S = 60.0
_AGAIN_S = 0.2
"""Pause before a report is sent again that met an outage."""
_BEHIND_PAUSE = 1.5
"""A batch that the code failed is due so many pauses later."""
_log = SafeLogger("jobrunner.spark")
T = TypeVar("T")


class CircuitBreaker:
    """Counts failures in a row; the first `patient_with` of them cost no pause, later ones a growing one.

    While everything fails, the items are not to blame, and halving their batches until they are dead would lose good
    items.
    """

    def __init__(self, patient_with: int = _PATIENT_WITH) -> None:
        self.in_a_row = 0
        self._patient_with = patient_with

    def succeeded(self) -> None:
        """Ends the row of failures."""
        self.in_a_row = 0

    def failed(self) -> float:
        """Counts a failure. Returns the seconds to wait before the next attempt: 0 for the first few."""
        self.in_a_row += 1
        beyond = self.in_a_row - self._patient_with
        return 0.0 if beyond <= 0 else min(_FIRST_S * 2.0 ** min(beyond - 1, 10), _LONGEST_S)


class BatchFailures:
    """Reports the failed batches of one station, and pauses the station while batch after batch fails.

    `stopping` cuts pauses short and hands batches back uncounted; `over` ends reports that wait for the server.
    `failure` is set when this process cannot go on: the worker replaces it.
    """

    def __init__(
        self, station: SparkStation, broker: Broker, keys: QueueKeys, seen: Seen, *,
        stopping: threading.Event, over: threading.Event,
    ) -> None:  # fmt: skip
        self.failure: BaseException | None = None
        self._station = station
        self._broker = broker
        self._keys = keys
        self._seen = seen
        self.stopping = stopping
        self._over = over
        self._breaker = CircuitBreaker()
        self._code_breaker = CircuitBreaker(patient_with=0)
        self.has_worked = False
        """Whether the function ever made rows of a batch: later errors of planning are not the code's alone."""
        self.in_a_row = False
        """Whether the last batch failed."""

    def succeeded(self) -> None:
        """A batch was decided: failures are no longer in a row."""
        self.in_a_row = False
        self._breaker.succeeded()
        self._code_breaker.succeeded()

    def report(self, send: Callable[[], T]) -> T:
        """Returns what `send` returns. It is called again while there is an outage and the lease may last: a lease that
        ends without a report counts against the items."""
        ends = monotonic() + self._station.lease
        while True:
            try:
                return send()
            except ServerError:
                if monotonic() >= ends or self._over.wait(_AGAIN_S):
                    raise

    def set_back(self, spark: SparkSession, lease: BatchLease, error: BaseException, run_s: float) -> None:
        """Reports a batch whose attempt raised `error` after `run_s` seconds: handed back, or counted as failed."""
        if isinstance(error, (Snooze, Retry)) and (delay_s := error.delay_s) is not None:
            self.report(partial(lease.release, delay_s=delay_s))
            return
        cause = cause_of(error, spark)
        line = error_line(error)
        if cause is Cause.LOST:
            _log.warning("batch lost", batch=lease.id, queue=lease.queue, error=line)
        elif cause is Cause.CODE and not self.stopping.is_set() and self._blames_code(error):
            self._wait_for_code(lease, line)
        elif cause in (Cause.ITEMS, Cause.CODE) and not self.stopping.is_set():
            self._failed(lease, line, run_s)
        else:
            _log.warning("batch handed back", batch=lease.id, queue=lease.queue, error=line, cause=cause)
            if cause is Cause.ENGINE and not self.stopping.is_set():
                self.give_up(error)
            self.report(lease.release)

    def give_up(self, error: BaseException) -> None:
        """Notes an error that this process does not survive."""
        _log.error("station cannot go on", queue=self._station.queue, error=error_line(error))
        self.failure = error

    def _failed(self, lease: BatchLease, line: str, run_s: float) -> None:
        delay_s = self.report(partial(self._delay_s, lease.failures + 1))
        fate = self.report(partial(lease.fail, line, delay_s=delay_s))
        _log.warning("batch failed", batch=lease.id, queue=lease.queue, items=lease.size, fate=fate, error=line)
        counts = {"failed": lease.size, "dead": lease.size if fate == "dead" else 0}
        self._seen(BatchEnd(items=lease.size, counts=counts, run_s=run_s))
        self.in_a_row, pause_s = True, self._breaker.failed()
        if pause_s:
            _log.warning("station pauses", queue=lease.queue, seconds=pause_s, failed_in_a_row=self._breaker.in_a_row)
            self.stopping.wait(pause_s)

    def _blames_code(self, error: BaseException) -> bool:
        """Once the function has worked, an error of planning may come from values that it collected from its items."""
        return not self.has_worked or is_never_of_items(error)

    def _wait_for_code(self, lease: BatchLease, line: str) -> None:
        """Hands a batch back whose items are not to blame, and pauses. It is due again after the pause, so another one
        runs in between: when that succeeds the function works, and later errors count against their items."""
        self.in_a_row, pause_s = True, self._code_breaker.failed()
        _log.error("station fails before it reads an item", queue=lease.queue, batch=lease.id, items=lease.size,
                   error=line, pauses_s=pause_s)  # fmt: skip
        self.report(partial(lease.release, delay_s=_BEHIND_PAUSE * pause_s))
        self.stopping.wait(pause_s)

    def _delay_s(self, failures: int) -> float:
        return read_settings(self._broker.run(queues.settings(self._keys))).backoff.delay(failures)
