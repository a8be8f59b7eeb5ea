"""Actions on a background operation: cancel it."""

from jobrunner.web.context import Context
from jobrunner.web.errors import Refused
from jobrunner.web.operations import ask_to_stop
from jobrunner.web.routing import Action, Done


def _cancel(context: Context) -> Done:
    operation = context.path("operation")
    if not ask_to_stop(context.client, operation):
        raise Refused(f"operation {operation[:60]!r} is over, or never was")
    return Done(text="the operation ends after the piece it is at", to=context.url("operation", operation=operation))


routes = [Action(path="/operations/{operation}/cancel", name="operation.cancel", endpoint=_cancel)]
