"""Huey's side: the tasks and the producer. The harness runs it in Huey's own environment."""

import os
import time

from huey import RedisHuey

from benchmarks.ledger import recorder
from benchmarks.produce import one_after_another, serve
from benchmarks.waits import WAIT_S, compute

huey = RedisHuey("bench", url=os.environ["BENCHMARK_URL"], results=False)
record = recorder()


@huey.task()
def noop(n: int) -> None:
    record(n)


@huey.task()
def wait(n: int) -> None:
    time.sleep(WAIT_S)
    record(n)


@huey.task()
def spin(n: int) -> None:
    compute()
    record(n)


@huey.task()
def stamp(n: int) -> None:
    record(time.time_ns() - n)


TASKS = {"noop": noop, "wait": wait, "spin": spin, "stamp": stamp}


def send(task: str, number: int) -> None:
    TASKS[task](number)


if __name__ == "__main__":
    # The worker looks for the tasks under the name of the imported module, which is not that of a program.
    from benchmarks.peers import huey_app

    serve(huey_app.send, one_after_another(huey_app.send))
