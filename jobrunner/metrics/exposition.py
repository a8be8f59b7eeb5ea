"""The metric families that Prometheus scrapes, with their names and labels, and their text format.

docs/monitoring.md has a table of the families. All processes of a prefix show the same numbers: scrape one of them.
"""

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from jobrunner.broker.calls.stats import BOUNDS_MS
from jobrunner.broker.reconnect import waiting_once
from jobrunner.client.client import Client
from jobrunner.clock import monotonic
from jobrunner.errors import ServerError
from jobrunner.inspector.shards import OTHERS
from jobrunner.inspector.snapshot import QueueView
from jobrunner.inspector.stats_types import Timings
from jobrunner.logs import SafeLogger
from jobrunner.metrics.reading import PARTS, MetricsReading, take
from jobrunner.metrics.station_families import of_stations, of_streams

_STATES = ("waiting", "scheduled", "pending", "dead", "done")
_QUEUE_TOTALS = {
    "enqueued": "Tasks that were enqueued.",
    "recovered": "Leases that ended without a report: their worker died, hung or was cut off.",
    "expired": "Tasks that became dead because they did not start in time.",
    "requeued": "Dead tasks that were sent again.",
}
_EVERY_OTHER = 2
"""Every second counted bucket is exported, so exported buckets are a factor of two wide."""
CONTENT_TYPE = CONTENT_TYPE_LATEST
_LONG_S, _REST = 0.25, 4
_log = SafeLogger("jobrunner.metrics")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Mapping[str, Any], Callable[[], Awaitable[Any]], Send], Awaitable[None]]


def families(reading: MetricsReading) -> Iterator[Metric]:
    """Yields every metric family of a reading."""
    yield from _of_tasks(reading)
    yield from _of_times(reading)
    yield from _of_queues(reading)
    yield from of_stations(reading)
    yield from of_streams(reading)
    yield from _of_workers(reading)
    yield from _of_periodics(reading)
    yield from _of_the_server(reading)
    readable = GaugeMetricFamily(
        "jobrunner_readable", "0: series of this part are missing: the node of the cluster that has it is away.",
        labels=("part",),
    )  # fmt: skip
    for part in PARTS:
        readable.add_metric((part,), int(part not in reading.unread))
    yield readable


def _of_tasks(reading: MetricsReading) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "jobrunner_tasks", "Ends of attempts, by how they ended; failed counts attempts, dead tasks.",
        labels=("queue", "type", "outcome"),
    )  # fmt: skip
    for labels, total in sorted(reading.ended.items()):
        ended.add_metric(labels, total)
    yield ended
    for name, help_ in _QUEUE_TOTALS.items():
        family = CounterMetricFamily(f"jobrunner_{name}", help_, labels=("queue",))
        for queue in reading.queues:
            if not queue.problem:  # zeros for an unreadable queue would look like a counter reset
                family.add_metric((queue.name,), queue.totals.get(name, 0))
        yield family
    retries = CounterMetricFamily("jobrunner_retries", "Failed attempts to be tried again.", labels=("queue", "type"))
    stale = CounterMetricFamily("jobrunner_stale_reports", "Reports that came too late.", labels=("queue", "type"))
    for named, one in sorted(reading.measured.items()):
        retries.add_metric(named, max(one.counts.get("failed", 0) - one.counts.get("dead", 0), 0))
        stale.add_metric(named, one.counts.get("stale", 0))
    yield from (retries, stale)


