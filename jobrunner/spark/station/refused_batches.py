"""Judges whether items are to blame when the server answers but refuses a batch.

Invariant: a server that is full, read-only, or may not write to its disk makes no item dead. So a refusal counts only
if other batches succeeded since the batch's previous refusal, or if the server accepted a row of the batch right after
it.
"""

from enum import StrEnum

from jobrunner.client.batches import BatchLease
from jobrunner.errors import BatchLost, ServerError
from jobrunner.spark.station.members import new_nonce

_PATIENT_WITH = 5
"""Refusals of one batch that cost no item an attempt."""
_SEARCHED = 32
"""Refusals in a row up to which a batch is split to find out whether any item works."""
_REMEMBERED = 10_000
_PROBE = (b"probe", b"", b"", b'{"new":1}')


class Blame(StrEnum):
    """The consequence of a refusal."""

    NONE = "none"
    """The batch is released."""
    SEARCH = "search"
    """The batch is split without counting an attempt: parts that succeed show that the others are to blame."""
    ITEMS = "items"
    """The refusal counts as a failure of the items."""
    LAST = "last"
    """As ITEMS, for a single item: the few items left cannot show that others work."""


class Refusals:
    """Counts the refusals of one station in this process. Not thread-safe."""

    def __init__(self) -> None:
        self._successes = self._in_a_row = 0
        self._of_root: dict[str, tuple[int, int, int]] = {}

    def succeeded(self) -> None:
        """Records that a batch was decided."""
        self._successes += 1
        self._in_a_row = 0

    def refused(self, root: str, size: int, *, takes_rows: bool, few_are_left: bool) -> Blame:
        """Counts a refusal of a batch of `size` items with this root. `takes_rows`: the server accepted a row of the
        batch right after the refusal. `few_are_left`: the queue has hardly any other item."""
        last, between, alone = self._of_root.pop(root, (-1, 0, 0))
        between, alone = between + (self._successes > last), alone + takes_rows
        self._of_root[root] = self._successes, between, alone
        if len(self._of_root) > _REMEMBERED:
            del self._of_root[next(iter(self._of_root))]
        self._in_a_row += 1
        if between > _PATIENT_WITH:
            return Blame.ITEMS
        if not takes_rows or alone <= _PATIENT_WITH:
            return Blame.NONE
        if size > 1:
            return Blame.SEARCH if self._in_a_row <= _SEARCHED else Blame.NONE
        return Blame.LAST if few_are_left else Blame.NONE


def takes_rows(lease: BatchLease) -> bool:
    """Whether the server accepts a row for this batch. The row is removed when the batch is released."""
    try:
        lease.stage(new_nonce("probe."), _PROBE, after=0)
    except (ServerError, BatchLost):
        return False
    return True
