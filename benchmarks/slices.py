"""A queue with partitions, a limit and one busy key: how long its drain takes with slices that follow the load.

    python -m benchmarks.slices --tasks 600 --limit 32 --partitions 16

The tasks of one key are in one shard, so an even division of `max_inflight` lets `limit / partitions` of them run at a
time. The command drains the same tasks twice: with slices as they are divided at first, and with slices that follow the
load (only that, for a limit below the number of partitions, of which some would have nothing). It prints the time, the
most tasks that ran at a time, and the time until nine tenths of the limit did.
"""

import argparse
import logging
import threading
import time
from contextlib import ExitStack

import structlog
from redis import Redis

from benchmarks.server import PrivateServer
from jobrunner import Client, Worker, job
from jobrunner.client.client import keys_of
from jobrunner.client.current import within

_TASK_S = 0.05


class _Running:
    """How many tasks run, the most there were, and when there were first so many."""

    def __init__(self, wanted: int) -> None:
        self._lock = threading.Lock()
        self._wanted = wanted
        self.now = self.most = 0
        self.reached_at = 0.0

    def change(self, by: int) -> None:
        with self._lock:
            self.now += by
            self.most = max(self.most, self.now)
            if self.now >= self._wanted and not self.reached_at:
                self.reached_at = time.monotonic()


_running = _Running(0)


@job(queue="skewed", name="benchmark_skewed", partition_by="tenant")
def busy(tenant: str, n: int) -> None:  # noqa: ARG001 - they make the tasks differ
    """Takes a twentieth of a second."""
    _running.change(1)
    time.sleep(_TASK_S)
    _running.change(-1)


def _drain(server: PrivateServer, options: argparse.Namespace, *, follows: bool) -> None:
    global _running
    _running = _Running(options.limit * 9 // 10)
    with ExitStack() as stack:
        client = stack.enter_context(Client(server.url, f"bench{follows:d}"))
        stack.enter_context(within(client))
        raw = stack.enter_context(Redis.from_url(server.url))
        client.queue("skewed").configure(partitions=options.partitions, max_inflight=options.limit)
        if not follows:
            raw.set(keys_of(client).queue("skewed").balanced, 1)  # as if another process had a look, for ever
        busy.enqueue_many([busy.bind("the busy one", n) for n in range(options.tasks)])
        began = time.monotonic()
        done = Worker(queues=["skewed"], client=client, concurrency=2 * options.limit).run(burst=True)
        took_s = time.monotonic() - began
        assert done.finished == options.tasks, f"{done.finished} of {options.tasks}"
        reached = f"after {_running.reached_at - began:.1f} s" if _running.reached_at else "never"
        name = "follow the load" if follows else "as divided     "
        print(f"slices {name}: {took_s:5.1f} s, {_running.most} of {options.limit} at a time, 9/10 of it {reached}")


def main() -> None:
    """Runs both and prints one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=600)
    parser.add_argument("--limit", type=int, default=32)
    parser.add_argument("--partitions", type=int, default=16)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with PrivateServer() as server:
        for follows in (False, True) if options.limit >= options.partitions else (True,):
            _drain(server, options, follows=follows)


if __name__ == "__main__":
    main()
