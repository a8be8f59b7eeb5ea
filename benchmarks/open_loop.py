"""The open loop: tasks are due at a constant rate by the clock, independent of the system; the delay of their starts.

A producer waits for nothing but its own call of enqueue; when it is behind, it sends at once. Delays count from the
instant at which a task was due, so a producer that was held up shows in them: nothing is omitted because the system
under test was slow (G. Tene, "How NOT to Measure Latency", 2015). Up to 1 000 tasks a second come from one producer
process, more from four, as few clients send 5 000 one by one from one process. All contenders have the same.
"""

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.child import run_to_end
from benchmarks.contender import Contender
from benchmarks.idle import Delays, check_starts, percentiles, warm_worker
from benchmarks.server import PrivateServer

SECONDS = 5
_PER_PRODUCER, _MANY = 1_000, 4
_START_S = 3.0
_LEAST = 0.95


class TooSlow(Exception):
    """The producers do not keep up with the rate, so the delays would be those of a lower load."""


def open_loop(server: PrivateServer, contender: Contender, rate: int, seconds: float = SECONDS) -> Delays:
    """From the instant a task was due to the first line of the job, at so many tasks a second.

    Raises TooSlow, and ChildFailed when not every task started once."""
    tasks = int(rate * seconds)
    with warm_worker(server, contender, capacity=2 * tasks) as worker:
        warm = Counter(worker.ledger.numbers())
        commands = [[*contender.produce, *words] for words in schedules(rate, tasks, time.time_ns())]
        environment = contender.environment(server)
        with ThreadPoolExecutor(len(commands)) as pool:
            sent = sum(pool.map(lambda command: int(run_to_end(command, environment)), commands))
        if sent < _LEAST * tasks:
            raise TooSlow(f"its producers sent {sent / seconds:,.0f} of {rate:,} tasks a second")
        worker.must_run(warm.total() + sent)
        return percentiles(check_starts(worker, warm, sent))


def schedules(rate: int, tasks: int, now_ns: int) -> Sequence[Sequence[str]]:
    """The arguments of each producer, `due stamp N FIRST_NS GAP_NS`. They alternate, and begin when all run."""
    producers = 1 if rate <= _PER_PRODUCER else _MANY
    first, gap = now_ns + int(_START_S * 1e9), 10**9 // rate
    return [
        ("due", "stamp", str(tasks // producers), str(first + number * gap), str(producers * gap))
        for number in range(producers)
    ]
