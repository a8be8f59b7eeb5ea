"""Successes and failures of a station's batches, as evidence whether the items of a failed batch are to blame. No I/O.

Invariant: a server that is full, read-only, or may not write to its disk makes no item dead. Its refusal of a batch
counts only if other batches succeeded since the batch's previous refusal, or if the server accepted a row of the batch
right after it.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from jobrunner.errors import PayloadTooLarge, PipelineError, UnknownMember

PATIENT_WITH = 5
"""The most failures in a row that a few bad items cause among many good items, as parts that succeed come between."""
SEARCHED = 32
"""Failures, or refusals by the server, in a row up to which a batch is split to find an item that works: the parts on
one path from a large batch to single items."""
_MANY_IN_A_ROW = 64
"""Failures in a row up to which an earlier success, or a text of its own, proves that an item is to blame. Bad items
may be adjacent, but many failures without a success have another cause: the code, deployed with a fault."""
_REMEMBERED = 10_000
_VARYING = re.compile(r"[\w+/=.-]*\d[\w+/=.-]*")
"""Words that differ from one failure of an outage to the next: times, ports, ids of requests."""
_OF_RESULTS = frozenset(one.__name__ for one in (PipelineError, PayloadTooLarge, UnknownMember))
"""Errors of this package about the rows that a function made."""
_OF_ITEM = re.compile(r"(?<=\bitem )\S+|(?<=, such as ).*?(?=: |$)|(?<=\(payload ).*(?=\))", re.DOTALL)
"""The item, or its payload, in an error about rows."""
_PATIENT_WITH_REFUSALS = 5
"""Refusals of one batch that cost no item an attempt."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Results of a station's batches that indicate whether a failed batch is to blame."""

    has_worked: bool
    """Whether any batch succeeded in this process."""
    others_worked: bool
    """Whether a batch succeeded since this batch, or a batch of which it is a part, first failed with this class of
    error."""
    in_a_row: int
    """Batches that failed since the last success, each counted once."""
    is_one_error: bool
    """Whether the batches counted in `in_a_row` failed with the same error, or are many and failed at the same place in
    the user's code."""
    failed_alone: bool
    """Whether this batch has failed before in this process, and since then another batch succeeded, or none ran: the
    limits that its items count against may hold up all others."""


class Blame(StrEnum):
    """The consequence of a refusal by the server."""

    NONE = "none"
    """The batch is released."""
    SEARCH = "search"
    """The batch is split without counting an attempt: parts that succeed show that the others are to blame."""
    ITEMS = "items"
    """The refusal counts as a failure of the items."""
    LAST = "last"
    """As ITEMS, for a single item: the few items left cannot show that others work."""


class FailureHistory:
    """The successes, failures and refusals of one station in this process. Not thread-safe."""

    def __init__(self) -> None:
        self._successes = 0
        self._failed_at: dict[tuple[str, str], int] = {}
        self._in_a_row: dict[str, tuple[str, str]] = {}
        self._since_success = 0
        self._runs = self._last_success = 0
        self._last_failure: dict[str, int] = {}
        self._refusals_of: dict[str, tuple[int, int, int]] = {}
        """By root: the successes at its last refusal, its refusals with a success before, and those in which the server
        took a row."""
        self._refusals_in_a_row = 0

    @property
    def has_worked(self) -> bool:
        """Whether any batch succeeded in this process."""
        return self._successes > 0

    def succeeded(self) -> None:
        """Counts a batch whose function made its rows."""
        self._successes += 1
        self._runs += 1
        self._last_success = self._runs
        self._in_a_row.clear()
        self._since_success = self._refusals_in_a_row = 0

    def failed(
        self, batch_id: str, root: str, line: str, place: str = "", *, may_pass: bool = False,
        worked_elsewhere: bool = False,
    ) -> Evidence:
        """Counts a failure with this error. `place`: where the user's code raised it; '' when unknown. `may_pass`: the
        error may be an outage behind a sink, so a success of other batches proves nothing, and errors that differ only
        in words with digits are the same. `worked_elsewhere`: another part of the same batch succeeded, maybe in
        another process."""
        kind = line.partition(":")[0]
        first = min(self._failed_at.get((one, kind), self._successes) for one in _with_larger(batch_id, root))
        self._failed_at.setdefault((batch_id, kind), self._successes)
        last = self._last_failure.pop(batch_id, None)
        failed_alone = last is not None and (self._last_success > last or self._runs == last)
        self._runs += 1
        self._last_failure[batch_id] = self._runs
        _forget(self._failed_at)
        _forget(self._last_failure)
        self._since_success += 1
        others_worked = self._successes > first and self._since_success <= _MANY_IN_A_ROW and not may_pass
        if not others_worked:
            words = compared(line, may_pass=may_pass)
            self._in_a_row[batch_id] = (words, f"{kind} {place}" if place else words)
            others_worked = worked_elsewhere and len(self._in_a_row) <= _MANY_IN_A_ROW and not may_pass
        in_a_row = len(self._in_a_row)
        compares_places = in_a_row > _MANY_IN_A_ROW
        is_one_error = len({place if compares_places else words for words, place in self._in_a_row.values()}) <= 1
        return Evidence(self.has_worked, others_worked, in_a_row, is_one_error, failed_alone)

    def refused(self, root: str, size: int, *, takes_rows: bool, few_are_left: bool) -> Blame:
        """Counts a refusal of a batch of `size` items with this root. `takes_rows`: the server accepted a row of the
        batch right after the refusal. `few_are_left`: the queue has hardly any other item."""
        last, between, alone = self._refusals_of.pop(root, (-1, 0, 0))
        between, alone = between + (self._successes > last), alone + takes_rows
        self._refusals_of[root] = self._successes, between, alone
        _forget(self._refusals_of)
        self._refusals_in_a_row += 1
        if between > _PATIENT_WITH_REFUSALS:
            return Blame.ITEMS
        if not takes_rows or alone <= _PATIENT_WITH_REFUSALS:
            return Blame.NONE
        if size > 1:
            return Blame.SEARCH if self._refusals_in_a_row <= SEARCHED else Blame.NONE
        return Blame.LAST if few_are_left else Blame.NONE


def compared(line: str, *, may_pass: bool) -> str:
    """The part of an error that is the same for all batches with that error. Numbers in an error of a row are values of
    its item, and stay. Numbers in an outage are masked, and numbers and items in this package's errors about rows."""
    is_of_results = line.partition(":")[0] in _OF_RESULTS
    line = _OF_ITEM.sub("#", line) if is_of_results else line
    return _VARYING.sub("#", line) if is_of_results or may_pass else line


def _forget(remembered: dict[Any, Any]) -> None:
    if len(remembered) > _REMEMBERED:
        del remembered[next(iter(remembered))]


def _with_larger(batch_id: str, root: str) -> list[str]:
    found = [batch_id]
    while found[-1] != root and "." in found[-1]:
        found.append(found[-1].rpartition(".")[0])
    return found
