"""Actions on all dead tasks that match, in the background, as there may be many."""

from dataclasses import replace

from jobrunner.web.actions.start_operation import begin
from jobrunner.web.actions.tasks import wanted_of
from jobrunner.web.context import Context
from jobrunner.web.routing import Action, Done


def _requeue(context: Context) -> Done:
    return begin(context, "requeue", replace(wanted_of(context.form), state="dead"), "requeueing what is dead")


def _purge(context: Context) -> Done:
    return begin(context, "delete", replace(wanted_of(context.form), state="dead"), "deleting what is dead")


routes = [
    Action(path="/dead/requeue", name="dead.requeue", endpoint=_requeue),
    Action(path="/dead/purge", name="dead.purge", endpoint=_purge),
]
