"""RQ's side: the producer. The harness runs it in RQ's own environment."""

import os
from collections.abc import Sequence

from redis import Redis
from rq import Queue

from benchmarks.peers import functions
from benchmarks.produce import serve

BULK = 1_000


def main() -> None:
    queue = Queue("bench", connection=Redis.from_url(os.environ["BENCHMARK_URL"]))

    def send(task: str, number: int) -> None:
        queue.enqueue(f"{functions.__name__}.{task}", number, result_ttl=0)

    def send_many(task: str, numbers: Sequence[int]) -> None:
        function = f"{functions.__name__}.{task}"
        for start in range(0, len(numbers), BULK):
            some = numbers[start : start + BULK]
            queue.enqueue_many([Queue.prepare_data(function, (number,), result_ttl=0) for number in some])

    serve(send, send_many)


if __name__ == "__main__":
    main()
