"""A station of a pipeline: its lag, its settings, and the outcomes of its last batches."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from jobrunner.charts import ChartSeries
from jobrunner.charts.responsive import lines
from jobrunner.client.client import broker_of, keys_of
from jobrunner.clock import from_ms
from jobrunner.etl.graph import QueueNode, published
from jobrunner.inspector.batches import BatchRecord, recent_batches, stopped_by
from jobrunner.inspector.lag import read_lags
from jobrunner.inspector.stats import read_window, series_of
from jobrunner.inspector.stats_types import StatsSeries
from jobrunner.web.errors import NotThere
from jobrunner.web.pages.queues import shown_settings
from jobrunner.web.rendering import span
from jobrunner.web.routing import Context, Page, Values

_HOUR = timedelta(hours=1)
_FEWEST_MINUTES = 15
_SAID = {
    "min_rows": "begins early with", "max_wait": "waits to be full", "parallel": "batches at once",
    "fan_out": "rows may multiply", "emits_new": "rows are new items",
}  # fmt: skip
_SECONDS = ("max_wait", "lease")


def _station(context: Context) -> tuple[str, Values]:
    pipeline, short = context.path("pipeline"), context.path("station")
    name, seen = f"{pipeline}/{short}", context.snapshot()
    # Without the node that has the graphs the snapshot has none, and the reading says so.
    graph = seen.graphs.get(pipeline) or broker_of(context.client).run(published(keys_of(context.client))).get(pipeline)
    node = next((one for one in graph.nodes if one.queue == name), None) if graph else None
    if node is None or not node.is_served:
        raise NotThere(f"pipeline {pipeline!r} has no station {short!r}: see its page for those it has")
    queue, batches = context.client.queue(name), recent_batches(context.client, name)
    view = next((one for one in seen.look.queues if one.name == name), None)
    found = series_of(read_window(context.client, _HOUR, "minute", name, may_lack=True))
    return "station.html", {
        "nav": seen.nav,
        "alerts": seen.alerts,
        "pipeline": pipeline,
        "node": node,
        "queue": view,
        "lag": next((one for one in read_lags(context.client, pipeline) if one.queue == name), None),
        "drawing": _throughput(found),
        "batches": [(one, from_ms(one.began_ms)) for one in batches],
        "any_spilled": any(one.spilled_bytes for one in batches),
        "stopped": stopped_by(batches),
        "last_failure": _failing(batches),
        "facts": batch_facts(node),
        "settings": shown_settings(queue.settings(), queue.origins()),
    }


def batch_facts(node: QueueNode) -> list[tuple[str, str]]:
    """(name, value), formatted, of the declared settings of a station on Spark."""
    return [(_SAID.get(name, name), _shown(name, value)) for name, value in node.batches.items()]


def _shown(name: str, value: Any) -> str:
    if name in _SECONDS and isinstance(value, (int, float)):
        return span(float(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return {"schema": "none: one column payload", "min_rows": "a tenth of a batch"}.get(name, "none")
    return f"{value:,}" if isinstance(value, int) else str(value)


def _failing(batches: Sequence[BatchRecord]) -> BatchRecord | None:
    """The newest attempt, if it failed."""
    return batches[0] if batches and batches[0].outcome != "decided" else None


def _throughput(found: StatsSeries) -> Any:
    steps = found.steps[_first(found) :]
    per_s = [step.left / found.step.total_seconds() for step in steps]
    drawn = [ChartSeries(name="items/s", look="pending", values=per_s)]
    return lines([step.start for step in steps], drawn, title="Items that left the queue, per second", unit="/s")


def _first(found: StatsSeries) -> int:
    """The index of the first minute to draw: omits minutes before the first counts, but keeps a fewest number."""
    known = next((at for at, step in enumerate(found.steps) if step.counts), len(found.steps))
    return max(min(known - 1, len(found.steps) - _FEWEST_MINUTES), 0)


pages: list[Page] = [Page(path="/pipelines/{pipeline}/{station}", name="station", endpoint=_station)]
