"""A worker of many queues in a process of its own: ``python -m benchmarks.distance_worker URL PREFIX SLOTS QUEUE…``.

Ends when all tasks have run, and writes the seconds from the begin of the first to the end of the last.
"""

import sys
import threading
import time

from jobrunner import Client, Worker, job

_began: list[float] = []
_ended: list[float] = []
_all = threading.Event()


@job(name="distance.wait", queue="q0")
def wait(seconds: float, last: int = 0) -> None:
    """Takes so long. `last`: how many tasks there are in all."""
    _began.append(time.perf_counter())
    time.sleep(seconds)
    _ended.append(time.perf_counter())
    if len(_ended) >= last > 0:
        _all.set()


def main() -> None:
    """Works until all tasks have ended."""
    url, prefix, slots, *queues = sys.argv[1:]
    worker = Worker(queues=queues, concurrency=int(slots), client=Client(url, prefix))
    worker.start()
    ended = _all.wait(300)
    worker.stop(grace=5)
    print(max(_ended) - min(_began) if ended else "nan")


if __name__ == "__main__":
    main()
