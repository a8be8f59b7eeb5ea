"""The members of a batch by id and by digest, which each of its sinks compares with its notes."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from jobrunner.client.batches import BatchLease
from jobrunner.spark.station.staging import digests_of

_AT_ONCE = 5_000


class BatchMembers:
    """Reads them once, however many sinks ask; its attempt takes no more members by then."""

    def __init__(self, lease: BatchLease) -> None:
        self._lease = lease

    @cached_property
    def ids(self) -> list[str]:
        """In the order of the line. Raises ServerError."""
        return list(self._read())

    @cached_property
    def digests(self) -> Any:
        """64 bits for each, as an array."""
        return digests_of(one.encode() for one in self.ids)

    def _read(self) -> Iterator[str]:
        for first in range(0, self._lease.size, _AT_ONCE):
            yield from self._lease.members(first, _AT_ONCE)
