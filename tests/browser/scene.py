"""The data of the dashboard's screenshots: a shop that sends mail, bills, resizes pictures and loads orders.

A worker runs real tasks; only the statistics of the past hour are written beforehand.
"""

import math
import random
import threading
import time
from datetime import timedelta

from jobrunner import Backoff, Client, Fail, Job, RateLimit, Worker, job
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.client.client import broker_of, keys_of
from jobrunner.etl import Drop, Pipeline, To
from tests.support.waiting import wait_for

PREFIX = "shop"
MINUTE_MS = 60_000
AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)
gate = threading.Event()
"""Tasks that the screenshots show as running wait for this event."""
orders = Pipeline("orders")
STATIONS = ("raw", "odd", "checked", "priced")


@job(queue="mail", max_attempts=3, backoff=AT_ONCE)
def send_mail(to: str, template: str, api_token: str = "") -> str:
    if "@" not in to:
        raise ValueError(f"{to!r} is no address: it has no @")
    return f"250 2.0.0 Ok: queued, {template} to {to}"


@job(queue="billing", max_attempts=3, backoff=AT_ONCE)
def charge(invoice: int, amount: float) -> float:
    if invoice % 3 == 0:
        raise ConnectionError("payments.example.com: 503 Service Unavailable, try again later")
    if invoice % 7 == 0:
        raise Fail("the card was declined: insufficient funds")
    return amount


@job(queue="images", keepalive=120)
def resize(picture: str, width: int) -> str:
    gate.wait(300)
    return f"{picture}@{width}"


@job(queue="exports", keepalive=120)
class Export(Job):
    month: str
    rows: int

    def run(self) -> int:
        self.progress(self.rows * 0.64, self.rows, f"writing {self.month}.parquet")
        gate.wait(300)
        return self.rows


@job(queue="reports", every=timedelta(minutes=15))
def refresh_totals() -> int:
    return 42


@job(queue="reports", cron="30 6 * * mon-fri")
def send_report() -> None: ...


@orders.station("raw", to=("checked", "odd"))
def check(item):
    return To("odd" if item.payload["total"] < 0 else "checked", item.payload)


@orders.station("odd", to="checked")
def mend(item):
    return Drop() if item.payload["total"] < -80 else item.payload | {"total": 0}


@orders.station("checked", to="priced", dead_letter_queue="lost", max_attempts=1)
def price(item):
    return item.payload | {"net": round(item.payload["total"] / (0 if item.payload["total"] == 0 else 1.19), 2)}


@orders.sink("priced")
def store(item): ...


orders.declare("lost")


def enqueue(client: Client) -> None:
    """Puts work of every kind into the queues; 34 tasks of it will be dead."""
    chance = random.Random(7)
    client.queue("mail").configure(history=timedelta(days=1), max_inflight=50)
    kinds = ("welcome", "invoice", "reset")
    good = [
        send_mail.bind(to=f"user{n}@example.com", template=chance.choice(kinds), api_token="sk-1") for n in range(120)
    ]
    send_mail.enqueue_many(good + [send_mail.bind(to=f"user{n}.example.com", template="welcome") for n in range(14)])
    charge.enqueue_many([charge.bind(invoice=n, amount=n * 1.5) for n in range(1000, 1035)])
    orders.apply(client)
    orders.push_many("raw", [{"order": n, "total": chance.randint(-90, 900)} for n in range(80)])


def settle(client: Client) -> None:
    """Has a worker do all that can be done."""
    queues = ["mail", "billing", *(f"orders/{one}" for one in STATIONS)]
    Worker(client=client, queues=queues, concurrency=8).run(drain=True)


def leave_some(client: Client) -> None:
    """Tasks that wait, tasks that are due later, and a queue without a worker."""
    resize.enqueue_many([resize.bind(picture=f"cat-{n}.png", width=640) for n in range(37)])
    for minutes in (5, 30, 90):
        send_mail.using(in_=timedelta(minutes=minutes)).enqueue(to="later@example.com", template="reminder")
    Export.enqueue_many([Export(month=f"2026-{month:02}", rows=month * 12_500) for month in range(7, 11)])
    client.queue("exports").configure(rate=RateLimit(max_tokens=30, interval=1, interval_unit="MINUTES"), max_size=5000)
    client.queue("newsletter").push_many([{"issue": n} for n in range(250)])
    client.queue("billing").pause(timedelta(minutes=20))


def begin(client: Client) -> list[Worker]:
    """Three workers: two are full of tasks that they hold until `gate` is set, one is free for what tests enqueue."""
    gate.clear()
    free = ["mail", "reports", "billing", *(f"orders/{one}" for one in STATIONS)]
    crew = ((["images"], 6), (["exports"], 2), (free, 8))
    workers = [Worker(client=client, queues=queues, concurrency=slots) for queues, slots in crew]
    for worker in workers:
        worker.start()
    wait_for(lambda: [client.queue(queues[0]).counts()["pending"] for queues, _ in crew[:2]] == [6, 2])
    wait_for(lambda: client.periodics())
    return workers


def write_past(client: Client, minutes: int = 60) -> None:
    """Figures of the past hour, in the calls of a worker."""
    chance, now_ms = random.Random(3), time.time() * 1000
    jobs = (
        ("mail", "send_mail", 220, 45, 0.01),
        ("mail", "send_digest", 30, 210, 0),
        ("billing", "charge", 60, 320, 0.04),
        ("images", "resize", 25, 900, 0),
        ("exports", "Export", 6, 4200, 0.02),
    )
    for back in range(1, minutes):
        load = 1 + 0.5 * math.sin(back / 9) + chance.random() * 0.3
        changes: dict[str, int] = {}
        for queue, name, per_minute, run_ms, bad in jobs:
            ended = round(per_minute * load)
            failed = round(ended * bad * (6 if 24 < back < 30 else 1))
            changes |= {f"{queue} {name} succeeded": ended - failed, f"{queue} {name} failed": failed}
            for kind, usual in (("run", run_ms), ("wait", 30 * load**3)):
                for _ in range(ended):
                    took = chance.lognormvariate(math.log(usual), 0.6)
                    for what, by in ((f"{kind}:{stats_calls.bucket(took)}", 1), (f"{kind}_us", round(took * 1000))):
                        field = f"{queue} {name} {what}"
                        changes[field] = changes.get(field, 0) + by
        at_ms = now_ms - back * MINUTE_MS
        broker_of(client).run_many(stats_calls.observe(keys_of(client), at_ms, "past", back * 10, changes))
