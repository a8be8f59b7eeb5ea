"""A background operation: its progress, its outcome, its cancellation, and its start by other pages."""

from typing import Any
from urllib.parse import urlencode

from jobrunner.clock import from_ms
from jobrunner.formatting import rate
from jobrunner.inspector.search_filter import Filter
from jobrunner.web.errors import NotThere, Refused
from jobrunner.web.operations import Operation, ask_to_stop, filter_fields, filter_words, read_operation
from jobrunner.web.routing import Action, Context, Done, Page, Values

_LOOKS = {"done": "good", "failed": "bad", "interrupted": "bad", "cancelled": "warn", "running": "live"}
_TITLES = {"requeue": "Requeue tasks", "cancel": "Cancel tasks", "delete": "Delete tasks"}
_NOTES = {
    "queued": "waits for its turn: two operations run at a time",
    "running": "runs in the background, also when this page is closed",
    "interrupted": "the dashboard that ran it has ended; start it again for the rest",
    "cancelled": "was cancelled; changes made before that stay",
    "failed": "ended with an error; start it again for the rest",
    "done": "is done",
}
_WHY_NOT = "a worker holds them, or another client changed them first"


def _operation(context: Context) -> tuple[str, Values]:
    found = read_operation(context.client, context.path("operation"))
    if found is None:
        raise NotThere("there is no such operation: they are kept for a day")
    looked = found.total if found.state == "done" else found.looked
    return "operation.html", {
        "nav": context.snapshot().nav,
        "operation": {
            "id": found.id,
            "title": _TITLES.get(found.action, found.action),
            "state": found.state,
            "look": _LOOKS.get(found.state, ""),
            "runs": not found.is_over,
            "done": looked,
            "total": found.total,
            "note": _NOTES.get(found.state, ""),
            "share": f"{looked / found.total:.0%}" if found.total else "",
            "back": _back(context, found),
            "back_to": "To these tasks",
            "facts": _facts(found),
        },
    }


def _back(context: Context, found: Operation) -> str:
    wanted = filter_fields(found.wanted)
    return context.url("tasks") + (f"?{urlencode(wanted)}" if wanted else "")


def _facts(found: Operation) -> list[tuple[str, Any]]:
    told: list[tuple[str, Any]] = [
        ("Tasks", filter_words(found.wanted) or "all"),
        ("Rate", rate(found.rate) if found.rate else ""),
        ("Changed", f"{found.done:,}"),
        ("Not changed", f"{found.refused:,}: {_WHY_NOT}" if found.refused else ""),
        ("By", found.who),
        ("Began", from_ms(found.began_ms)),
        ("Ended", from_ms(found.ended_ms) if found.ended_ms else None),
        ("Error", found.error),
    ]
    return [pair for pair in told if pair[1]]


def _cancel(context: Context) -> Done:
    operation = context.path("operation")
    if not ask_to_stop(context.client, operation):
        raise Refused(f"operation {operation[:60]!r} is over, or never was")
    return Done(text="the operation ends after the piece it is at", to=context.url("operation", operation=operation))


def begin(context: Context, action: str, wanted: Filter, text: str, *, rate: float | None = None) -> Done:
    """Begins an operation on all matching tasks in the background, and redirects to its progress page."""
    operation = context.operations.start(action, who=context.identity.name, wanted=wanted, rate=rate)
    there = context.url("operation", operation=operation)
    return Done(text=f"{text}: operation {operation}", to=there, values={"operation": operation}, leads=True,
                what=filter_words(wanted))  # fmt: skip


pages: list[Page] = [
    Page(path="/operations/{operation}", name="operation", endpoint=_operation),
]
actions: list[Action] = [
    Action(path="/operations/{operation}/cancel", name="operation.cancel", endpoint=_cancel),
]
