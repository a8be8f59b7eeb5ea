"""The audit log: users and their actions in dashboards and commands."""

import re

from jobrunner.inspector.audit import entries
from jobrunner.web.routing import Context, Page, Values

_AT_ONCE = 100
_PLACE = re.compile(r"\d{1,20}-\d{1,20}")


def _audit(context: Context) -> tuple[str, Values]:
    before = context.query.text("before")
    before = before if _PLACE.fullmatch(before) else ""
    found = entries(context.client, before=before, limit=_AT_ONCE)
    return "audit.html", {
        "nav": context.snapshot().nav,
        "entries": found,
        "before": before,
        "onward": found[-1].id if len(found) == _AT_ONCE else "",
    }


pages: list[Page] = [
    Page(path="/audit", name="audit", endpoint=_audit),
]
