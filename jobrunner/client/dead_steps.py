"""Dead items brought back, once for Queue and AsyncQueue."""

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

from jobrunner.broker.calls import events, queues, tasks
from jobrunner.broker.keys import check_id
from jobrunner.client.events import who
from jobrunner.client.item import write_payload
from jobrunner.client.line import Line
from jobrunner.client.sealing import closed
from jobrunner.client.steps import Steps, ask
from jobrunner.errors import InvalidOption
from jobrunner.seal import Bound
from jobrunner.shown import shown

_AT_ONCE = 500
_READ_AT_ONCE = 1000


def requeue_dead(line: Line, chosen: Iterable[str] | None, rate: float | None, payload: Any) -> Steps[int]:
    """Returns how many were put back. With `rate` each is due 1 / rate seconds behind the one before."""
    if isinstance(chosen, (str, bytes)) or not isinstance(chosen, Iterable | None):
        raise InvalidOption(f"ids={shown(chosen)}: give a list of ids")
    step_ms = _step_ms(rate)
    rest = iter(chosen) if chosen is not None else iter((yield from _all_dead(line)))
    done = 0
    at_once = 1 if line.keys.seal is not None and payload is not msgspec.UNSET else _AT_ONCE
    while batch := [check_id(one) for one in itertools.islice(rest, at_once)]:
        fields = yield from _fields(line, payload, batch[0])
        call = tasks.requeue(line.keys, batch, start_ms=done * step_ms, step_ms=step_ms, fields=fields)
        done += (yield from ask(call)).count("ok")
    if done:
        yield from ask(events.note(line.all_keys, "dead_requeued", queue=line.name, by=who(), count=done))
    return done


def _step_ms(rate: float | None) -> float:
    if rate is None:
        return 0.0
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0.001 <= rate <= 1_000_000:
        raise InvalidOption(f"rate={shown(rate)}: give items per second, from 0.001 to 1 000 000")
    return 1000 / rate


def _fields(line: Line, payload: Any, first: str) -> Steps[list[bytes | str]]:
    if payload is msgspec.UNSET:
        return []
    raw, encoding = write_payload(payload, line.payload_limit)
    if line.keys.seal is not None:  # a seal is for one task, so they go one by one
        record = yield from ask(tasks.show(line.all_keys, first, queue=line.name))
        if record is not None:
            raw, encoding = closed(line.keys, raw, encoding, Bound(first, record.type, line.keys.tag))
    return ["payload", raw, "encoding", encoding]


def _all_dead(line: Line) -> Steps[list[str]]:
    total = (yield from ask(queues.counts(line.keys))).dead
    found: list[str] = []
    while len(found) < total:
        page = yield from ask(queues.ids(line.keys, "dead", start=len(found), count=_READ_AT_ONCE))
        if not page:
            break
        found += page
    return found[:total]
