"""Commands to a worker: reserve nothing new, reserve again, stop. It reads them with its next heartbeat."""

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.web.context import Context
from jobrunner.web.errors import NotThere
from jobrunner.web.routing import Action, Done

_KEPT_MS = 3_600_000


def _quiet(context: Context) -> Done:
    return _told(context, "quiet", "1", "reserves nothing new from its next heartbeat on")


def _resume(context: Context) -> Done:
    return _told(context, "quiet", "0", "reserves again from its next heartbeat on")


def _stop(context: Context) -> Done:
    return _told(context, "stop", "1", "stops at its next heartbeat: running tasks finish, the others are handed back")


def _told(context: Context, order: str, value: str, text: str) -> Done:
    worker = context.path("worker")
    if worker not in {one.id for one in context.client.workers()}:
        raise NotThere(f"there is no worker {worker[:100]!r}, or it fell silent")
    calls = leader_calls.order(keys_of(context.client), worker, order, value, ttl_ms=_KEPT_MS)
    broker_of(context.client).run_many(calls)
    return Done(text=f"worker {worker} {text}", to=context.url("workers"))


routes = [
    Action(path="/workers/{worker}/quiet", name="worker.quiet", endpoint=_quiet),
    Action(path="/workers/{worker}/resume", name="worker.resume", endpoint=_resume),
    Action(path="/workers/{worker}/stop", name="worker.stop", endpoint=_stop),
]