def _of_times(reading: MetricsReading) -> Iterator[Metric]:
    said = {"run": "How long attempts ran.", "wait": "How long tasks waited from when they were due to their start."}
    for kind, help_ in said.items():
        family = HistogramMetricFamily(f"jobrunner_task_{kind}_seconds", help_, labels=("queue", "type"))
        for named, one in sorted(reading.measured.items()):
            if (times := one.times(kind)).count:
                _add(family, named, times)
        yield family
    late = HistogramMetricFamily(
        "jobrunner_periodic_lateness_seconds", "How long after its tick a periodic job was fired.",
        labels=("queue", "type"),
    )  # fmt: skip
    for named, one in sorted(reading.measured.items()):
        if (times := one.times("late")).count:
            _add(late, named, times)
    yield late
    trips = HistogramMetricFamily(
        "jobrunner_redis_round_trip_seconds", "How long a worker's turn with the server took.", labels=()
    )
    if "stats" not in reading.unread:
        _add(trips, (), reading.round_trip, bound_s=1e-6)
    yield trips


def _of_queues(reading: MetricsReading) -> Iterator[Metric]:
    depth = GaugeMetricFamily("jobrunner_queue_depth", "Tasks in each state.", labels=("queue", "state"))
    oldest = GaugeMetricFamily(
        "jobrunner_queue_oldest_age_seconds", "How long the task has been due that waits longest; 0: none waits.",
        labels=("queue",),
    )  # fmt: skip
    flight = GaugeMetricFamily("jobrunner_in_flight", "Pending tasks: running, fetched, in batches.", labels=("queue",))
    paused = GaugeMetricFamily("jobrunner_queue_paused", "1: the queue is paused.", labels=("queue",))
    served = GaugeMetricFamily("jobrunner_queue_workers", "Workers that serve the queue.", labels=("queue",))
    others = [one for one in reading.others if not one.problem]
    for queue in [*reading.queues, *([_sum(others)] if others else [])]:
        if queue.problem:
            continue
        for state in _STATES:
            depth.add_metric((queue.name, state), getattr(queue, state))
        oldest.add_metric((queue.name,), queue.oldest_s or 0.0)
        flight.add_metric((queue.name,), queue.pending)
        if queue.name != OTHERS:
            paused.add_metric((queue.name,), int(queue.paused))
            if "workers" not in reading.unread:
                served.add_metric((queue.name,), queue.workers)
    yield from (depth, oldest, flight, paused, served)
    if not reading.is_list_unread:
        yield _gauge("jobrunner_queues", "How many queues there are.", len(reading.queues) + len(reading.others))


def _sum(queues: Sequence[QueueView]) -> QueueView:
    """The sum of queues as one view. It has no counters: their sum would fall when a queue is forgotten."""
    ages = [one.oldest_s for one in queues if one.oldest_s is not None]
    return QueueView(
        name=OTHERS, totals={}, workers=0, oldest_s=max(ages, default=None),
        **{state: sum(getattr(one, state) for one in queues) for state in _STATES},
    )  # fmt: skip


def _of_workers(reading: MetricsReading) -> Iterator[Metric]:
    workers = reading.workers
    if "workers" not in reading.unread:
        yield _gauge("jobrunner_workers", "Workers with a recent heartbeat.", len(workers))
        slots = sum(worker.concurrency for worker in workers)
        yield _gauge("jobrunner_worker_slots", "Tasks that workers can run at a time.", slots)
        running, fetched = (sum(getattr(worker, name) for worker in workers) for name in ("executing", "fetched"))
        yield _gauge("jobrunner_worker_running", "Attempts that ran at the last heartbeats of workers.", running)
        yield _gauge("jobrunner_worker_fetched", "Tasks reserved and not begun at the last heartbeats.", fetched)
    if "leader" not in reading.unread:
        yield _gauge("jobrunner_leader", "1: a worker coordinates.", int(reading.leader is not None))


def _of_periodics(reading: MetricsReading) -> Iterator[Metric]:
    labels = ("queue", "type")
    fired = CounterMetricFamily("jobrunner_periodic_fired", "Ticks that became a task.", labels=labels)
    skipped = CounterMetricFamily(
        "jobrunner_periodic_skipped", "Ticks left out while an earlier task ran.", labels=labels
    )
    due = GaugeMetricFamily(
        "jobrunner_periodic_next_timestamp_seconds", "The next tick, Unix time; in the past: overdue.", labels=labels
    )
    for one in reading.periodics:
        if one.problem:
            continue
        fired.add_metric((one.queue, one.name), one.fired)
        skipped.add_metric((one.queue, one.name), one.skipped)
        if one.next is not None:
            due.add_metric((one.queue, one.name), one.next.timestamp())
    yield from (fired, skipped, due)


