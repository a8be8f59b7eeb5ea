"""Workers and producers as processes on one topology, and what their ledger says."""

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobrunner import Client
from tests.acceptance.fleet import ROOT, Fleet
from tests.acceptance.ledger import VARIABLE, Ledger
from tests.support.waiting import wait_for

LIVE = ("waiting", "scheduled", "pending")


class Load:
    """Two workers and two producers, by default, on some queues. `client` reads the same queues, with long retries."""

    def __init__(self, url: str, folder: Path, queues: list[str], **options: Any) -> None:
        self.queues = queues
        self.fleet = Fleet(url, "load", folder)
        self.client = Client(url, "load", retry_timeout=60)
        self.fleet.start(2, queues=queues, concurrency=4, poll=1)
        said = json.dumps({"url": url, "prefix": "load", "queues": queues, **options})
        environment = {**os.environ, VARIABLE: str(self.ledger.path), "PYTHONPATH": str(ROOT)}
        self._producers = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.topologies.producer", said],
                cwd=ROOT, env=environment, stdin=subprocess.PIPE, text=True,
            ) for _ in range(2)
        ]  # fmt: skip

    @property
    def ledger(self) -> Ledger:
        return self.fleet.ledger

    def wait_more(self, count: int, timeout_s: float = 60) -> None:
        """Returns when `count` further tasks were run."""
        before = len(self.ledger.entries("end"))
        wait_for(lambda: len(self.ledger.entries("end")) >= before + count, timeout_s=timeout_s)

    def first_after(self, event: str, moment: float, *, note: str = "", timeout_s: float = 60) -> float:
        """When that first happened after a moment, with that note if one is given."""

        def look() -> float | None:
            found = (one for one in self.ledger.entries(event) if one.at > moment and note in ("", one.note))
            return next((one.at for one in found), None)

        return wait_for(look, timeout_s=timeout_s)  # type: ignore[no-any-return]

    def finish(self, timeout_s: float = 120) -> None:
        """Ends the producers, and returns when there is nothing more to do."""
        for producer in self._producers:
            producer.communicate()
            assert producer.returncode == 0, "a producer ended with an error"
        wait_for(lambda: not any(self._left().values()), timeout_s=timeout_s)

    def _left(self) -> Counter[str]:
        left: Counter[str] = Counter()
        for counts in self.client.stats().values():
            left.update({state: getattr(counts, state) for state in LIVE})
        return left

    def verdict(self) -> dict[str, int]:
        """Acknowledged, lost, run twice or more; and no worker or producer ever got a CROSSSLOT error."""
        sent, ended, starts = (self.ledger.times(event) for event in ("sent", "end", "start"))
        err = "".join(worker.log.read_text() for worker in self.fleet.workers) + self.ledger.path.read_text()
        assert "CROSSSLOT" not in err.upper()
        assert "SAME SLOT" not in err.upper()
        return {
            "acknowledged": len(sent),
            "lost": len(sent.keys() - ended.keys()),
            "doubled": sum(1 for times in starts.values() if times > 1),
            "dead": sum(one.dead for one in self.client.stats().values()),
        }

    def close(self) -> None:
        """Ends them all."""
        for producer in self._producers:
            with suppress(ProcessLookupError):
                producer.kill()
            producer.wait()
        self.fleet.close()
        self.client.close()
