"""Workers: processes, hosts, queues and running tasks; commands to one, which it reads with its next heartbeat.

A quiet worker reserves nothing new until it receives the command to resume.
"""

from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import WorkerCommand, command_worker
from jobrunner.errors import ServerUnavailable
from jobrunner.inspector.attempts import at_work
from jobrunner.web.errors import NotThere
from jobrunner.web.routing import Action, Context, Done, Page, Values

_MOST = 100


def _workers(context: Context) -> tuple[str, Values]:
    seen = context.snapshot()
    for problem in seen.look.problems:
        raise ServerUnavailable(problem)
    return "workers.html", {
        "nav": seen.nav,
        "workers": seen.look.workers,
        "slots": seen.look.slots,
        "executing": seen.look.executing,
        "fetched": seen.look.fetched,
        "leader": seen.look.leader or "",
        "running": at_work(seen.look.workers, seen.look.running)[:_MOST],
        "more": max(seen.look.total("pending") - _MOST, 0),
        "unserved": sorted(seen.unserved, key=lambda queue: -queue.open),
        "unknown": seen.look.unknown,
    }


def _quiet(context: Context) -> Done:
    return _told(context, "quiet", "reserves nothing new from its next heartbeat on")


def _resume(context: Context) -> Done:
    return _told(context, "resume", "reserves again from its next heartbeat on")


def _stop(context: Context) -> Done:
    return _told(context, "stop", "stops at its next heartbeat: running tasks finish, the others are handed back")


def _told(context: Context, command: WorkerCommand, text: str) -> Done:
    worker = context.path("worker")
    order = command_worker(keys_of(context.client), worker, command)
    if not run_operation(broker_of(context.client), order):
        raise NotThere(f"there is no worker {worker[:100]!r}, or it fell silent")
    return Done(text=f"worker {worker} {text}", to=context.url("workers"))


pages: list[Page] = [
    Page(path="/workers", name="workers", endpoint=_workers),
]
actions: list[Action] = [
    Action(path="/workers/{worker}/quiet", name="worker.quiet", endpoint=_quiet),
    Action(path="/workers/{worker}/resume", name="worker.resume", endpoint=_resume),
    Action(path="/workers/{worker}/stop", name="worker.stop", endpoint=_stop),
]
