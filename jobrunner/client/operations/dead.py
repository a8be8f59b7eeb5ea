"""Dead items brought back, once for Queue and AsyncQueue."""

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

from jobrunner.broker.call import SLICE_BYTES
from jobrunner.broker.calls import events, queues, tasks
from jobrunner.broker.keys import check_id
from jobrunner.client.encryption import decrypted_record, encrypted_payload
from jobrunner.client.item import write_payload
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Operation, ask
from jobrunner.encryption.cipher import EncryptionContext
from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe

_AT_ONCE = 500
_READ_AT_ONCE = 1000


def requeue_dead(line: QueueRef, chosen: Iterable[str] | None, rate: float | None, payload: Any) -> Operation[int]:
    """Returns how many were put back. With `rate` each is due 1 / rate seconds behind the one before."""
    if isinstance(chosen, (str, bytes)) or not isinstance(chosen, Iterable | None):
        raise InvalidOption(f"ids={describe(chosen)}: give a list of ids")
    step_ms = _step_ms(rate)
    rest = iter(chosen) if chosen is not None else iter((yield from _all_dead(line)))
    done = 0
    at_once = _at_once(line, payload)
    while batch := [check_id(one) for one in itertools.islice(rest, at_once)]:
        fields = yield from _fields(line, payload, batch[0])
        call = tasks.requeue(line.keys, batch, start_ms=done * step_ms, step_ms=step_ms, fields=fields)
        done += (yield from ask(call)).count("ok")
    if done:
        yield from ask(events.note(line.all_keys, "dead_requeued", queue=line.name, by=events.who(), count=done))
    return done


def _at_once(line: QueueRef, payload: Any) -> int:
    if payload is msgspec.UNSET:
        return _AT_ONCE
    if line.encryption is not None:
        return 1
    raw, _ = write_payload(payload, line.payload_limit)  # the server copies it for each of them
    return min(SLICE_BYTES // max(len(raw), 1) or 1, _AT_ONCE)


def _step_ms(rate: float | None) -> float:
    if rate is None:
        return 0.0
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0.001 <= rate <= 1_000_000:
        raise InvalidOption(f"rate={describe(rate)}: give items per second, from 0.001 to 1 000 000")
    return 1000 / rate


def _fields(line: QueueRef, payload: Any, first: str) -> Operation[list[bytes | str]]:
    if payload is msgspec.UNSET:
        return []
    raw, encoding = write_payload(payload, line.payload_limit)
    if line.encryption is not None:  # a payload is encrypted for one task, so they go one by one
        record = yield from ask(tasks.show(line.all_keys, first, queue=line.name))
        if record is not None:
            record = decrypted_record(line.encryption, record)
            if record.unread is not None:  # whoever changed its job or headers would have them encrypted anew
                raise record.unread
            headers, then = (record.fields.get(name, b"") for name in ("headers", "then"))
            context = EncryptionContext(first, record.type, line.keys.tag, line.name, headers, then)
            raw, encoding = encrypted_payload(line.encryption, raw, encoding, context, after=record.after)
    return ["payload", raw, "encoding", encoding]


def _all_dead(line: QueueRef) -> Operation[list[str]]:
    total = (yield from ask(queues.counts(line.keys))).dead
    found: list[str] = []
    while len(found) < total:
        page = yield from ask(queues.ids(line.keys, "dead", start=len(found), count=_READ_AT_ONCE))
        if not page:
            break
        found += page
    return found[:total]
