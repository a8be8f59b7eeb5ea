"""Runs a soak from its start to its verdict.

Invariants: the processes end in every case, and the keys and files of the soak are deleted unless they are to be kept;
nothing is written outside the prefix, and on the user's server nothing outside the prefix is touched.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobrunner.broker.connect import unix_url
from jobrunner.client.client import Client, keys_of
from jobrunner.clock import monotonic, sleep
from jobrunner.errors import JobrunnerError
from jobrunner.retry import Backoff
from jobrunner.soak.audit import (
    QueueSample,
    SoakSample,
    delete_all,
    descriptors,
    key_count,
    resident_bytes,
    server_side,
    share,
    used_memory,
    waits_since,
)
from jobrunner.soak.checks import (
    Peaks,
    SoakCheck,
    answered,
    of_growth,
    of_history,
    of_ledger,
    of_limits,
    of_prefix,
    of_processes,
    of_server,
    of_ticks,
)
from jobrunner.soak.fault_proxy import FaultProxy, target_of, url_through
from jobrunner.soak.faults import OF_PROXY, Fault, FaultInjector, InjectedFault, faults_of
from jobrunner.soak.history.recorder import environment_for
from jobrunner.soak.jobs import DOOMED, LEDGER, LIMITED, QUEUES, TICK_S, WORK
from jobrunner.soak.ledger import Excuses, LedgerSummary, LedgerTail
from jobrunner.soak.processes import SETTINGS, ChildSettings, OwnServer, SoakProcess, SoakProcesses

LIMIT = 5
"""Tasks of the limited queue that may run at a time."""
_LOOK_S = 0.2
_WINDOW_S = 10.0
_GRACE_S = 10.0
_START_S = 60.0
_DEAD_KEPT = 200
_QUIET_S = 2.0
_SAMPLES = 360
_HOLDS_S = 30
"""The `max_size` of the queue in seconds of tasks; beyond it the producer blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """The options of a soak. Times in seconds; without `url` it uses a private server."""

    length_s: float
    rate: float = 200.0
    workers: int = 4
    concurrency: int = 8
    task_s: float = 0.02
    """Mean run time of a task."""
    kinds: Sequence[str] = ()
    every_s: float = 10.0
    seed: int = 0
    keepalive_s: float = 6.0
    url: str | None = None
    prefix: str
    keep: bool = False
    patience_s: float = 60.0
    """Time that the drain waits without progress."""
    history: Path | None = None
    """A new folder for a history of all calls, which is checked at the end."""

    @property
    def sample_s(self) -> float:
        """Seconds between two samples."""
        return min(max(self.length_s / _SAMPLES, 0.5), 10.0)


