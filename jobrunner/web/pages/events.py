"""Events: workers, leaders, pauses, deaths and changes, the newest first, with a filter by kind."""

import re

from jobrunner.events import KINDS
from jobrunner.inspector.audit import newest_events, without_secrets
from jobrunner.web.routing import Context, Page, Values

_AT_ONCE = 100
_PLACE = re.compile(r"\d{1,18}-\d{1,18}")


def _events(context: Context) -> tuple[str, Values]:
    kind = context.query.choice("kind", KINDS, "")
    before = context.query.text("before")
    before = before if _PLACE.fullmatch(before) else ""
    found = newest_events(context.client, kind, before, most=_AT_ONCE + 1)
    redaction = context.redaction
    return "events.html", {
        "nav": context.snapshot().nav,
        "events": [without_secrets(event, redaction) for event in found[:_AT_ONCE]],
        "kinds": KINDS,
        "kind": kind,
        "before": before,
        "onward": found[_AT_ONCE - 1].id if len(found) > _AT_ONCE else "",
    }


pages: list[Page] = [
    Page(path="/events", name="events", endpoint=_events),
]
