"""Taking items under leases and reporting on them, once for threads and asyncio, for one lease and for a batch.

Invariant: an item that was reserved reaches the caller or goes back to its place, also when the coroutine that
reserved is cancelled; and a refused report of a batch never hides what became of the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.broker.call import Call, sliced
from jobrunner.broker.calls import leases, queues
from jobrunner.broker.keys import QueueKeys
from jobrunner.broker.shards import whole_queue
from jobrunner.client.encryption import decrypted_payload, encrypted_payload
from jobrunner.client.item import check_verdict, write_headers, write_payload
from jobrunner.client.operations import reserved as reports
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.hints import WorkHint
from jobrunner.client.operations.operation import Calls, Operation, Uninterrupted, ask
from jobrunner.client.operations.reserved import ReservedItem, Words
from jobrunner.client.outgoing import new_token
from jobrunner.client.settings_hash import read_settings
from jobrunner.clock import from_ms, monotonic
from jobrunner.encryption.cipher import EncryptionContext
from jobrunner.errors import InvalidOption, JobrunnerError, PipelineError, ReportsRefused
from jobrunner.formatting import describe, storable
from jobrunner.option_names import nearest
from jobrunner.retry import lease_ms, seconds
from jobrunner.settings import Duration, check_whole
from jobrunner.task import check_priority

_RECHECK_S = 2.0
RESERVED_AT_ONCE = 10_000
"""Items that one script hands out, in some 100 ms. With many more the client stops waiting for the reply, and the items
are under leases that nobody has. Large payloads end it earlier: `leases.CALL_BYTES`."""
MOVED_AT_ONCE = 250
"""Moves in one script: each writes a hash and two sets, and more would keep the server from others for too long."""


def reserve(
    ref: QueueRef, n: int, keepalive: Duration | None, wait: Duration, committing: Iterable[ReservedItem]
) -> Operation[list[Attempt]]:
    """Returns what was handed out. Raises ReportsRefused, and hands nothing out, when a commit was refused."""
    check_whole(n, "n", minimum=1, maximum=RESERVED_AT_ONCE)
    keepalive_ms = lease_ms(keepalive)
    ends = monotonic() + seconds(wait, option="wait")
    held = reports.own(ref, committing)
    commits: Calls = [*reports.commit(ref, held, [None] * len(held))]
    *said, found = yield from _taken(ref, n, keepalive_ms, commits)
    try:
        reports.verdicts(held, said)
    except ReportsRefused:
        yield Uninterrupted(_released([(ref, n)], [found]), undo=lambda _: [])
        raise
    while not found.attempts:
        if not found.is_cut_short:
            if (left := ends - monotonic()) <= 0:
                break
            foretold = left if found.next_event_ms is None else (found.next_event_ms - found.now_ms) / 1000
            yield WorkHint([ref.keys], min(left, foretold, _RECHECK_S))
        (found,) = yield from _taken(ref, n, keepalive_ms, [])
    return found.attempts  # type: ignore[no-any-return]


def commit(ref: QueueRef, held: ReservedItem, result: Any) -> Operation[bool]:
    """Returns False when the item is gone, also by this commit, whose reply was lost and which was sent again."""
    (call,) = reports.commit(ref, [held], [result])
    return (yield from _report(held, call)) != "gone"


def rollback(ref: QueueRef, held: ReservedItem, delay: Duration | None, error: str) -> Operation[bool]:
    """Returns False when the item is gone."""
    text = _error_text(error)
    delays = yield from _delays(ref, [held], delay)
    return (yield from _report(held, reports.fail(ref, [held], delays, text))) != "gone"


def release(ref: QueueRef, held: ReservedItem) -> Operation[bool]:
    """Returns False when the item is gone."""
    return (yield from _report(held, reports.release(ref, [held]))) != "gone"


def extend(ref: QueueRef, held: ReservedItem) -> Operation[bool]:
    """Returns False when the item is gone. Sets the new deadline."""
    word = yield from _report(held, reports.extend(ref, [held]))
    if word != "gone":
        _note_deadline(held, word)
    return word != "gone"


def move(
    ref: QueueRef,
    held: ReservedItem,
    queue: str,
    payload: Any,
    headers: Mapping[str, str] | None,
    delay: Duration,
    priority: int | None,
    max_hops: int,
) -> Operation[bool]:
    """Returns False when the item is gone. Raises PipelineError for a target that a published pipeline has not."""
    payloads = None if payload is msgspec.UNSET else [payload]
    (call,) = yield from moves(ref, [held], queue, payloads, headers, delay, priority, max_hops)
    to = whole_queue(ref.neighbour(queue).name)
    return check_verdict((yield from ask(call))[0], held.id, to=to, max_hops=max_hops) != "gone"


def move_many(
    ref: QueueRef,
    given: Iterable[ReservedItem],
    queue: str,
    payloads: Iterable[Any] | None,
    headers: Mapping[str, str] | None,
    delay: Duration,
    priority: int | None,
    max_hops: int,
) -> Operation[list[bool]]:
    """Returns one bool per lease, False for an item that no longer exists."""
    held = reports.own(ref, given)
    chosen = reports.one_for_each(held, payloads, "payloads")
    calls = yield from moves(ref, held, queue, chosen, headers, delay, priority, max_hops)
    to = whole_queue(ref.neighbour(queue).name) if held else ""
    return reports.verdicts(held, (yield calls), to=to)


def moves(
    ref: QueueRef,
    held: Sequence[ReservedItem],
    queue: str,
    payloads: Sequence[Any] | None,
    headers: Mapping[str, str] | None,
    delay: Duration,
    priority: int | None,
    max_hops: int,
) -> Operation[Calls]:
    """Returns the calls that move these; checks everything before anything is sent. Raises as `move_many`."""
    if not held:
        return []
    most_hops = check_whole(max_hops, "max_hops", minimum=0)
    if headers is not None:
        write_headers(headers)  # raises for what are none, before they are merged with those of each lease
    to, chosen = ref.neighbour(queue), check_priority(priority)
    place, delay_ms = "" if chosen is None else chosen, seconds(delay, option="delay") * 1000
    fields = [
        _moved_fields(ref, one, to, msgspec.UNSET if payloads is None else payloads[n], headers)
        for n, one in enumerate(held)
    ]
    yield from _check_target(ref, to.name)
    rows = [(one.id, one.token, place, delay_ms, words) for one, words in zip(held, fields, strict=True)]
    parts = sliced(rows, lambda report: sum(map(len, report[4])), most=MOVED_AT_ONCE)
    return [leases.move(ref.keys, to, part, max_hops=most_hops) for part in parts]


def _moved_fields(
    ref: QueueRef, held: ReservedItem, to: QueueKeys, payload: Any, headers: Mapping[str, str] | None
) -> list[bytes | str]:
    fields: list[bytes | str] = []
    if headers is not None:
        fields += ["headers", write_headers({**held.headers, **headers})]
    if ref.encryption is None and payload is not msgspec.UNSET:
        raw, encoding = write_payload(payload, ref.payload_limit)
        return [*fields, "payload", raw, "encoding", encoding]
    return fields + _payload(ref, held, to, payload, fields[1] if fields else held.attempt.headers or b"")


def _check_target(ref: QueueRef, target: str) -> Operation[None]:
    """Once for each target: in a pipeline whose queues are known, an item would wait for ever in any other. A new
    target is registered, as by a push."""
    if target == ref.name or target in ref.targets:
        return
    pipeline, whole = whole_queue(ref.keys.tag), whole_queue(target)
    names = [whole] if whole == target else [whole, target]
    known, found = yield [queues.declared(ref.all_keys, pipeline), queues.seem_registered(ref.all_keys, names)]
    if known and not found[0] and whole not in known:
        short = [name.partition("/")[2] for name in known]
        name = target.partition("/")[2]
        raise PipelineError(
            f"pipeline {pipeline!r} has no queue {name!r}; {nearest(name, short)} The item stays where it is"
        )
    if not all(found):
        yield queues.register_if_room(ref.all_keys, names)
    ref.targets.add(target)


def _payload(
    ref: QueueRef, held: ReservedItem, to: QueueKeys, payload: Any, headers: bytes | str
) -> list[bytes | str]:
    """The fields of a payload that moves. Ciphertext is for one queue and its headers, so the payload is encrypted anew
    for them."""
    after = b""
    if payload is not msgspec.UNSET:
        raw, encoding = write_payload(payload, ref.payload_limit)
        if ref.encryption is not None and held.then:
            after = decrypted_payload(ref.encryption, ref.keys, held.attempt).after or b""
    elif ref.encryption is not None:
        found = decrypted_payload(ref.encryption, ref.keys, held.attempt)
        raw, encoding, after = found.raw, found.encoding.decode("utf-8", "replace"), found.after or b""
    else:
        return []
    encoded = headers.encode() if isinstance(headers, str) else headers
    context = EncryptionContext(held.id, held.attempt.type, to.tag, to.name, encoded, held.then)
    raw, encoding = encrypted_payload(ref.encryption, raw, encoding, context, after=after)
    return ["payload", raw, "encoding", encoding]


def commit_many(ref: QueueRef, given: Iterable[ReservedItem], results: Iterable[Any] | None) -> Operation[list[bool]]:
    """Returns one bool per lease, False for an item that no longer exists."""
    held = reports.own(ref, given)
    stored = reports.one_for_each(held, results, "results") or [None] * len(held)
    return reports.verdicts(held, (yield [*reports.commit(ref, held, stored)]))


def rollback_many(
    ref: QueueRef, given: Iterable[ReservedItem], delay: Duration | None, error: str
) -> Operation[list[bool]]:
    """Returns one bool per lease, False for an item that no longer exists."""
    text = _error_text(error)
    held = reports.own(ref, given)
    delays = yield from _delays(ref, held, delay)
    parts = zip(reports.slices(held), reports.slices(delays), strict=True)
    return reports.verdicts(held, (yield [reports.fail(ref, part, of_part, text) for part, of_part in parts]))


def release_many(ref: QueueRef, given: Iterable[ReservedItem]) -> Operation[list[bool]]:
    """Returns one bool per lease, False for an item that no longer exists."""
    held = reports.own(ref, given)
    return reports.verdicts(held, (yield [reports.release(ref, part) for part in reports.slices(held)]))


def extend_many(ref: QueueRef, given: Iterable[ReservedItem]) -> Operation[list[bool]]:
    """Returns one bool per lease, False for an item that no longer exists. Sets the new deadlines."""
    held = reports.own(ref, given)
    answers = yield [reports.extend(ref, part) for part in reports.slices(held)]
    return reports.verdicts(held, answers, _note_deadline)


def _taken(ref: QueueRef, n: int, keepalive_ms: int | None, commits: Calls) -> Operation[list[Any]]:
    """Returns the answers to the commits, and the reservation. Raises for the first call that the server refused; what
    the reserve handed out all the same goes back."""
    step = taking([(ref, n)], keepalive_ms, commits)
    answers = yield step
    for answer in answers:
        if isinstance(answer, JobrunnerError):
            if back := step.undo(answers):
                yield Uninterrupted(back, undo=lambda _: [])
            raise answer
    return answers  # type: ignore[no-any-return]


def taking(
    wanted: Sequence[tuple[QueueRef, int]], keepalive_ms: int | None, commits: Sequence[Call[Any]] = ()
) -> Uninterrupted:
    """Reserves so many items from each queue, behind the commits; the queues share the bytes of one call. What was
    reserved is released when the caller is cancelled meanwhile."""
    most_bytes = leases.CALL_BYTES // len(wanted)
    reserves = [
        leases.reserve(ref.keys, n, token=new_token(), keepalive_ms=keepalive_ms, most_bytes=most_bytes)
        for ref, n in wanted
    ]
    return Uninterrupted([*commits, *reserves], undo=lambda answers: _released(wanted, answers[len(commits) :]))


def _released(wanted: Sequence[tuple[QueueRef, int]], answers: list[Any]) -> Calls:
    return [
        leases.release(ref.keys, [(one.id, one.token, "") for one in answer.attempts])
        for (ref, _), answer in zip(wanted, answers, strict=True)
        if not isinstance(answer, JobrunnerError) and answer.attempts
    ]


def _report(held: ReservedItem, call: Call[Words]) -> Operation[str]:
    return check_verdict((yield from ask(call))[0], held.id)


def _delays(ref: QueueRef, held: Sequence[ReservedItem], delay: Duration | None) -> Operation[list[float]]:
    if delay is not None or not held:
        return [seconds(delay or 0, option="delay")] * len(held)
    backoff = read_settings((yield from ask(queues.settings(ref.keys)))).backoff
    return [backoff.delay(one.retry_count + 1) for one in held]


def _error_text(error: object) -> str:
    if not isinstance(error, str):
        raise InvalidOption(f"error={describe(error)}: give a text")
    return storable(error)


def _note_deadline(held: ReservedItem, word: str) -> None:
    held.deadline = from_ms(float(word.lstrip("!")))  # "!": it was asked to stop
