"""Batches that the server refused although it answers, and whether items of theirs are to blame.

Invariant: a server that is full, read-only, or may not write to its disk makes no item dead. So a refusal counts only
if other batches succeeded since the last one of its batch, or if the server took a row of the batch right after it.
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
    """Its batch is handed back."""
    SEARCH = "search"
    """Its batch is split, uncounted: parts that succeed show that the others are to blame."""
    ITEMS = "items"
    """It counts as a failure of the items."""
    LAST = "last"
    """The same for one item, as the few that are left will not show that others work."""


class Refusals:
    """Counts those of one station in this process. Not safe in several threads at once."""

    def __init__(self) -> None:
        self._successes = self._in_a_row = 0
        self._of_root: dict[str, tuple[int, int, int]] = {}

    def succeeded(self) -> None:
        """A batch was decided."""
        self._successes += 1
        self._in_a_row = 0

    def refused(self, root: str, size: int, *, takes_rows: bool, few_are_left: bool) -> Blame:
        """Counts a refusal of a batch of `size` items with this root. `takes_rows`: the server took a row of it right
        after the refusal. `few_are_left`: the queue has hardly any other item."""
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
    """Whether the server takes a row for this batch. It is removed when the batch is handed back."""
    try:
        lease.stage(new_nonce("probe."), _PROBE, after=0)
    except (ServerError, BatchLost):
        return False
    return True
