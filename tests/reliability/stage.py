"""The environment of a scenario: a server, a producer, worker processes, and a ledger that no fault reaches."""

import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from jobrunner import Client
from jobrunner.client.current import forget, pinned, use
from jobrunner.errors import JobrunnerError
from jobrunner.soak.history import recorder
from tests.acceptance.fleet import FRESH, Fleet
from tests.acceptance.jobs_for_tests import Work
from tests.acceptance.ledger import Ledger
from tests.reliability.proxy import Proxy
from tests.reliability.tampering import TAMPER
from tests.support.server import Server
from tests.support.waiting import wait_for

QUEUE = "t"
PREFIX = "rel"
SITE = Path(__file__).parent / "site"


class Producer:
    """Enqueues `left` times, at most `rate` times a second (0: as fast as it can). Goes on after typed errors."""

    def __init__(self, enqueue: Callable[[], object], left: int, rate: float) -> None:
        self.left = left
        self.errors: Counter[str] = Counter()
        self.acknowledged_at: list[float] = []
        self._enqueue = enqueue
        self._pause_s = 1 / rate if rate else 0.0

    def run(self) -> None:
        """Until nothing is left."""
        due = time.monotonic()
        while self.left > 0:
            due += self._pause_s
            try:
                self._enqueue()
            except JobrunnerError as error:
                self.errors[type(error).__name__] += 1
                time.sleep(0.05)
                continue
            self.left -= 1
            self.acknowledged_at.append(time.monotonic())
            time.sleep(max(due - time.monotonic(), 0.0))


class Stage:
    """Everything that a scenario uses; its processes end with it. `say` receives lines of progress. The server is
    `server`, or a usual one with these options."""

    def __init__(
        self, folder: Path, say: Callable[[str], None] = lambda _line: None, *, give_up_s: float = 60,
        server: Server | None = None, **options: str,
    ) -> None:  # fmt: skip
        self.say = say
        self.folder = folder
        self.give_up_s = give_up_s
        self.server = server or Server(**options)
        self.raw: redis.Redis = self.server.connect()
        self.client = use(Client(self.server.url, PREFIX, retry_timeout=30))
        self.fleet = Fleet(self.server.url, PREFIX, folder)
        self.acknowledged: set[str] = set()
        self.histories: Path | None = None
        """Where to keep the history of the row."""
        self._recorded = folder / "history"
        self._proxies: list[Proxy] = []
        self._recording = ExitStack()
        self._ended_with = ExitStack()
        self._ended_with.enter_context(self._recording)

    @property
    def ledger(self) -> Ledger:
        """The ledger of jobs."""
        return self.fleet.ledger

    def tamper(self, **tampering: str) -> dict[str, str]:
        """The environment of a worker that dies at a point (`crash`), has a known bug (`fault`), or has a wrong clock
        (`wall_clock`, `server_clock`)."""
        path = os.pathsep.join([str(SITE), self.fleet.environment["PYTHONPATH"]])
        asked = {f"{TAMPER}{name.upper()}": value for name, value in tampering.items() if value}
        return {"PYTHONPATH": path, FRESH: "1", **asked}

    def crash_at(self, point: str) -> tuple[dict[str, str], Path]:
        """The environment of a worker that dies at that point once, and the file that it creates then."""
        crashed = self.folder / f"crashed-at-{point}"
        return self.tamper(crash=point, crashed=str(crashed)), crashed

    def record_history(self) -> None:
        """From now on this process, and workers and lease keepers that start, record their calls: see recording.py."""
        self._recorded.mkdir()
        path = os.pathsep.join([str(SITE), self.fleet.environment["PYTHONPATH"]])
        self.fleet.environment |= {recorder.FOLDER: str(self._recorded), "PYTHONPATH": path}
        self._recording.callback(recorder.install(self._recorded))

    def end_recording(self) -> Path:
        """This process records no more. Returns the folder of the history."""
        self._recording.close()
        return self._recorded

    def proxy(self) -> Proxy:
        """A proxy to the server that can fail."""
        self._proxies.append(Proxy(self.server.socket))
        return self._proxies[-1]

    def enqueue(self, count: int, *, seconds: float = 0.0, job: type[Work] = Work) -> list[str]:
        """Enqueues tasks that take so long; they count as acknowledged once the call has returned."""
        ids = [task.id for task in job.enqueue_many(job(n=n, seconds=seconds) for n in range(count))]
        self.acknowledged.update(ids)
        return ids

    def produce_through(self, proxy: Proxy) -> None:
        """From now on tasks are enqueued through that proxy."""
        self._ended_with.enter_context(pinned(self.client_through(proxy)))

    def client_through(self, proxy: Proxy) -> Client:
        """A client that connects through that proxy."""
        return self._ended_with.enter_context(Client(proxy.url, PREFIX, retry_timeout=30))

    @contextmanager
    def producing(self, total: int, *, batch: int = 20, seconds: float = 0.0, rate: float = 0.0) -> Iterator[Producer]:
        """Enqueues tasks while the body runs, at most `rate` a second; ends when all are acknowledged."""
        producer = Producer(lambda: self.enqueue(batch, seconds=seconds), math.ceil(total / batch), rate / batch)
        thread = threading.Thread(target=producer.run)
        thread.start()
        try:
            yield producer
        except BaseException:
            producer.left = 0
            raise
        finally:
            thread.join()

    def ended(self) -> int:
        """How many tasks ran to their end, by the ledger."""
        return self.ledger.count("end")

    def has_work(self, queue: str = QUEUE) -> bool:
        """Whether tasks wait, are due or run. One call reads all three, as a task moves between them."""
        counts = self.client.queue(queue).counts()
        return any(counts[state] for state in ("waiting", "scheduled", "pending"))

    def watch_to(self, share: float, total: int, *, timeout_s: float = 120) -> None:
        """Returns when that share of the tasks has run to its end."""
        wait_for(lambda: self.ended() >= share * total, timeout_s=timeout_s)

    def drain(self, queue: str = QUEUE) -> float:
        """Returns when nothing waits, is due or runs any more, and how many seconds that took.

        Gives up when no task ended for `give_up_s`: the checker then reports the tasks that are left.
        """
        began = moved_at = time.monotonic()
        ended = -1
        while self.has_work(queue):
            if self.ended() > ended:
                ended, moved_at = self.ended(), time.monotonic()
            if time.monotonic() > moved_at + self.give_up_s:
                break
            time.sleep(0.02)
        return time.monotonic() - began

    def stop_workers(self) -> None:
        """Ends all workers, suspended ones too."""
        for worker in self.fleet.workers:
            if worker.alive:
                worker.send(signal.SIGCONT)
                worker.stop()
        for worker in self.fleet.workers:
            worker.wait(60)

    def close(self) -> None:
        """Ends all."""
        self.fleet.close()
        for proxy in self._proxies:
            proxy.close()
        self._ended_with.close()
        forget()
        self.client.close()
        self.raw.close()
        self.server.remove()
