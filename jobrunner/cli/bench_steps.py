"""The measurements of `jobrunner bench`, on a temporary prefix, and its verdict: the bottleneck, and suggestions.

Invariant: nothing is written outside of that prefix, and its keys are deleted however the measurement ends.
"""

import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jobrunner.broker.calls.server import ping, processor_time
from jobrunner.cli.signals import handling
from jobrunner.client.client import Client, broker_of
from jobrunner.clock import perf_counter, process_time, sleep
from jobrunner.inspector.doctor import Check
from jobrunner.jobs.decorator import job
from jobrunner.jobs.registry import forget
from jobrunner.soak.audit import delete_all
from jobrunner.task import Task, new_id
from jobrunner.worker.worker import Worker

QUEUE, NOOP = "bench", "jobrunner.bench"
_LOOK_S = 0.02
_PATIENT_S = 60.0

Progress = Callable[[int], None] | None
"""Called with the number of tasks done by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Times in milliseconds."""

    p50: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """The result of draining a queue. Shares are of one core; times are processor time for one task, in
    microseconds."""

    per_s: float
    worker_share: float
    worker_us: float
    server_share: float
    """Includes work of the server for other clients meanwhile."""
    server_us: float


class _Runs:
    """Records when the first task ran since its creation."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        self.had_one = threading.Event()

    def note(self) -> None:
        if self.first_s is None:
            self.first_s = perf_counter()
            self.had_one.set()


class Bench:
    """Measures one set-up. Its job records when it runs; the job is registered while the block of `prepared` lasts.
    `payload` is the JSON payload of each task."""

    def __init__(self, client: Client, concurrency: int, payload: bytes = b"null") -> None:
        self.client = client
        self._payload = b'{"payload":' + payload + b"}"
        self._concurrency = concurrency
        self._runs = _Runs()

    def run(self) -> None:
        """The measured job; it does next to nothing."""
        self._runs.note()

    def round_trips(self, count: int) -> Percentiles:
        """Times of round trips to the server."""
        broker_of(self.client).run(ping())
        return percentiles_of([_timed(lambda: broker_of(self.client).run(ping())) for _ in range(count)])

    def one_by_one(self, count: int, progress: Progress) -> float:
        """Tasks enqueued per second, each in a round trip of its own."""
        began = perf_counter()
        for done in range(1, count + 1):
            self.client.enqueue(self._task())
            if progress is not None and done % 50 == 0:
                progress(done)
        return count / (perf_counter() - began)

    def in_bulk(self, count: int, progress: Progress) -> float:
        """Tasks enqueued per second, a thousand in each round trip."""
        began = perf_counter()
        for at in range(0, count, 1000):
            self.client.enqueue_many([self._task() for _ in range(min(1000, count - at))])
            if progress is not None:
                progress(min(at + 1000, count))
        return count / (perf_counter() - began)

    def drain(self, count: int, progress: Progress) -> Drained:
        """Drains the queue with one worker; measured from the first task that runs until none is left on the server."""
        self._runs = _Runs()
        with self.working():
            self._runs.had_one.wait(_PATIENT_S)
            own_s, servers_s = process_time(), broker_of(self.client).run(processor_time())
            while left := self._left():
                if progress is not None:
                    progress(count - left)
                sleep(_LOOK_S)
            took_s = max(perf_counter() - (self._runs.first_s or 0.0), 0.001)
            own_s = process_time() - own_s
            servers_s = broker_of(self.client).run(processor_time()) - servers_s
        return Drained(
            per_s=count / took_s, worker_share=own_s / took_s, worker_us=own_s / count * 1e6,
            server_share=servers_s / took_s, server_us=servers_s / count * 1e6,
        )  # fmt: skip

    def idle_latency(self, count: int, progress: Progress) -> Percentiles:
        """Times from just before an enqueue to the first line of the job, with an idle worker."""
        took = []
        with self.working():
            self._enqueue_and_wait()  # the first task also pays for first use
            for done in range(1, count + 1):
                took.append(self._enqueue_and_wait())
                if progress is not None:
                    progress(done)
                sleep(_LOOK_S)
        return percentiles_of(took)

    @contextmanager
    def working(self) -> Iterator[None]:
        """A real worker in this process."""
        worker = Worker(
            queues=[QUEUE], concurrency=self._concurrency, client=self.client, allow_eviction=True, grace=1.0
        )
        worker.start()
        try:
            yield
        finally:
            worker.stop()

    def _enqueue_and_wait(self) -> float:
        self._runs = _Runs()
        began = perf_counter()
        self.client.enqueue(self._task())
        self._runs.had_one.wait(_PATIENT_S)
        return ((self._runs.first_s or perf_counter()) - began) * 1000

    def _task(self) -> Task:
        return Task(id=new_id(QUEUE), queue=QUEUE, type=NOOP, payload=self._payload)

    def _left(self) -> int:
        counts = self.client.queue(QUEUE).counts()
        return counts["waiting"] + counts["pending"]


@contextmanager
def prepared(bench: Bench) -> Iterator[None]:
    """Registers the job; deletes the written keys at the end, also of an interrupted run."""

    @job(name=NOOP, queue=QUEUE)
    def noop(payload: Any) -> None:  # noqa: ARG001 - its tasks bring it along
        bench.run()

    try:
        yield
    finally:
        forget(NOOP)
        with handling({signal.SIGINT: signal.SIG_IGN}):  # a second Ctrl-C would leave keys behind
            delete_all(bench.client)


def throw_away_prefix(stem: str) -> str:
    """A new prefix whose name identifies it as one of a benchmark."""
    return f"{stem[:100]}-bench-{secrets.token_hex(4)}"


def percentiles_of(took_ms: Sequence[float]) -> Percentiles:
    """The percentiles of at least one time."""
    ordered = sorted(took_ms)
    at = [ordered[min(int(len(ordered) * share), len(ordered) - 1)] for share in (0.5, 0.95)]
    return Percentiles(p50=round(at[0], 3), p95=round(at[1], 3), max=round(ordered[-1], 3))


def _timed(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return (perf_counter() - began) * 1000


_BUSY = 0.85
_FAR_MS = 1.0
_UNEVEN = 5.0
_LARGE_BYTES = 16_384
_WORTH_IT = 1.3
_FAST_IN_BULK = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFigures:
    """Measured values. Times in milliseconds, rates in tasks per second."""

    round_trip_ms: Percentiles
    enqueue_per_s: float
    bulk_per_s: float
    drained: Drained
    idle_latency_ms: Percentiles
    payload_bytes: int
    cores: int
    is_local: bool
    """Whether the server is on this machine."""


def verdict(found: BenchFigures) -> str:
    """Names the bottleneck of one worker process."""
    drained = found.drained
    took = f"{drained.worker_us:.0f} µs of this interpreter and {drained.server_us:.0f} µs of the server for a task"
    if drained.worker_share >= _BUSY and drained.worker_share >= drained.server_share:
        return f"the interpreter of the worker is the limit: {took}"
    if drained.server_share >= _BUSY:
        return f"the server is the limit: {took}; of the one core that it works on {drained.server_share:.0%} was taken"
    shares = f"{drained.worker_share:.0%} and {drained.server_share:.0%} of a core"
    return (
        f"neither worker nor server is busy ({shares}): the network, or other load on this machine, is the "
        f"limit; {took}"
    )


def advice(found: BenchFigures, checks: Iterable[Check] = ()) -> Iterator[str]:
    """Suggestions, the most important first. `checks`: results of the doctor."""
    yield from _processes(found)
    trip = found.round_trip_ms
    if trip.p50 > _FAR_MS:
        where = "a server nearer by" if not found.is_local else "the machine at rest"
        yield (
            f"a round trip takes {trip.p50:.1f} ms, so one call after the other enqueues at most "
            f"{1000 / trip.p50:,.0f} tasks/s: enqueue_many needs one for 1,000 tasks, AsyncClient sends concurrently; "
            f"or use {where}"
        )
    elif found.bulk_per_s > _FAST_IN_BULK * found.enqueue_per_s:
        times = found.bulk_per_s / found.enqueue_per_s
        yield f"enqueue many tasks at once with enqueue_many: {times:.0f} times as fast as one by one"
    if trip.p95 > _UNEVEN * trip.p50:
        yield (
            f"round trips vary (95 %: {trip.p95 / trip.p50:.0f} times the median): the machine or the network has "
            "other load; measure again without it"
        )
    if found.payload_bytes > _LARGE_BYTES:
        yield (
            f"a payload of {found.payload_bytes:,} bytes travels twice and stays in the server's memory: store it "
            "elsewhere and enqueue where it is"
        )
    yield from (f"{check.what}: {check.found}; {check.advice}" for check in checks if check.advice)


def _processes(found: BenchFigures) -> Iterator[str]:
    drained = found.drained
    if drained.worker_share < _BUSY or found.cores < 2:
        return
    room = min(_BUSY / max(drained.server_share, 0.01), found.cores)
    if room >= _WORTH_IT:
        yield (
            f"work --processes {max(round(room), 2)} uses more cores: the server has room for about {room:.1f} times "
            f"as many tasks that do nothing; tasks that compute want one process for each of the {found.cores} cores, "
            "tasks that wait want a higher --concurrency"
        )
