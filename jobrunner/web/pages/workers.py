"""Workers: who is at work, where, on what, and how busy."""

from jobrunner.web.context import Context
from jobrunner.web.routing import Page, Values


def _workers(context: Context) -> tuple[str, Values]:
    seen = context.glance()
    return "workers.html", {
        "nav": seen.nav,
        "workers": seen.workers,
        "slots": sum(worker.concurrency for worker in seen.workers),
        "in_hand": sum(worker.in_hand for worker in seen.workers),
        "leader": next((worker.id for worker in seen.workers if worker.leads), ""),
        "running": seen.running,
        "unserved": seen.unserved,
    }


routes = [Page(path="/workers", name="workers", endpoint=_workers)]