def _of_the_server(reading: MetricsReading) -> Iterator[Metric]:
    server = reading.server
    if server is None:
        return
    yield _gauge("jobrunner_redis_memory_bytes", "Memory the server uses.", server.used_memory)
    yield _gauge("jobrunner_redis_memory_limit_bytes", "Its maxmemory; 0: no limit.", server.maxmemory)
    yield _gauge("jobrunner_redis_clients", "Connections to the server.", server.clients)
    yield _gauge("jobrunner_redis_may_evict", "1: the server may delete tasks to make room.", int(server.evicts))
    yield _gauge("jobrunner_redis_append_only", "1: the server keeps an append-only file.", int(server.aof))


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_, value=value)


def _add(
    family: HistogramMetricFamily, labels: tuple[str, ...], times: Timings, bound_s: float = 0.001
) -> None:
    """Adds a histogram to a family. `bound_s`: seconds in one unit of a bucket's bound."""
    below, buckets = 0, []
    for n, bound in enumerate(BOUNDS_MS):
        below += times.buckets.get(n, 0)
        if n % _EVERY_OTHER == 0:
            buckets.append((repr(bound * bound_s), float(below)))
    buckets.append(("+Inf", float(times.count)))
    family.add_metric(labels, buckets, sum_value=times.total_ms / 1000)


class JobrunnerCollector(Collector):
    """A collector for a program's own registry: `REGISTRY.register(JobrunnerCollector(client))`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._unread: Mapping[str, str] = {}

    def collect(self) -> Iterator[Metric]:
        """Reads the server and yields every metric. Raises ServerError."""
        reading = take(self._client)
        if reading.unread.keys() != self._unread.keys():
            if reading.unread:
                _log.warning("metrics are incomplete, as a node of the cluster is away", **reading.unread)
            else:
                _log.info("metrics are complete again")
            self._unread = reading.unread
        return families(reading)

    def describe(self) -> list[Metric]:
        """Returns no metrics, so that registering the collector does not read the server."""
        return []


def render(client: Client) -> bytes:
    """Returns all metrics in Prometheus' text format. Raises ServerError."""
    return generate_latest(_registry(client))


def _registry(client: Client) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(JobrunnerCollector(client))
    return registry


def metrics_app(client: Client) -> AsgiApp:
    """An ASGI application that answers with the metrics, or with 503 while the server is unavailable."""

    scrapes = Scrapes(client)

    async def app(scope: Mapping[str, Any], _receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        import asyncio

        if scope["type"] != "http":
            return
        status, body = await asyncio.to_thread(scrapes.answer)
        kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


class Scrapes:
    """Answers scrapes, one after the other. With many thousands of queues a reading may take longer than 0.25 s: it is
    then served for four times as long, so that readings take at most a fifth of the time, at any rate of scrapes. An
    error that took longer, as of a silent server, is served for as long again: those who waited for it get it."""

    def __init__(self, client: Client) -> None:
        self._registry = _registry(client)
        self._lock = threading.Lock()
        self._last = (200, b"")
        self._lasts_until = float("-inf")

    def answer(self) -> tuple[int, bytes]:
        """Returns the HTTP status and the body for a scrape."""
        with self._lock:
            if (began := monotonic()) >= self._lasts_until:
                rest = _REST
                try:
                    with waiting_once():
                        self._last = (200, generate_latest(self._registry))
                except ServerError as error:
                    self._last, rest = (503, f"{error}\n".encode()), 1
                took_s = monotonic() - began
                self._lasts_until = monotonic() + (took_s * rest if took_s > _LONG_S else 0.0)
            return self._last
