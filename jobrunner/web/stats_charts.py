"""The plots that several pages show, from figures over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from markupsafe import Markup

from jobrunner.charts import ChartSeries
from jobrunner.charts.responsive import bars, lines
from jobrunner.client.client import Client
from jobrunner.inspector.stats import StatsSeries, StatsStep, Unit, series
from jobrunner.web.routing import Context

SPANS: dict[str, tuple[str, timedelta, Unit]] = {
    "1h": ("hour", timedelta(hours=1), "minute"),
    "6h": ("6 hours", timedelta(hours=6), "minute"),
    "24h": ("day", timedelta(hours=24), "hour"),
    "7d": ("week", timedelta(days=7), "hour"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsCharts:
    """Throughput, run and wait times of the last `span`, ready to be shown, with the figures they are of."""

    span: str
    said: str
    spans: tuple[tuple[str, str], ...]
    throughput: Markup
    run: Markup
    wait: Markup
    figures: StatsSeries


def asked_span(context: Context) -> str:
    """The window that was chosen; an hour when none was."""
    return context.query.choice("span", SPANS, "1h")


def plots(client: Client, span: str, *, queue: str | None = None) -> StatsCharts:
    """Reads and draws. Raises ServerError."""
    said, since, unit = SPANS[span]
    found = series(client, since=since, step=unit, queue=queue)
    starts = [step.start for step in found.steps]
    return StatsCharts(
        span=span,
        said=said,
        spans=tuple((name, shown) for name, (shown, _, _) in SPANS.items()),
        throughput=bars(starts, _outcomes(found.steps), title=f"Attempts that ended, by {unit}"),
        run=lines(starts, _percentiles(found.steps, "run"), title="Run time", unit=" ms"),
        wait=lines(starts, _percentiles(found.steps, "wait"), title="Wait", unit=" ms"),
        figures=found,
    )


def _outcomes(steps: Sequence[StatsStep]) -> list[ChartSeries]:
    def of(name: str, look: str, *outcomes: str) -> ChartSeries:
        return ChartSeries(
            name=name, look=look, values=[sum(step.counts.get(one, 0) for one in outcomes) for step in steps]
        )

    found = [
        of("succeeded", "bar-succeeded", "succeeded"),
        of("moved on", "bar-moved", "moved"),
        of("failed", "bar-failed", "failed"),
        of("cancelled, dropped", "bar-other", "cancelled", "dropped"),
    ]
    return [line for at, line in enumerate(found) if at in (0, 2) or any(line.values)]


def _percentiles(steps: Sequence[StatsStep], kind: str) -> list[ChartSeries]:
    times = [step.run if kind == "run" else step.wait for step in steps]
    return [
        ChartSeries(name="p50", look="pending", values=[one.p50_ms for one in times]),
        ChartSeries(name="p95", look="scheduled", values=[one.p95_ms for one in times]),
        ChartSeries(name="p99", look="warn", values=[one.p99_ms for one in times]),
    ]
