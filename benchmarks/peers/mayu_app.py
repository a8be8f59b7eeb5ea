"""mayu's side: the app with its tasks, and the producer. The harness runs it in mayu's own environment."""

import asyncio
import os
import time

from mayu import App

from benchmarks.ledger import recorder
from benchmarks.produce import one_after_another, serve
from benchmarks.waits import WAIT_S, compute

record = recorder()
app = App(broker=os.environ["BENCHMARK_URL"], default_queue="bench")


@app.task(name="noop")
def noop(n: int) -> None:
    record(n)


@app.task(name="wait")
async def wait(n: int) -> None:
    await asyncio.sleep(WAIT_S)
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


if __name__ == "__main__":
    serve(send, one_after_another(send))
