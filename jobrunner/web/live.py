"""The snapshot that all tabs share, and the event stream that makes them refresh.

Invariant: for any number of tabs and pages, the dashboard reads the server at most once a second and a fifth of the
time; while no tab is open it reads nothing. An event carries the server's time only, as every tab gets every event; the
tab then fetches its page again, which is rendered from the same snapshot. (Server-sent events: WHATWG HTML, 9.2.)
"""

import asyncio
import math
import signal
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption, JobrunnerError, ServerUnavailable
from jobrunner.etl.graph import Graph, end_queues, published
from jobrunner.formatting import describe, duration
from jobrunner.inspector.doctor import Check, fail, warn
from jobrunner.inspector.doctor.attention import unread_checks, urgent_checks
from jobrunner.inspector.doctor.environment import facts_checks
from jobrunner.inspector.doctor.unknown_jobs import unknown_type_check
from jobrunner.inspector.doctor.workload import leader_check, slots_check
from jobrunner.inspector.live_rates import LiveRates, Rates
from jobrunner.inspector.live_snapshot import LiveSnapshot, look
from jobrunner.inspector.snapshot import QueueView, waiting_once
from jobrunner.inspector.stats_types import OutcomeCounts
from jobrunner.logs import SafeLogger
from jobrunner.web.errors import TooBusy, explained

FRESH_S = 1.0
EVERY_S = 2.0
_STOP_CHECK_S = 0.25
_REST = 4
"""A snapshot is used for this many times as long as its reading took, as many thousands of queues take a while."""
_MOST_TABS = 500
_MOST_OF_ONE = 50
_UNKNOWN_TOLD = 3
_log = SafeLogger("jobrunner.dashboard")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertThresholds:
    """Thresholds above which the dashboard warns; 0: never. The defaults equal those of the alert rules for
    Prometheus."""

    waiting_s: float = 300.0
    """Seconds for which the oldest task of a queue has waited."""
    failed_share: float = 0.2
    """The share of attempts that fail."""
    dead_per_hour: float = 1.0
    """Tasks that die in an hour."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            highest = 1.0 if name == "failed_share" else math.inf
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (is_number and 0 <= value <= highest and math.isfinite(value)):
                limit = " to 1" if highest == 1 else ""
                raise InvalidOption(f"alerts.{name}={describe(value)}: give a number from 0{limit}; 0 is no alert")

    def waits_long(self, seconds: float | None) -> bool:
        """Whether a wait of `seconds` of a queue's oldest task is above the threshold."""
        return self.waiting_s > 0 and (seconds or 0.0) > self.waiting_s

    def fails_often(self, counts: OutcomeCounts) -> bool:
        """Whether the share of failed attempts is above the threshold."""
        return self.failed_share > 0 and counts.failed > self.failed_share * counts.ended

    def dies_often(self, counts: OutcomeCounts, hours: float) -> bool:
        """Whether the tasks that died in `hours` are above the threshold."""
        return self.dead_per_hour > 0 and counts.dead > self.dead_per_hour * hours


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSnapshot:
    """The state at most a second ago, or at most four times as long ago as the reading took."""

    look: LiveSnapshot
    graphs: dict[str, Graph]
    """Pipelines whose links are known, by name."""
    warnings: tuple[Check, ...]
    unserved: tuple[QueueView, ...]
    """Queues with open tasks that no worker serves, without those that a pipeline declares as ends."""
    total: Rates
    rates: dict[str, Rates]
    alerts: AlertThresholds = field(default_factory=AlertThresholds)

    @property
    def nav(self) -> dict[str, int]:
        """The counts next to the names of pages."""
        return {"dead": self.look.total("dead")}


