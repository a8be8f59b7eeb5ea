"""Dramatiq's side: the actors and the producer. The harness runs it in Dramatiq's own environment."""

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.ledger import recorder
from benchmarks.produce import one_after_another, serve
from benchmarks.waits import WAIT_S, compute

QUEUE = "bench"

broker = RedisBroker(url=os.environ["BENCHMARK_URL"])
dramatiq.set_broker(broker)
record = recorder()


@dramatiq.actor(queue_name=QUEUE)
def noop(n: int) -> None:
    record(n)


@dramatiq.actor(queue_name=QUEUE)
def wait(n: int) -> None:
    time.sleep(WAIT_S)
    record(n)


@dramatiq.actor(queue_name=QUEUE)
def spin(n: int) -> None:
    compute()
    record(n)


@dramatiq.actor(queue_name=QUEUE)
def stamp(n: int) -> None:
    record(time.time_ns() - n)


ACTORS = {"noop": noop, "wait": wait, "spin": spin, "stamp": stamp}


def send(task: str, number: int) -> None:
    ACTORS[task].send(number)


if __name__ == "__main__":
    serve(send, one_after_another(send))
