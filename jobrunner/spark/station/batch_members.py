"""The members of a batch by id and by digest, which each of its sinks compares with its notes."""

from typing import Any

from jobrunner.client.batches import BatchLease
from jobrunner.spark.station.staging import digests_of

_AT_ONCE = 5_000


class BatchMembers:
    """Reads them once, however many sinks ask; its attempt takes no more members by then. For one thread."""

    def __init__(self, lease: BatchLease) -> None:
        self._lease = lease
        self._read: tuple[list[str], Any] | None = None

    def read(self) -> tuple[list[str], Any]:
        """(ids in the order of the line, an array of 64 bits for each). Raises ServerError."""
        if self._read is None:  # no cached_property: that of Python 3.11 has one lock for all batches
            lease = self._lease
            ids = [one for first in range(0, lease.size, _AT_ONCE) for one in lease.members(first, _AT_ONCE)]
            self._read = ids, digests_of(one.encode() for one in ids)
        return self._read
