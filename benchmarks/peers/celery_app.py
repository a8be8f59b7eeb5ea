"""Celery's side: the tasks and the producer. The harness runs it in Celery's own environment."""

import os
import time
from collections.abc import Sequence

from celery import Celery

from benchmarks.ledger import recorder
from benchmarks.produce import serve
from benchmarks.waits import WAIT_S, compute

QUEUE = "bench"

app = Celery("benchmarks.peers.celery_app", broker=os.environ["BENCHMARK_URL"])
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    task_acks_late=True,
)
record = recorder()


@app.task(name="noop")
def noop(n: int) -> None:
    record(n)


@app.task(name="wait")
def wait(n: int) -> None:
    time.sleep(WAIT_S)
    record(n)


@app.task(name="spin")
def spin(n: int) -> None:
    compute()
    record(n)


@app.task(name="stamp")
def stamp(n: int) -> None:
    record(time.time_ns() - n)


TASKS = {"noop": noop, "wait": wait, "spin": spin, "stamp": stamp}


def send(task: str, number: int) -> None:
    TASKS[task].delay(number)


def send_many(task: str, numbers: Sequence[int]) -> None:
    """Calls on one producer: a group would do the same, and cost more."""
    with app.producer_pool.acquire(block=True) as producer:
        for number in numbers:
            TASKS[task].apply_async((number,), producer=producer)


if __name__ == "__main__":
    serve(send, send_many)
