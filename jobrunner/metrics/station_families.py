"""The metric families of stations on Spark and of watched streaming queries."""

import math
from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from jobrunner.jobs.batch_record import OUTCOMES
from jobrunner.metrics.reading import MetricsReading

_STATION_TOTALS = {
    "rows_in": ("batch_items", "Items of batches, again at each attempt."),
    "rows_out": ("batch_rows", "Rows that batches staged for other queues, or that sinks wrote."),
    "spilled_bytes": ("spilled_bytes", "Bytes that Spark wrote to disk for lack of memory."),
    "shuffle_bytes": ("shuffle_bytes", "Bytes that Spark wrote for shuffles."),
}
_STEPS = ("fill", "run", "commit", "advance")


def of_stations(reading: MetricsReading) -> Iterator[Metric]:
    """Batches by outcome, rows, time by step, bytes, and the suggestions for autoscaling."""
    batches = CounterMetricFamily(
        "jobrunner_station_batches", "Attempts at batches of stations on Spark, by how they ended.",
        labels=("queue", "outcome"),
    )  # fmt: skip
    seconds = CounterMetricFamily(
        "jobrunner_station_seconds", "Time of batches by step: fill, run, commit (the decision), advance.",
        labels=("queue", "step"),
    )  # fmt: skip
    stations = sorted(reading.stations.items())
    for queue, one in stations:
        for outcome in OUTCOMES:
            batches.add_metric((queue, outcome), one.counts.get(f"batches_{outcome}", 0))
        for step in _STEPS:
            seconds.add_metric((queue, step), one.times(f"batch_{step}").total_ms / 1000)
    yield from (batches, seconds)
    for name, (what, help_) in _STATION_TOTALS.items():
        family = CounterMetricFamily(f"jobrunner_station_{name}", help_, labels=("queue",))
        for queue, one in stations:
            family.add_metric((queue,), one.counts.get(what, 0))
        yield family
    drain = GaugeMetricFamily(
        "jobrunner_station_drain_seconds", "Until nothing waits, at the throughput of the last minutes.",
        labels=("queue",),
    )  # fmt: skip
    wanted = GaugeMetricFamily(
        "jobrunner_station_suggested_workers", "Workers that keep up and clear what waits within a minute.",
        labels=("queue",),
    )  # fmt: skip
    for lag in reading.lags:
        drain.add_metric((lag.queue,), math.inf if lag.drain_s is None else lag.drain_s)
        if lag.suggested_workers is not None:
            wanted.add_metric((lag.queue,), lag.suggested_workers)
    yield from (drain, wanted)


def of_streams(reading: MetricsReading) -> Iterator[Metric]:
    """The last progress of watched streaming queries."""
    rows = CounterMetricFamily("jobrunner_stream_rows", "Rows read since the query started.", labels=("query",))
    active = GaugeMetricFamily("jobrunner_stream_active", "1: the streaming query runs.", labels=("query",))
    batch = GaugeMetricFamily("jobrunner_stream_batch_id", "Its last micro-batch.", labels=("query",))
    took = GaugeMetricFamily("jobrunner_stream_trigger_seconds", "Of that micro-batch.", labels=("query",))
    lag = GaugeMetricFamily(
        "jobrunner_stream_lag_seconds", "How far the newest row that was read is behind.", labels=("query",)
    )
    for one in reading.streams:
        rows.add_metric((one.name,), one.rows)
        active.add_metric((one.name,), int(one.active))
        batch.add_metric((one.name,), one.batch_id)
        took.add_metric((one.name,), one.trigger_s)
        if one.lag_s is not None:
            lag.add_metric((one.name,), one.lag_s)
    yield from (rows, active, batch, took, lag)
