"""A list and a blocking pop between two processes: no product, but how soon anything can start on this machine.

`python -m benchmarks.bare_pop pop` is the worker; everything else is the producer's.
"""

import os
import sys
import time
from typing import Any

from redis import Redis

from benchmarks.ledger import recorder
from benchmarks.produce import one_after_another, serve

LIST = "bare:list"


def pop(redis: Any) -> None:
    record = recorder()
    while True:
        _, number = redis.blpop([LIST])
        record(time.time_ns() - int(number))


if __name__ == "__main__":
    client: Any = Redis.from_url(os.environ["BENCHMARK_URL"])
    if sys.argv[1:] == ["pop"]:
        pop(client)
    else:

        def send(_task: str, number: int) -> None:
            client.rpush(LIST, number)

        serve(send, one_after_another(send))
