"""The incident: a server with a backlog, an hour of good figures, and workers of two releases."""

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from jobrunner import Client, RateLimit
from jobrunner.broker.calls import events as event_calls
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.current import within
from jobrunner.inspector.live_snapshot import look
from jobrunner.inspector.stats import by_job
from tests.acceptance.incident.jobs import build_report, charge_card, index_product, resize
from tests.support.server import Server
from tests.support.waiting import wait_for

PREFIX = "shop"
JOBS = "tests.acceptance.incident.jobs"
ROOT = Path(__file__).parents[3]
GOOD_RELEASE, BROKEN_RELEASE = "1.4.1", "1.4.2"
SHARES = {"payments": 30, "images": 10, "reports": 40, "search": 20}
"""Of 100 tasks."""
RATE = RateLimit(10, per=timedelta(minutes=1))
_BATCH, _FEW = 1000, 40


@dataclass(frozen=True)
class Incident:
    """The server with its troubles, and the task that ends workers."""

    server: Server
    client: Client
    poison: str


@contextmanager
def incident(tasks: int, folder: Path) -> Iterator[Incident]:
    """The incident, with `tasks` tasks, when all four troubles show. Workers and the server end with the block."""
    server = Server()
    workers: list[subprocess.Popen[bytes]] = []
    try:
        with Client(server.url, PREFIX) as client:
            _write_past(client)
            client.queue("search").configure(rate=RATE)
            good = _work(server, folder, GOOD_RELEASE, "payments")
            workers.append(good)
            with within(client):
                charge_card.enqueue_many([charge_card.bind(order=n, amount=1.5) for n in range(_FEW)])
                wait_for(lambda: client.queue("payments").totals().get("succeeded", 0) == _FEW, timeout_s=60)
                good.send_signal(signal.SIGTERM)
                good.wait(30)
                poison = _enqueue(tasks)
            workers.append(_work(server, folder, BROKEN_RELEASE, "payments", "search"))
            workers.append(_work(server, folder, BROKEN_RELEASE, "images"))
            wait_for(lambda: _failed(client) >= _FEW, timeout_s=60)
            wait_for(lambda: any(row.id == poison for row in look(client).lost), timeout_s=120)
            wait_for(lambda: client.queue("search").totals().get("succeeded", 0) >= RATE.max_tokens, timeout_s=60)
            yield Incident(server, client, poison)
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(20)
        server.remove()


def _enqueue(tasks: int) -> str:
    counts = {name: max(tasks * share // 100, 30) for name, share in SHARES.items()}
    poison = resize.enqueue(picture="poison.tiff", width=640)
    for first in range(0, max(counts.values()), _BATCH):
        some = {name: range(first, min(first + _BATCH, count)) for name, count in counts.items()}
        charge_card.enqueue_many([charge_card.bind(order=n, amount=n * 1.5) for n in some["payments"]])
        resize.enqueue_many([resize.bind(picture=f"cat-{n}.png", width=640) for n in some["images"]])
        build_report.enqueue_many([build_report.bind(month=n) for n in some["reports"]])
        index_product.enqueue_many([index_product.bind(product=n) for n in some["search"]])
    return poison.id


def _work(server: Server, folder: Path, release: str, *queues: str) -> "subprocess.Popen[bytes]":
    named = [word for queue in queues for word in ("-q", queue)]
    command = [
        *(sys.executable, "-m", "jobrunner", "work", JOBS, "--url", server.url, "--prefix", PREFIX, *named),
        *("--release", release, "--concurrency", "4", "--processes", "2", "--heartbeat", "1"),
    ]
    environment = {**os.environ, "JOBRUNNER_RELEASE": release}
    log = (folder / f"worker-{release}-{queues[0]}.log").open("ab")
    with log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, stdout=log, start_new_session=True)


def _failed(client: Client) -> int:
    """Attempts of ChargeCard that workers counted as failed since the new release."""
    return sum(one.failed for one in by_job(client, since=timedelta(minutes=2)) if one.type == "ChargeCard")


def _write_past(client: Client) -> None:
    """Figures of an hour in which everything worked, up to some minutes ago, and the release of that hour."""
    chance, now_ms = random.Random(3), time.time() * 1000
    jobs = (("payments", "ChargeCard", 120, 40), ("images", "Resize", 60, 300), ("search", "IndexProduct", 90, 20),
            ("reports", "BuildReport", 12, 2500))  # fmt: skip
    broker_of(client).run_many(event_calls.note_release(keys_of(client), GOOD_RELEASE, round(now_ms - 50 * 60_000)))
    for back in range(3, 60):
        changes: dict[str, int] = {}
        for queue, name, per_minute, run_ms in jobs:
            ended = round(per_minute * (1 + 0.4 * math.sin(back / 9) + chance.random() * 0.2))
            failed = ended // 60
            changes |= {f"{queue} {name} succeeded": ended - failed, f"{queue} {name} failed": failed}
            for kind, usual in (("run", run_ms), ("wait", 25)):
                for _ in range(ended):
                    took = chance.lognormvariate(math.log(usual), 0.5)
                    for what, by in ((f"{kind}:{stats_calls.bucket(took)}", 1), (f"{kind}_us", round(took * 1000))):
                        changes[f"{queue} {name} {what}"] = changes.get(f"{queue} {name} {what}", 0) + by
        at_ms = now_ms - back * 60_000
        broker_of(client).run_many(stats_calls.observe(keys_of(client), at_ms, "past", back * 10, changes))