class Soak:
    """One soak in a folder of its own. Its lifecycle:

    1. starts a server, unless it was given one, and a proxy for faults that need it;
    2. starts the processes, which work until `length_s` have passed or `stop` is set;
    3. injects faults as planned, reads the ledger, polls the server, takes samples, and calls `show` after each poll;
    4. ends all faults, lets the work drain, ends the processes, and runs the checks;
    5. on `close` ends all processes and deletes its keys; `left_over` reports a failure.
    """

    def __init__(self, wish: SoakOptions, folder: Path) -> None:
        self.wish = wish
        self.plan: list[Fault] = faults_of(wish.seed, wish.kinds, every_s=wish.every_s, length_s=wish.length_s)
        self.samples: list[SoakSample] = []
        self.phase = "starts"
        self.began = monotonic()
        self.stop = threading.Event()
        self._show: Callable[[Soak], None] = lambda _: None
        self.left_over = False
        """Whether keys stay on the user's server, which was unreachable when they should have been deleted."""
        self._folder = folder
        self._server: OwnServer | None = None
        with ExitStack() as ends:
            if wish.url is None:
                self._server = OwnServer(folder / "server")
                ends.callback(self._server.remove)
            url = wish.url or self._server.url  # type: ignore[union-attr]
            self.client = Client(url, wish.prefix, retry_timeout=5)
            ends.callback(self.client.close)
            if not wish.keep and self._server is None:
                ends.callback(self._delete_keys)
            self.tail = LedgerTail(folder / "ledger")
            self.excuses = Excuses()
            self.tally = LedgerSummary(self.excuses)
            self.peaks = Peaks()
            cable = self._laid()
            if cable is not None:
                # Before the keys are deleted, as commands that a killed process sent into a silence would recreate
                # some.
                ends.callback(cable.close)
            urls = [url] if cable is None else [url, url_through(cable, self._url_to_pass(url))]
            self.processes = SoakProcesses(
                urls, self._environment(), folder, concurrency=wish.concurrency, grace_s=_GRACE_S
            )
            ends.callback(self.processes.kill_all)
            self.striker = FaultInjector(
                self.client, self.processes, self.excuses, keepalive_s=wish.keepalive_s, cable=cable,
                server=self._server,
            )  # fmt: skip
            self._ends = ends.pop_all()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return monotonic() - self.began

    @property
    def faults(self) -> list[InjectedFault]:
        """The faults that were injected."""
        return self.striker.done

    def run(self, show: Callable[["Soak"], None]) -> list[SoakCheck]:
        """Runs the soak; returns its checks. `show` is called after each poll."""
        self._show = show
        self._configure()
        for role in ("worker",) * self.wish.workers + ("producer", "manual_consumer"):
            self.processes.start(role)
        self._await_workers()
        elder = self.processes.elder.name
        self._load()
        worked_s = self.elapsed_s
        self._drain()
        is_own_server = self._server is not None
        return [
            *of_ledger(self.tally),
            *answered("the queues", lambda: of_server(self.client, self.tally)),
            *of_limits(self.peaks, LIMIT),
            *answered("the ticks", lambda: of_ticks(self.client, self.tally, worked_s)),
            *of_processes(self.processes.lost),
            *of_growth(self.samples, elder, is_own_server=is_own_server),
            *(answered("the prefix", lambda: of_prefix(self.client)) if is_own_server else ()),
            *(of_history(self.client, self.wish.history) if self.wish.history is not None else ()),
        ]

    def close(self) -> None:
        """Ends all processes and deletes the keys of the soak."""
        self._ends.close()

    def _delete_keys(self) -> None:
        try:
            delete_all(self.client)
        except JobrunnerError:
            self.left_over = True

    def _laid(self) -> FaultProxy | None:
        if not OF_PROXY & set(self.wish.kinds):
            return None
        target = self._server.socket if self._server is not None else target_of(self.wish.url or "")
        assert target is not None, "kinds_of() has refused them"
        return FaultProxy(target)

    def _url_to_pass(self, url: str) -> str:
        return url if self._server is None else unix_url(self._server.socket)

    def _environment(self) -> dict[str, str]:
        settings = ChildSettings(rate=self.wish.rate, keepalive=self.wish.keepalive_s, task_s=self.wish.task_s)
        recording = {} if self.wish.history is None else environment_for(self.wish.history, self._folder / "site")
        return recording | {
            "JOBRUNNER_PREFIX": keys_of(self.client).prefix,
            LEDGER: str(self._folder / "ledger"),
            SETTINGS: settings.text(),
        }

    def _configure(self) -> None:
        for name in QUEUES:
            self.client.queue(name).configure(keepalive=self.wish.keepalive_s, max_attempts=0, backoff=Backoff(base=1))
        self.client.queue(WORK).configure(max_size=int(max(self.wish.rate * _HOLDS_S, 1000)))
        self.client.queue(LIMITED).configure(max_inflight=LIMIT)
        self.client.queue(DOOMED).configure(dead_max=_DEAD_KEPT)

    def _await_workers(self) -> None:
        """Waits until all workers are registered, or too long has passed, which the checks then report."""
        until = monotonic() + _START_S
        while monotonic() < until and len(self.client.workers()) < self.wish.workers:
            self._show(self)
            sleep(_LOOK_S)

    def _load(self) -> None:
        self.phase = "works"
        self.began = self.striker.began = monotonic()
        left = list(self.plan)
        while self.elapsed_s < self.wish.length_s and not self.stop.is_set():
            if left and left[0].at_s <= self.elapsed_s:
                self.striker.inject(left.pop(0))
            self._look()
            sleep(_LOOK_S)

    def _drain(self) -> None:
        """Waits until no task is left, or no task moved for long; the checks then find the remaining tasks."""
        self.phase = "drains"
        self.striker.end_all()
        for name in TICK_S:
            with suppress(JobrunnerError):
                self.client.disable_periodic(name)
        self.processes.end([one for one in self.processes.members if one.role == "producer"], patience_s=_GRACE_S)
        moved_at, quiet_since, done = monotonic(), monotonic(), -1
        while monotonic() < moved_at + self.wish.patience_s + self.wish.keepalive_s:
            side = self._look()
            if side is None or side.left:
                quiet_since = monotonic()
            elif monotonic() > quiet_since + _QUIET_S:
                break
            if self.tally.totals.finished + self.tally.totals.retries > done:
                moved_at, done = monotonic(), self.tally.totals.finished + self.tally.totals.retries
            sleep(_LOOK_S)
        self.phase = "ends"
        self.processes.end(list(self.processes.members), patience_s=3 * _GRACE_S)
        self.tally.take(self.tail.new())

    def _look(self) -> QueueSample | None:
        self.striker.look()
        self.processes.look()
        self.tally.take(self.tail.new())
        side = None
        with suppress(JobrunnerError):
            side = server_side(self.client)
            self.peaks.note(side)
        if self.phase == "works" and (not self.samples or self.elapsed_s >= self.samples[-1].at_s + self.wish.sample_s):
            self.samples.append(self._sample(side))
        self._show(self)
        return side

    def _sample(self, side: QueueSample | None) -> SoakSample:
        totals, now = self.tally.totals, monotonic()
        waits = waits_since(list(self.tally.waits), now - _WINDOW_S)
        window_s = max(_WINDOW_S, 1.5 * self.wish.sample_s)  # there is always a sample in it
        before = next((one for one in self.samples if one.at_s >= self.elapsed_s - window_s), None)
        span_s = self.elapsed_s - before.at_s if before else 0.0
        return SoakSample(
            at_s=round(self.elapsed_s, 2),
            acked=totals.acked,
            finished=totals.finished,
            open=len(self.tally.open),
            in_flight=side.in_flight if side else None,
            retries=totals.retries,
            dead=side.dead if side else None,
            extra=totals.extra,
            oldest_s=round(self.tally.oldest_s(now), 2),
            per_s=round((totals.finished - before.finished) / span_s, 1) if before and span_s > 0 else 0.0,
            p50_ms=_rounded(share(waits, 0.5)),
            p99_ms=_rounded(share(waits, 0.99)),
            faults=dict(self.striker.counts),
            **_used(self.processes.workers(), self.client),
        )


def _used(workers: Sequence[SoakProcess], client: Client) -> dict[str, Any]:
    """Resources that the workers and the server use now, as fields of a sample; None where the server is away."""
    server_memory = keys = None
    with suppress(JobrunnerError):
        server_memory, keys = used_memory(client), key_count(client)
    return {
        "memory": {one.name: size for one in workers if (size := resident_bytes(one.pid)) is not None},
        "descriptors": {one.name: count for one in workers if (count := descriptors(one.pid)) is not None},
        "server_memory": server_memory,
        "keys": keys,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def fresh_prefix(stem: str | None = None) -> str:
    """An unused prefix: `soak-…`, or `<stem>-soak-…`."""
    name = f"soak-{secrets.token_hex(5)}"
    return name if stem is None else f"{stem}-{name}"
