"""Taking items under leases and reporting on them, once for threads and asyncio, for one lease and for a batch.

What must hold: an item that was reserved reaches the caller or goes back to its place, also when the coroutine that
reserved is cancelled; and a refused report of a batch never hides what became of the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases, queues
from jobrunner.client import reports
from jobrunner.client.item import check_verdict, milliseconds, write_headers, write_payload
from jobrunner.client.line import Line
from jobrunner.client.queue_settings import read_settings
from jobrunner.client.reports import Words
from jobrunner.client.reserved import Reserved
from jobrunner.client.sealing import bound_of, closed
from jobrunner.client.steps import Calls, Steps, Unbroken, ask
from jobrunner.client.token import new_token
from jobrunner.client.waits import Hint
from jobrunner.clock import from_ms, monotonic
from jobrunner.errors import InvalidOption, ReportsRefused, UsageError
from jobrunner.retry import seconds
from jobrunner.settings import Duration, check_whole
from jobrunner.shown import shown
from jobrunner.task import check_priority

_RECHECK_S = 2.0


def reserve(
    line: Line, n: int, keepalive: Duration | None, wait: Duration, committing: Iterable[Reserved]
) -> Steps[list[Attempt]]:
    """Returns what was handed out. Raises ReportsRefused, and hands nothing out, when a commit was refused."""
    check_whole(n, "n", minimum=1)
    keepalive_ms = milliseconds(keepalive, "keepalive")
    ends = monotonic() + seconds(wait, option="wait")
    held = reports.own(line, committing)
    commits: Calls = [reports.commit(line, part, [None] * len(part)) for part in reports.slices(held)]
    *said, found = yield _taking(line, n, keepalive_ms, commits)
    try:
        reports.verdicts(held, said)
    except ReportsRefused:
        yield Unbroken(_give_back(line, [found]), undo=lambda _: [])
        raise
    while not found.attempts and (left := ends - monotonic()) > 0:
        foretold = left if found.next_event_ms is None else (found.next_event_ms - found.now_ms) / 1000
        yield Hint(line.keys, min(left, foretold, _RECHECK_S))
        (found,) = yield _taking(line, n, keepalive_ms, [])
    return found.attempts  # type: ignore[no-any-return]


def commit(line: Line, held: Reserved, result: Any) -> Steps[bool]:
    """Returns False when the item is gone."""
    return (yield from _report(held, reports.commit(line, [held], [result]))) != "gone"


def rollback(line: Line, held: Reserved, delay: Duration | None, error: str) -> Steps[bool]:
    """Returns False when the item is gone."""
    _check_error(error)
    delays = yield from _delays(line, [held], delay)
    return (yield from _report(held, reports.fail(line, [held], delays, error))) != "gone"


def release(line: Line, held: Reserved) -> Steps[bool]:
    """Returns False when the item is gone."""
    return (yield from _report(held, reports.release(line, [held]))) != "gone"


def extend(line: Line, held: Reserved) -> Steps[bool]:
    """Returns False when the item is gone. Sets the new deadline."""
    word = yield from _report(held, reports.extend(line, [held]))
    if word != "gone":
        _note_deadline(held, word)
    return word != "gone"


def move(
    line: Line,
    held: Reserved,
    queue: str,
    payload: Any,
    headers: Mapping[str, str] | None,
    delay: Duration,
    priority: int | None,
    max_hops: int,
) -> Steps[bool]:
    """Returns False when the item is gone."""
    fields: list[bytes | str] = []
    if payload is not msgspec.UNSET:
        stored, encoding = write_payload(payload, line.payload_limit)
        stored, encoding = closed(line.keys, stored, encoding, bound_of(held.attempt, line.keys))
        fields += ["payload", stored, "encoding", encoding]
    if headers is not None:
        fields += ["headers", write_headers({**held.headers, **headers})]
    chosen = check_priority(priority)
    delay_ms = seconds(delay, option="delay") * 1000
    report = (held.id, held.token, "" if chosen is None else chosen, delay_ms, fields)
    word = yield from _report(held, leases.move(line.keys, line.neighbour(queue), [report], max_hops=max_hops))
    if word == "hops":
        raise UsageError(f"item {held.id} made {max_hops} hops, the most allowed; look for a loop without an end")
    return word != "gone"


def commit_many(line: Line, given: Iterable[Reserved], results: Iterable[Any] | None) -> Steps[list[bool]]:
    """Returns, beside the leases, False for those whose item is gone."""
    held = reports.own(line, given)
    said = [None] * len(held) if results is None else list(results)
    if len(said) != len(held):
        raise InvalidOption(f"{len(said)} results are given for {len(held)} leases; give one for each, or None")
    parts = zip(reports.slices(held), reports.slices(said), strict=True)
    return reports.verdicts(held, (yield [reports.commit(line, part, results) for part, results in parts]))


def rollback_many(line: Line, given: Iterable[Reserved], delay: Duration | None, error: str) -> Steps[list[bool]]:
    """Returns, beside the leases, False for those whose item is gone."""
    _check_error(error)
    held = reports.own(line, given)
    delays = yield from _delays(line, held, delay)
    parts = zip(reports.slices(held), reports.slices(delays), strict=True)
    return reports.verdicts(held, (yield [reports.fail(line, part, of_part, error) for part, of_part in parts]))


def release_many(line: Line, given: Iterable[Reserved]) -> Steps[list[bool]]:
    """Returns, beside the leases, False for those whose item is gone."""
    held = reports.own(line, given)
    return reports.verdicts(held, (yield [reports.release(line, part) for part in reports.slices(held)]))


def extend_many(line: Line, given: Iterable[Reserved]) -> Steps[list[bool]]:
    """Returns, beside the leases, False for those whose item is gone. Sets the new deadlines."""
    held = reports.own(line, given)
    answers = yield [reports.extend(line, part) for part in reports.slices(held)]
    return reports.verdicts(held, answers, _note_deadline)


def _taking(line: Line, n: int, keepalive_ms: int | None, commits: Calls) -> Unbroken:
    call = leases.reserve(line.keys, n, token=new_token(), keepalive_ms=keepalive_ms)
    return Unbroken([*commits, call], undo=partial(_give_back, line))


def _give_back(line: Line, answers: list[Any]) -> Calls:
    taken: list[Attempt] = answers[-1].attempts
    return [leases.release(line.keys, [(one.id, one.token, "") for one in taken])] if taken else []


def _report(held: Reserved, call: Call[Words]) -> Steps[str]:
    return check_verdict((yield from ask(call))[0], held.id)


def _delays(line: Line, held: Sequence[Reserved], delay: Duration | None) -> Steps[list[float]]:
    if delay is not None or not held:
        return [seconds(delay or 0, option="delay")] * len(held)
    backoff = read_settings((yield from ask(queues.settings(line.keys)))).backoff
    return [backoff.delay(one.retry_count + 1) for one in held]


def _check_error(error: object) -> None:
    if not isinstance(error, str):
        raise InvalidOption(f"error={shown(error)}: give a text")


def _note_deadline(held: Reserved, word: str) -> None:
    held.deadline = from_ms(float(word.lstrip("!")))  # "!": it was asked to stop
