"""History: finished tasks of queues that keep them, the last one first, and a way to run one again."""

from datetime import datetime
from itertools import islice

from jobrunner.clock import from_ms
from jobrunner.inspector.snapshot import QueueView
from jobrunner.task import TaskRecord
from jobrunner.web.context import Context
from jobrunner.web.routing import Page, Values

_AT_ONCE = 40


def _history(context: Context) -> tuple[str, Values]:
    seen = context.glance()
    keeping = sorted((queue for queue in seen.look.queues if queue.done), key=lambda queue: (-queue.done, queue.name))
    names = [queue.name for queue in keeping]
    chosen = context.query.choice("queue", names, names[0] if names else "")
    records = context.client.queue(chosen).history(_AT_ONCE) if chosen else []
    return "history.html", {
        "nav": seen.nav,
        "queues": keeping,
        "chosen": chosen,
        "kept": _kept(keeping, chosen),
        "records": [(record, _took_s(record)) for record in islice(records, _AT_ONCE)],
    }


def _kept(keeping: list[QueueView], chosen: str) -> int:
    return next((queue.done for queue in keeping if queue.name == chosen), 0)


def _took_s(record: TaskRecord) -> float | None:
    began = _instant(record.fields.get("started_at"))
    return None if began is None or record.when is None else max((record.when - began).total_seconds(), 0.0)


def _instant(raw: bytes | None) -> datetime | None:
    try:
        return None if raw is None else from_ms(float(raw))
    except (ValueError, OverflowError, OSError):  # damage
        return None


routes = [Page(path="/history", name="history", endpoint=_history)]
