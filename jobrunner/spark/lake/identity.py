"""The identity of a batch in the transactions of a table: the marks of its commits.

Each commit leaves a mark for the batch (the number of the attempt that wrote it) and one for each larger batch that it
is a part of (PARTS). So the marks reveal a repeated commit, a part whose whole was written, and a whole whose parts
were written. Two commits of batches with one root write the same mark, so the table makes them conflict.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from secrets import randbits
from typing import Protocol

from jobrunner.errors import BatchLost, MicroBatchChanged

PARTS = 0
"""The mark of a batch of which a part was written."""
KEPT_DAYS = 8
"""Days that a table remembers a batch: a day longer than the server keeps a batch that no driver takes."""
_RANDOM_BITS, _QUERY_BITS = 32, 16
_OF_QUERY = 1 << 62
"""Flag in the number of an attempt at a micro-batch whose query is known: half of the random bits then identify the
query."""


class BatchIdentity(Protocol):
    """The attributes of a batch that a commit uses; SinkBatch provides them."""

    @property
    def id(self) -> str:
        """The id of the batch: the same for the same items."""

    @property
    def supersedes(self) -> tuple[str, ...]:
        """Ids of the larger batches that contain this batch, the nearest first."""

    @property
    def epoch(self) -> int:
        """Counts the attempts, from 1 on."""

    @property
    def renew(self) -> Callable[[], None]:
        """Raises BatchLost when another attempt may have begun."""


class Standing(StrEnum):
    """The state of an attempt, by the marks in a table."""

    NEW = "new"
    """No attempt was written: this attempt is to write."""
    OURS = "ours"
    """This attempt was written."""
    WRITTEN = "written"
    """Another attempt at this batch was written, or the batch of which this is a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAttempt:
    """One attempt to write one batch to one table."""

    batch_id: str
    larger: tuple[str, ...] = ()
    """The batches that contain this batch, the nearest first."""
    number: int
    """Unique to this attempt: the epoch, and random bits because a failover may give one epoch to two holders. Some of
    the random bits identify the query of a micro-batch."""
    renew: Callable[[], None] = field(repr=False, compare=False)
    counts_rows: bool = False
    """Whether its marks have the number of its rows: a stream whose checkpoint is older than the table gives the number
    of a written micro-batch to other rows."""
    rows: int | None = None
    """The number of rows, once it is known."""

    @property
    def root(self) -> str:
        """The batch that was taken from the queue: this batch, or the one it was split from."""
        return self.larger[-1] if self.larger else self.batch_id

    @property
    def epoch(self) -> int:
        """The epoch in the number."""
        return epoch_in(self.number)

    def marks(self) -> Mapping[str, int]:
        """The marks that its commit writes, by batch."""
        counted = {rows_of(self.batch_id): self.rows} if self.counts_rows and self.rows else {}
        return {**dict.fromkeys(self.larger, PARTS), self.batch_id: self.number} | counted

    def standing(self, mark_of: Callable[[str], int | None]) -> Standing:
        """The state of this attempt by the marks of a table. Raises BatchLost when the batch was split and a part of it
        was written, MicroBatchChanged when a query with another checkpoint wrote a micro-batch of this name and
        number."""
        own = mark_of(self.batch_id)
        if own == PARTS:
            raise BatchLost(
                f"batch {self.batch_id!r} was split, and a part of it is written, or it was fenced: this wrote nothing"
            )
        if own is not None:
            if _are_of_two_queries(own, self.number):
                raise MicroBatchChanged.of_another_query(self.batch_id)
            return Standing.OURS if own == self.number else Standing.WRITTEN
        for larger in self.larger:
            if mark_of(larger):
                return Standing.WRITTEN
        return Standing.NEW


def attempt_of(
    batch: BatchIdentity, name: str = "", query: str = "", *, counts_rows: bool = False
) -> WriteAttempt:  # fmt: skip
    """A new attempt at a batch. `name` distinguishes several writes of one batch to one table; `query` is the id of the
    streaming query whose micro-batch it is, if that is known."""
    prefix = f"{name}/" if name else ""
    bits = randbits(_RANDOM_BITS) | 1
    if query:
        bits = _OF_QUERY | _digest(query) << _QUERY_BITS | bits & ((1 << _QUERY_BITS) - 1)
    return WriteAttempt(
        batch_id=f"{prefix}{batch.id}",
        larger=tuple(f"{prefix}{one}" for one in batch.supersedes),
        number=batch.epoch << _RANDOM_BITS | bits,
        renew=batch.renew,
        counts_rows=counts_rows,
    )


def rows_of(batch_id: str) -> str:
    """The name of the mark that has the number of rows of a micro-batch, whose id ends with its own number."""
    return f"{batch_id} rows"


def is_written(batch_id: str, mark_of: Callable[[str], int | None]) -> bool:
    """Whether the rows of a batch are in a table, by its own commit or by the commit of a larger batch."""
    while not mark_of(batch_id):
        if "." not in batch_id:
            return False
        batch_id = batch_id.rpartition(".")[0]
    return True


def epoch_in(number: int) -> int:
    """The epoch of the attempt with this number."""
    return (number & ~_OF_QUERY) >> _RANDOM_BITS


def _digest(query: str) -> int:
    return int.from_bytes(hashlib.sha256(query.encode()).digest()[: _QUERY_BITS // 8])


def _are_of_two_queries(one: int, other: int) -> bool:
    digests = {number >> _QUERY_BITS & ((1 << _QUERY_BITS) - 1) for number in (one, other)}
    return bool(one & other & _OF_QUERY) and len(digests) > 1
