"""Begins a background operation on all tasks that match, and leads to the page of its progress."""

from jobrunner.inspector.search import Filter
from jobrunner.web.context import Context
from jobrunner.web.routing import Done


def begin(context: Context, action: str, wanted: Filter, text: str) -> Done:
    """Begins it."""
    operation = context.operations.start(action, who=context.identity.name, wanted=wanted)
    there = context.url("operation", operation=operation)
    return Done(text=f"{text}: operation {operation}", to=there, values={"operation": operation}, leads=True)
