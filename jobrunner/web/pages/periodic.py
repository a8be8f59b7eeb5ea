"""Periodic jobs: schedule, last and next tick, and whether a worker has loaded them; run now, enable, disable."""

from jobrunner.broker.keys import split_queue
from jobrunner.client.client import broker_of, encryption_of, keys_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import published
from jobrunner.task import new_id
from jobrunner.web.routing import Action, Context, Done, Page, Values

_TICKS = 50


def _periodic(context: Context) -> tuple[str, Values]:
    jobs = context.client.periodics()
    ticks = sorted(((job, tick) for job in jobs for tick in job.recent), key=lambda pair: pair[1].at, reverse=True)
    return "periodic.html", {"nav": context.snapshot().nav, "jobs": jobs, "ticks": ticks[:_TICKS]}


def _run(context: Context) -> Done:
    client = context.client
    job = run_operation(broker_of(client), published(keys_of(client), context.path("name")))
    sent = client.enqueue(job.task(new_id(split_queue(job.queue)[0]), encryption_of(client)))
    there = context.url("task", task=sent.id)
    return Done(text=f"{job.name} was enqueued as {sent.id}", to=there, values={"id": sent.id})


def _enable(context: Context) -> Done:
    name = context.path("name")
    context.client.enable_periodic(name)
    return Done(text=f"{name} is switched on", to=context.url("periodic"))


def _disable(context: Context) -> Done:
    name = context.path("name")
    context.client.disable_periodic(name)
    return Done(text=f"{name} is switched off", to=context.url("periodic"))


pages: list[Page] = [
    Page(path="/periodic", name="periodic", endpoint=_periodic),
]
actions: list[Action] = [
    Action(path="/periodic/{name}/run", name="periodic.run", endpoint=_run),
    Action(path="/periodic/{name}/enable", name="periodic.enable", endpoint=_enable),
    Action(path="/periodic/{name}/disable", name="periodic.disable", endpoint=_disable),
]
