"""Dramatiq's side: the actor and the producer. The harness runs it in Dramatiq's own environment."""

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.ledger import recorder

QUEUE = "bench"

broker = RedisBroker(url=os.environ["BENCHMARK_URL"])
dramatiq.set_broker(broker)
record = recorder()


@dramatiq.actor(queue_name=QUEUE)
def noop(n: int) -> None:
    record(n)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        noop.send(number)
