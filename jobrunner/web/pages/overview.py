"""Overview: health of the whole system on one page, for a person on call."""

from datetime import timedelta

from jobrunner.clock import from_ms
from jobrunner.inspector.attempts import at_work
from jobrunner.inspector.doctor.attention import failing_checks, statistics_checks
from jobrunner.inspector.live_snapshot import failures_by_job, most_failing
from jobrunner.inspector.stats import jobs_of, read_window, releases_since
from jobrunner.web.live import DashboardSnapshot
from jobrunner.web.rendering import SPANS, asked_span, plots
from jobrunner.web.routing import Context, Page, Values

_STATES = ("waiting", "scheduled", "pending", "dead")
_MOST_ROWS, _MOST_TASKS = 8, 6


def _overview(context: Context) -> tuple[str, Values]:
    seen, span = context.snapshot(), asked_span(context)
    _, since, unit = SPANS[span]
    window = read_window(context.client, since, unit, may_lack=True)
    jobs = jobs_of(window)
    errors = {(one.type, one.queue): one.error for one in seen.look.failing}
    new = releases_since(context.client, from_ms(window.starts[0]))
    failing = failing_checks(window, new, share=seen.alerts.failed_share or 1.0, errors=errors)
    return "overview.html", {
        "nav": seen.nav,
        "warnings": (*statistics_checks(window), *failing, *seen.warnings),
        "sums": {state: seen.look.total(state) for state in _STATES},
        "workers": seen.look.workers,
        "slots": seen.look.slots,
        "queues": sorted(seen.look.queues, key=lambda queue: (queue.open, queue.dead), reverse=True)[:_MOST_ROWS],
        "queue_count": len(seen.look.queues),
        "running": at_work(seen.look.workers, seen.look.running)[:_MOST_TASKS],
        "shares": seen.look.pending_shares,
        "failing": most_failing(seen.look.failing, failures_by_job(jobs))[:_MOST_TASKS],
        "rates": seen.total,
        "jobs": jobs[:_MOST_ROWS],
        "plots": plots(context.client, span, window),
        "alerts": seen.alerts,
        "hours": since / timedelta(hours=1),
        "oldest_s": max((queue.oldest_s or 0.0 for queue in seen.look.queues), default=0.0) or None,
        "is_new": _is_new(seen),
    }


def _is_new(seen: DashboardSnapshot) -> bool:
    return not seen.look.queues and not seen.look.workers


pages: list[Page] = [
    Page(path="/", name="overview", endpoint=_overview),
]
