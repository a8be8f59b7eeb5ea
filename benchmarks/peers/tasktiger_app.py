"""TaskTiger's side: the worker and the producer. The harness runs it in TaskTiger's own environment."""

import os
import sys

import redis
import structlog
from tasktiger import TaskTiger

from benchmarks.peers import functions
from benchmarks.produce import one_after_another, serve

QUEUE = "bench"


def tiger() -> TaskTiger:
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.processors.JSONRenderer()],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    client = redis.Redis.from_url(os.environ["BENCHMARK_URL"], decode_responses=True)
    return TaskTiger(connection=client, config={"DEFAULT_QUEUE": QUEUE})


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        tiger().run_worker_with_args(sys.argv[2:])
    else:
        whole = tiger()

        def send(task: str, number: int) -> None:
            whole.delay(getattr(functions, task), args=(number,), queue=QUEUE)

        serve(send, one_after_another(send))
