"""Overview: health of the whole system on one page, for a person on call."""

from jobrunner.inspector.live_snapshot import most_failing
from jobrunner.inspector.stats import by_job
from jobrunner.web.live import DashboardSnapshot
from jobrunner.web.rendering import SPANS, asked_span, plots
from jobrunner.web.routing import Context, Page, Values

_STATES = ("waiting", "scheduled", "pending", "dead")
_MOST_ROWS, _MOST_TASKS = 8, 6


def _overview(context: Context) -> tuple[str, Values]:
    seen, span = context.glance(), asked_span(context)
    _, since, unit = SPANS[span]
    jobs = by_job(context.client, since=since, step=unit)
    failed = {(job.type, job.queue): job.failed for job in jobs if job.failed}
    return "overview.html", {
        "nav": seen.nav,
        "warnings": seen.warnings,
        "sums": {state: sum(getattr(queue, state) for queue in seen.look.queues) for state in _STATES},
        "workers": seen.look.workers,
        "slots": sum(worker.concurrency for worker in seen.look.workers),
        "queues": sorted(seen.look.queues, key=_open, reverse=True)[:_MOST_ROWS],
        "queue_count": len(seen.look.queues),
        "running": seen.look.running[:_MOST_TASKS],
        "failing": most_failing(seen.look.failing, failed)[:_MOST_TASKS],
        "rates": seen.total,
        "jobs": jobs[:_MOST_ROWS],
        "plots": plots(context.client, span),
        "is_new": _is_new(seen),
    }


def _open(queue: object) -> tuple[int, int]:
    return sum(getattr(queue, state) for state in ("waiting", "scheduled", "pending")), getattr(queue, "dead", 0)


def _is_new(seen: DashboardSnapshot) -> bool:
    return not seen.look.queues and not seen.look.workers


pages: list[Page] = [
    Page(path="/", name="overview", endpoint=_overview),
]
