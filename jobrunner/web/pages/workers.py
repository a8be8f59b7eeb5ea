"""Workers: processes, hosts, queues and running tasks; commands to one, which it reads with its next heartbeat.

A quiet worker reserves nothing new until it receives the command to resume.
"""

from collections.abc import Sequence

from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import WorkerCommand, WorkerRecord, command_worker
from jobrunner.errors import ServerUnavailable
from jobrunner.inspector.attempts import at_work
from jobrunner.web.errors import NotThere
from jobrunner.web.routing import Action, Context, Done, Page, Values

_MOST = 100
_AT_ONCE = 100


def _workers(context: Context) -> tuple[str, Values]:
    seen = context.snapshot()
    for problem in seen.look.problems:
        raise ServerUnavailable(problem)
    text = context.query.text("q")
    found = [worker for worker in seen.look.workers if _has(worker, text.casefold())]
    return "workers.html", {
        "nav": seen.nav,
        "workers": found,
        "start": _start(context, [worker.id for worker in found]),
        "at_once": _AT_ONCE,
        "all": len(seen.look.workers),
        "q": text,
        "slots": seen.look.slots,
        "executing": seen.look.executing,
        "fetched": seen.look.fetched,
        "leader": seen.look.leader or "",
        "running": at_work(seen.look.workers, seen.look.running)[:_MOST],
        "more": max(seen.look.total("pending") - _MOST, 0),
        "unserved": sorted(seen.unserved, key=lambda queue: -queue.open),
        "unknown": seen.look.unknown,
    }


def _has(worker: WorkerRecord, text: str) -> bool:
    return any(text in part.casefold() for part in (worker.id, worker.host, worker.release, *worker.queues))


def _start(context: Context, ids: Sequence[str]) -> int:
    """The place of the first worker on the page: of the page that a link asks for, or that has the worker `at`."""
    start, at = context.query.whole("start", 0, lowest=0, highest=100_000), context.query.text("at")
    place = ids.index(at) if at in ids else min(start, max(len(ids) - 1, 0))  # workers may have left since the link
    return place - place % _AT_ONCE


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
