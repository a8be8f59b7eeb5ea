"""Workers: processes, hosts, queues and running tasks."""

from jobrunner.inspector.attempts import at_work
from jobrunner.web.context import Context
from jobrunner.web.routing import Page, Values

_MOST = 100


def _workers(context: Context) -> tuple[str, Values]:
    seen = context.glance()
    return "workers.html", {
        "nav": seen.nav,
        "workers": seen.look.workers,
        "slots": sum(worker.concurrency for worker in seen.look.workers),
        "in_hand": sum(worker.in_hand for worker in seen.look.workers),
        "leader": next((worker.id for worker in seen.look.workers if worker.leads), ""),
        "running": at_work(seen.look.workers, seen.look.running)[:_MOST],
        "more": max(sum(queue.pending for queue in seen.look.queues) - _MOST, 0),
        "unserved": seen.unserved,
        "unknown": seen.look.unknown,
    }


routes = [Page(path="/workers", name="workers", endpoint=_workers)]
