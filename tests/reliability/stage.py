"""Where a scenario is played: a server, a producer, worker processes, and a ledger outside of all that may fail."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import redis

from jobrunner import Client
from jobrunner.client.current import forget, use
from tests.acceptance.fleet import Fleet
from tests.acceptance.jobs_for_tests import Work
from tests.acceptance.ledger import Ledger
from tests.conftest import Server, wait_for
from tests.reliability.proxy import Proxy
from tests.reliability.tampering import CRASH, FAULT

QUEUE = "t"
PREFIX = "rel"
SITE = Path(__file__).parent / "site"


class Stage:
    """Everything a scenario uses; what it started ends with it. `say` hears what a person would like to see."""

    def __init__(
        self, folder: Path, say: Callable[[str], None] = lambda _line: None, *, patience_s: float = 60, **options: str
    ) -> None:
        self.say = say
        self.folder = folder
        self.patience_s = patience_s
        self.server = Server(**options)
        self.raw: redis.Redis = self.server.connect()
        self.client = use(Client(self.server.url, PREFIX, patience=30))
        self.fleet = Fleet(self.server.url, PREFIX, folder)
        self.acknowledged: set[str] = set()
        self._proxies: list[Proxy] = []

    @property
    def ledger(self) -> Ledger:
        """What jobs did."""
        return self.fleet.ledger

    def tamper(self, *, crash: str = "", fault: str = "") -> dict[str, str]:
        """The environment of a worker that dies at a point, or is of a broken build."""
        path = os.pathsep.join([str(SITE), self.fleet.environment["PYTHONPATH"]])
        return {"PYTHONPATH": path, **({CRASH: crash} if crash else {}), **({FAULT: fault} if fault else {})}

    def proxy(self) -> Proxy:
        """A way to the server that can fail."""
        self._proxies.append(Proxy(self.server.socket))
        return self._proxies[-1]

    def enqueue(self, count: int, *, seconds: float = 0.0) -> list[str]:
        """Enqueues tasks that take so long; they count as acknowledged once the call has returned."""
        ids = [task.id for task in Work.enqueue_many(Work(n=n, seconds=seconds) for n in range(count))]
        self.acknowledged.update(ids)
        return ids

    def ended(self) -> int:
        """How many tasks ran to their end, by the ledger."""
        return self.ledger.count("end")

    def watch_to(self, share: float, total: int, *, timeout_s: float = 120) -> None:
        """Returns when that share of the tasks has run to its end."""
        wait_for(lambda: self.ended() >= share * total, timeout_s=timeout_s)

    def drain(self, queue: str = QUEUE) -> float:
        """Returns when nothing waits, is due or runs any more, and how many seconds that took.

        Gives up when nothing ran to its end for `patience_s`: what is left is for the checker to find.
        """
        began = moved_at = time.monotonic()
        counts, ended = self.client.queue(queue).counts, -1
        while any(counts()[state] for state in ("waiting", "scheduled", "pending")):
            if self.ended() > ended:
                ended, moved_at = self.ended(), time.monotonic()
            if time.monotonic() > moved_at + self.patience_s:
                break
            time.sleep(0.02)
        return time.monotonic() - began

    def close(self) -> None:
        """Ends all."""
        self.fleet.close()
        for proxy in self._proxies:
            proxy.close()
        forget()
        self.client.close()
        self.raw.close()
        self.server.remove()