class LiveUpdates:
    """Reads once for all tabs: keeps a snapshot, a loop that reads while tabs are open, and an event stream for each
    tab."""

    def __init__(self, client: Client, alerts: AlertThresholds | None = None) -> None:
        self._client = client
        self._alerts = alerts or AlertThresholds()
        self._live_rates = LiveRates()
        self._lock = threading.Lock()
        self._last: DashboardSnapshot | None = None
        self._taken_s = 0.0
        self._lasts_s = FRESH_S
        self._tabs: dict[asyncio.Queue[bytes], str] = {}
        self._ends: dict[str, Callable[[], bool]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._stop_check: asyncio.Task[None] | None = None
        self._has_ended = False

    def snapshot(self, *, fresh: bool = False) -> DashboardSnapshot:
        """The shared snapshot; `fresh`: read now. Concurrent callers wait for one read. Raises ServerError."""
        with self._lock:
            if fresh or self._last is None or monotonic() - self._taken_s > self._lasts_s:
                began = monotonic()
                self._last = self._take()
                self._taken_s = monotonic()
                self._lasts_s = max(FRESH_S, (self._taken_s - began) * _REST)
            return self._last

    def forget(self) -> None:
        """Invalidates the snapshot after an action."""
        with self._lock:
            self._last = None

    def end(self) -> None:
        """Ends the streams of all tabs, and of tabs that open later. Call it in the event loop."""
        self._has_ended = True
        for inbox in self._tabs:
            _end_stream(inbox)

    def answer(self, whose: str, lasts: Callable[[], bool] | None = None) -> StreamingResponse:
        """GET /live for a session or a user. The stream ends when `lasts` returns False. Raises TooBusy for too many
        tabs."""
        if len(self._tabs) >= _MOST_TABS or Counter(self._tabs.values())[whose] >= _MOST_OF_ONE:
            most = _MOST_TABS if len(self._tabs) >= _MOST_TABS else _MOST_OF_ONE
            raise TooBusy(f"{most} tabs are open: this one gets no live updates; close some, or reload it to look")
        inbox = self._open(whose, lasts)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx would hold the stream back
        return _Stream(
            self._told(inbox), media_type="text/event-stream", headers=headers, at_end=lambda: self._forget(inbox)
        )

    def told(self, whose: str = "", lasts: Callable[[], bool] | None = None) -> AsyncGenerator[bytes]:
        """Events of one tab until it closes or its session ends."""
        return self._told(self._open(whose, lasts))

    def _open(self, whose: str, lasts: Callable[[], bool] | None) -> asyncio.Queue[bytes]:
        inbox: asyncio.Queue[bytes] = asyncio.Queue(maxsize=2)
        self._tabs[inbox] = whose  # at once, as a hundred requests in one turn of the loop must count, too
        if lasts is not None:
            self._ends[whose] = lasts
        return inbox

    async def _told(self, inbox: asyncio.Queue[bytes]) -> AsyncGenerator[bytes]:
        if self._loop is None or self._loop.done():
            self._loop = asyncio.get_running_loop().create_task(self._look_for_all())
        if self._stop_check is None or self._stop_check.done():
            self._stop_check = asyncio.get_running_loop().create_task(self._end_with_uvicorn())
        try:
            yield b"retry: 3000\n\n"
            while not self._has_ended and (event := await inbox.get()):
                yield event
        finally:
            self._forget(inbox)

    def _forget(self, inbox: asyncio.Queue[bytes]) -> None:
        whose = self._tabs.pop(inbox, "")
        if whose not in self._tabs.values():
            self._ends.pop(whose, None)

    async def _look_for_all(self) -> None:
        while self._tabs:
            event, ended = await run_in_threadpool(lambda: (self._event(), self._ended()))
            for inbox, whose in tuple(self._tabs.items()):
                if whose in ended:
                    _end_stream(inbox)
                    continue
                with suppress(asyncio.QueueFull):  # a tab that does not read misses an event, which is harmless
                    inbox.put_nowait(event)
            await asyncio.sleep(EVERY_S)

    async def _end_with_uvicorn(self) -> None:
        """Ends the streams of a mounted dashboard when uvicorn shuts down, because uvicorn waits for connections."""
        while self._tabs:
            if _uvicorn_stops():
                for inbox in self._tabs:
                    _end_stream(inbox)
            await asyncio.sleep(_STOP_CHECK_S)

    def _ended(self) -> set[str]:
        """Owners of sessions that ended. While the server is unreachable that is unknown, and no events are sent."""
        try:
            return {whose for whose, lasts in tuple(self._ends.items()) if not lasts()}
        except JobrunnerError:
            return set()

    def _event(self) -> bytes:
        try:
            with waiting_once():
                return _tick(self.snapshot())
        except JobrunnerError as error:
            _, problem = explained(error)
        except Exception as error:  # otherwise no tab would get events until another one is opened
            _log.exception("the dashboard cannot take its snapshot")
            problem = f"{type(error).__name__}: {error}"
        return f"event: problem\ndata: {' '.join(problem.split())}\n\n".encode()

    def _graphs(self) -> dict[str, Graph]:
        try:
            return broker_of(self._client).run(published(keys_of(self._client)))
        except ServerUnavailable:  # the cluster node with the sessions: the snapshot succeeded
            return self._last.graphs if self._last else {}

    def _take(self) -> DashboardSnapshot:
        seen = look(self._client)
        self._live_rates.add(seen)
        graphs = self._graphs()
        ends = end_queues(graphs.values())
        idle = (queue for queue in seen.queues if queue.is_unserved and queue.name not in ends)
        unserved = () if seen.problems else tuple(idle)  # without the workers, no queue seems to have one
        return DashboardSnapshot(
            look=seen,
            graphs=graphs,
            warnings=(*_warnings(seen, unserved), *_late(seen, self._alerts)),
            alerts=self._alerts,
            unserved=unserved,
            total=self._live_rates.total(),
            rates={queue.name: self._live_rates.rates(queue.name) for queue in seen.queues},
        )


def _uvicorn_stops() -> bool:
    """Whether the uvicorn that handles the signals of this process should stop.

    An application is notified only by its lifespan, which uvicorn ends after the last connection. Signal handlers of
    uvicorn, also of its workers under gunicorn, are methods of the server.
    """
    servers = (getattr(signal.getsignal(one), "__self__", None) for one in (signal.SIGINT, signal.SIGTERM))
    return any(getattr(server, "should_exit", False) is True for server in servers)


def _end_stream(inbox: asyncio.Queue[bytes]) -> None:
    while not inbox.empty():
        inbox.get_nowait()
    inbox.put_nowait(b"")


class _Stream(StreamingResponse):
    """A stream that calls `at_end` however it ends, also before its first byte."""

    def __init__(self, *given: Any, at_end: Callable[[], None], **options: Any) -> None:
        super().__init__(*given, **options)
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams the response, then calls `at_end`."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()


def _warnings(seen: LiveSnapshot, unserved: tuple[QueueView, ...]) -> list[Check]:
    found = [fail("workers", *problem.split(": ", 1)) for problem in seen.problems]
    found += [*unread_checks(seen.queues), *urgent_checks(seen.lost, unserved, seen.queues, seen.workers)]
    found += [slots_check(worker) for worker in seen.workers if worker.held_by][:_UNKNOWN_TOLD]
    found += [unknown_type_check(one) for one in seen.unknown[:_UNKNOWN_TOLD]]
    if seen.workers and seen.leader is None:
        found.append(leader_check(None))
    return found + [check for check in (facts_checks(seen.server) if seen.server else ()) if check.verdict != "ok"]


def _late(seen: LiveSnapshot, alerts: AlertThresholds) -> list[Check]:
    late = [queue for queue in seen.queues if alerts.waits_long(queue.oldest_s) and not queue.paused and queue.workers]
    if not late:
        return []
    worst = max(late, key=lambda queue: queue.oldest_s or 0.0)
    others = f", and {len(late) - 1} more queues" if late[1:] else ""
    found = f"the oldest task of {worst.name} waits for {duration(worst.oldest_s or 0.0)}{others}"
    advice = f"the threshold is {duration(alerts.waiting_s)}; add workers, or look for a limit of the queue"
    return [warn("queue latency", found, advice, queue=worst.name)]


def _tick(seen: DashboardSnapshot) -> bytes:
    at = round(seen.look.now.timestamp() * 1000)
    return b"event: tick\ndata: " + msgspec.json.encode({"at": at}) + b"\n\n"
