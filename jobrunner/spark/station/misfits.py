"""Payloads that do not fit a schema: whether the items are to blame, or the schema that is declared."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable

from jobrunner.errors import StationError
from jobrunner.spark.station.failure_history import PATIENT_WITH


class NoPayloadFits(StationError):
    """No payload of a batch fits the schema of a station, which may be wrong."""


class InnerPayloads:
    """The stations within a chain whose schema a payload has fitted in this process. While none has, the schema may be
    wrong, and after the first few refused items no more may die of it. Thread-safe."""

    def __init__(self, few_are_left: Callable[[], bool] = lambda: True) -> None:
        self._few_are_left = few_are_left
        self._lock = threading.Lock()
        self._fitted: set[str] = set()
        self._refused: dict[str, set[str]] = defaultdict(set)

    def without_fit(self, queues: Iterable[str]) -> list[str]:
        """The queues for whose stations no payload has fitted yet."""
        return [queue for queue in queues if queue not in self._fitted]

    def saw_fit(self, queue: str) -> None:
        """Records that a payload fits the station of `queue`."""
        with self._lock:
            self._fitted.add(queue)
            self._refused.pop(queue, None)

    def may_bury(self, queue: str, ids: Iterable[str]) -> bool:
        """Whether items may die although no payload of their batch fits the station of `queue`. `ids`: of the batch, as
        many as PATIENT_WITH and one more."""
        with self._lock:
            refused = self._refused[queue]
            refused.update(one for one in ids if len(refused) <= PATIENT_WITH)
            are_few = len(refused) <= PATIENT_WITH
        return are_few or self._few_are_left()
