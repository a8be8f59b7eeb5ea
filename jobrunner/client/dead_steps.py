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
from jobrunner.client.steps import Steps, ask
from jobrunner.errors import InvalidOption

_AT_ONCE = 500
_READ_AT_ONCE = 1000


def requeue_dead(line: Line, chosen: Iterable[str] | None, rate: float | None, payload: Any) -> Steps[int]:
    """Returns how many were put back. With `rate` each is due 1 / rate seconds behind the one before."""
    if isinstance(chosen, str):
        raise InvalidOption(f"ids={chosen!r}: give a list of ids")
    step_ms, fields = _step_ms(rate), _fields(line, payload)
    rest = iter(chosen) if chosen is not None else iter((yield from _all_dead(line)))
    done = 0
    while batch := [check_id(one) for one in itertools.islice(rest, _AT_ONCE)]:
        call = tasks.requeue(line.keys, batch, start_ms=done * step_ms, step_ms=step_ms, fields=fields)
        done += (yield from ask(call)).count("ok")
    if done:
        yield from ask(events.note(line.all_keys, "dead_requeued", queue=line.name, by=who(), count=done))
    return done


def _step_ms(rate: float | None) -> float:
    if rate is None:
        return 0.0
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0.001 <= rate <= 1_000_000:
        raise InvalidOption(f"rate={rate!r}: give items per second, from 0.001 to 1 000 000")
    return 1000 / rate


def _fields(line: Line, payload: Any) -> list[bytes | str]:
    if payload is msgspec.UNSET:
        return []
    raw, encoding = write_payload(payload, line.payload_limit)
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
