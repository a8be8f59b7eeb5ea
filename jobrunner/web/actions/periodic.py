"""What can be done to a periodic job: run it now, switch it off and on."""

from jobrunner.broker.calls import coordination
from jobrunner.broker.keys import split_queue
from jobrunner.periodic import PeriodicDefinition, read_definition
from jobrunner.task import new_id
from jobrunner.web.context import Context
from jobrunner.web.refusals import NotThere
from jobrunner.web.routing import Action, Done


def _run(context: Context) -> Done:
    job = _definition(context)
    sent = context.client.enqueue(job.task(new_id(split_queue(job.queue)[0])))
    there = context.url("task", task=sent.id)
    return Done(text=f"{job.name} was enqueued as {sent.id}", to=there, values={"id": sent.id})


def _enable(context: Context) -> Done:
    return _switched(context, enabled=True)


def _disable(context: Context) -> Done:
    return _switched(context, enabled=False)


def _switched(context: Context, *, enabled: bool) -> Done:
    job = _definition(context)
    keys = context.client.keys.queue(job.queue)
    context.client.broker.run(coordination.enable_periodic(keys, job.name, enabled=enabled))
    return Done(text=f"{job.name} is switched {'on' if enabled else 'off'}", to=context.url("periodic"))


def _definition(context: Context) -> PeriodicDefinition:
    name = context.path("name")
    raw = context.client.broker.run(coordination.periodics(context.client.keys)).get(name)
    found = None if raw is None else read_definition(raw)
    if found is None:
        raise NotThere(f"there is no periodic job {name!r}: no worker published it")
    return found


routes = [
    Action(path="/periodic/{name}/run", name="periodic.run", endpoint=_run),
    Action(path="/periodic/{name}/enable", name="periodic.enable", endpoint=_enable),
    Action(path="/periodic/{name}/disable", name="periodic.disable", endpoint=_disable),
]
