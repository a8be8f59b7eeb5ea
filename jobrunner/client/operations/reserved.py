"""An item under a lease, and the reports on batches of leases: their calls, and what the answers mean."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from jobrunner.attempt import Attempt
from jobrunner.broker.call import Call, in_slices, sliced
from jobrunner.broker.calls import leases
from jobrunner.client.encryption import encrypted_results, plain_payload
from jobrunner.client.item import check_verdict, read_headers, read_payload
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.codec import write_result
from jobrunner.error_groups import group_of, telling_line
from jobrunner.errors import InvalidOption, LeaseError, ReportsRefused, UsageError
from jobrunner.formatting import describe
from jobrunner.settings import DEFAULT_RESULT_TTL_S


class ReservedItem:
    """The common part of Lease and AsyncLease: everything except the reports."""

    def __init__(self, attempt: Attempt, ref: QueueRef) -> None:
        self.attempt = attempt
        self._line = ref
        self.id = attempt.id
        self.queue = attempt.queue
        self.token = attempt.token
        self.attempts = attempt.number
        self.retry_count = attempt.retry_count
        self.keepalive_ms = attempt.keepalive_ms
        self.deadline: datetime = attempt.deadline
        self.then = attempt.then or b""
        self.headers: dict[str, str] = read_headers(attempt.headers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, attempts={self.attempts}, deadline={self.deadline.isoformat()})"

    @property
    def payload(self) -> Any:
        """The pushed payload: the same bytes, or the same JSON value. Raises ValueError for a damaged JSON payload,
        EncryptionError for an encrypted or signed one that cannot be decrypted, PayloadStoreError for one that the
        payload store does not give."""
        return read_payload(*plain_payload(self._line.encryption, self._line.keys, self.attempt))

    @property
    def enqueue_time(self) -> datetime:
        """When the item was first pushed."""
        return self.attempt.enqueue_time


T = TypeVar("T")
Words = list[str]
_KEPT_MS = round(DEFAULT_RESULT_TTL_S * 1000)
"""How long a task of a job stays readable that is committed by hand: its enqueue may be sent again for so long."""
AT_ONCE = 500
"""Reports in one script: more would keep the server from others for too long."""


def listed(given: Iterable[T], what: str) -> list[T]:
    """The elements. Raises UsageError for what has none, or is a text."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise UsageError(f"{what}={describe(given)}: give a list of {what}")
    return list(given)


def one_for_each(held: Sequence[object], given: Iterable[T] | None, what: str) -> list[T] | None:
    """One value for each lease, or None. Raises UsageError."""
    found = None if given is None else listed(given, what)
    if found is not None and len(found) != len(held):
        raise InvalidOption(f"{len(found)} {what} are given for {len(held)} leases; give one for each, or None")
    return found


def own(ref: QueueRef, given: Iterable[ReservedItem]) -> list[ReservedItem]:
    """The leases, which must be of this queue. Raises UsageError."""
    held = listed(given, "leases")
    for one in held:
        if not isinstance(one, ReservedItem):
            raise UsageError(f"{describe(one)} is no lease; pass what reserve() returned")
        if one.queue != ref.name:
            raise UsageError(f"item {one.id} was reserved from queue {one.queue!r}, not {ref.name!r}; report it there")
    return held


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Slices of up to AT_ONCE."""
    return in_slices(items, AT_ONCE)


def commit(ref: QueueRef, held: Sequence[ReservedItem], results: Sequence[Any]) -> list[Call[Words]]:
    """Done, with what each returned: calls of up to AT_ONCE reports and a MiB of results."""
    stored: Iterable[bytes] = [write_result(result, ref.result_limit) for result in results]
    attempts = (one.attempt for one in held)
    said = zip(held, encrypted_results(ref.encryption, ref.keys, stored, attempts), strict=True)
    reports = [
        (one.id, one.token, _KEPT_MS if one.attempt.type else 0, "succeeded", result, one.then) for one, result in said
    ]
    calls = [leases.commit(ref.keys, some) for some in sliced(reports, lambda one: len(one[4]), most=AT_ONCE)]
    return [replace(call, read=partial(_committed, call.read)) for call in calls]


def _committed(read: Callable[[Any], Words], reply: Any) -> Words:
    """The words, of which 'unknown' says of a commit that its task is gone: by this commit, as it was sent twice."""
    return ["gone" if word == "unknown" else word for word in read(reply)]


def fail(ref: QueueRef, held: Sequence[ReservedItem], delays_s: Sequence[float], error: str) -> Call[Words]:
    """Failed, to be tried again after so many seconds each."""
    said = zip(held, delays_s, strict=True)
    groups = [group_of(one.attempt.type, telling_line(error)) for one in held]
    reports = [(one.id, one.token, round(delay * 1000), "retry", error) for one, delay in said]
    return leases.fail(ref.keys, reports, groups=groups)


def release(ref: QueueRef, held: Sequence[ReservedItem]) -> Call[Words]:
    """Back to their places. An item that a program reserved counts as begun."""
    return leases.release(ref.keys, [(one.id, one.token, "!") for one in held])


def extend(ref: QueueRef, held: Sequence[ReservedItem]) -> Call[Words]:
    """Renewed for their keepalive."""
    return leases.extend(ref.keys, [(one.id, one.token, one.keepalive_ms) for one in held])


def verdicts(
    held: Sequence[ReservedItem],
    answers: Iterable[Words],
    note: Callable[[ReservedItem, str], None] | None = None,
    to: str = "",
) -> list[bool]:
    """Returns, for each lease, whether its item still existed; calls `note` for each that did. `to`: where moves lead.

    Raises ReportsRefused when some reports were refused, or it is unknown whether they were taken.
    """
    words = (word for answer in answers for word in answer)
    found = [_verdict(one, word, note, to) for one, word in zip(held, words, strict=True)]
    taken = [one for one in found if not isinstance(one, LeaseError)]
    if len(taken) < len(found):
        raise ReportsRefused(found)
    return taken


def _verdict(
    held: ReservedItem, word: str, note: Callable[[ReservedItem, str], None] | None, to: str
) -> bool | LeaseError:
    try:
        is_there = check_verdict(word, held.id, to=to) != "gone"
    except LeaseError as error:
        return error
    if is_there and note is not None:
        note(held, word)
    return is_there
