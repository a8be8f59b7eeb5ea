"""Events: workers, leaders, pauses, deaths and changes, the newest first, with a filter by kind."""

import re
from dataclasses import replace

from jobrunner.broker.calls import events as calls
from jobrunner.client.client import broker_of, keys_of
from jobrunner.events import KINDS, Event
from jobrunner.web.routing import Context, Page, Values

_AT_ONCE = 100
_READ_AT_ONCE = 2500
_MOST_READS = 5
"""Together above what the stream keeps, so a rare kind is found however many events of others there are."""
_PLACE = re.compile(r"\d{1,18}-\d{1,18}")


def _events(context: Context) -> tuple[str, Values]:
    kind = context.query.choice("kind", KINDS, "")
    before = context.query.text("before")
    before = before if _PLACE.fullmatch(before) else ""
    found = _newest(context, kind, before)
    return "events.html", {
        "nav": context.glance().nav,
        "events": found[:_AT_ONCE],
        "kinds": KINDS,
        "kind": kind,
        "before": before,
        "onward": found[_AT_ONCE - 1].id if len(found) > _AT_ONCE else "",
    }


def _newest(context: Context, kind: str, before: str) -> list[Event]:
    """One event more than a page holds, if there are as many."""
    hide = context.redaction.text
    found: list[Event] = []
    count = _READ_AT_ONCE if kind else _AT_ONCE + 1
    for _ in range(_MOST_READS if kind else 1):
        some = broker_of(context.client).run(calls.before(keys_of(context.client), before, count=count))
        found += [event for event in some if kind in ("", event.kind)]
        if len(found) > _AT_ONCE or len(some) < count:
            break
        before = some[-1].id
    return [
        replace(event, details={name: hide(text) for name, text in event.details.items()})
        for event in found[: _AT_ONCE + 1]
    ]


pages: list[Page] = [
    Page(path="/events", name="events", endpoint=_events),
]
