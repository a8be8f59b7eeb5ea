"""Reports on batches of leases: the calls that carry them, and what their answers mean."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases
from jobrunner.client.item import check_verdict
from jobrunner.client.line import Line
from jobrunner.client.reserved import Reserved
from jobrunner.client.sealing import closed_results
from jobrunner.codec import encode
from jobrunner.errors import LeaseError, ReportsRefused, UsageError

T = TypeVar("T")
Words = list[str]
AT_ONCE = 500
"""Reports in one script: more would keep the server from others for too long."""


def own(line: Line, given: Iterable[Reserved]) -> list[Reserved]:
    """The leases, which must be of this queue. Raises UsageError."""
    held = list(given)
    for one in held:
        if one.queue != line.name:
            raise UsageError(f"item {one.id} was reserved from queue {one.queue!r}, not {line.name!r}; report it there")
    return held


def slices(items: Sequence[T]) -> list[Sequence[T]]:
    """Slices of up to AT_ONCE."""
    return [items[start : start + AT_ONCE] for start in range(0, len(items), AT_ONCE)]


def commit(line: Line, held: Sequence[Reserved], results: Sequence[Any]) -> Call[Words]:
    """Done, with what each returned."""
    stored: Iterable[bytes] = (b"" if result is None else encode(result, what="result") for result in results)
    said = zip(held, closed_results(line.keys, stored, (one.attempt for one in held)), strict=True)
    reports = [(one.id, one.token, 0, "succeeded", result, one.then) for one, result in said]
    return leases.commit(line.keys, reports)


def fail(line: Line, held: Sequence[Reserved], delays_s: Sequence[float], error: str) -> Call[Words]:
    """Failed, to be tried again after so many seconds each."""
    said = zip(held, delays_s, strict=True)
    return leases.fail(line.keys, [(one.id, one.token, round(delay * 1000), "retry", error) for one, delay in said])


def release(line: Line, held: Sequence[Reserved]) -> Call[Words]:
    """Back to their places."""
    return leases.release(line.keys, [(one.id, one.token, "") for one in held])


def extend(line: Line, held: Sequence[Reserved]) -> Call[Words]:
    """Renewed for their keepalive."""
    return leases.extend(line.keys, [(one.id, one.token, one.keepalive_ms) for one in held])


def verdicts(
    held: Sequence[Reserved], answers: Iterable[Words], note: Callable[[Reserved, str], None] | None = None
) -> list[bool]:
    """Beside the leases, whether each item was still there; `note` is told of each that was.

    Raises ReportsRefused when some reports were refused.
    """
    words = (word for answer in answers for word in answer)
    found = [_verdict(one, word, note) for one, word in zip(held, words, strict=True)]
    taken = [one for one in found if not isinstance(one, LeaseError)]
    if len(taken) < len(found):
        raise ReportsRefused(found)
    return taken


def _verdict(held: Reserved, word: str, note: Callable[[Reserved, str], None] | None) -> bool | LeaseError:
    try:
        is_there = check_verdict(word, held.id) != "gone"
    except LeaseError as error:
        return error
    if is_there and note is not None:
        note(held, word)
    return is_there
