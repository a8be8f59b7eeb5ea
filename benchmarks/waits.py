"""The tasks that wait or compute: for how long, and how many of them at once.

Only the standard library is used: contenders import this from environments of their own.
"""

import os
import time

VARIABLE = "BENCHMARK_TASK"
"""In the environment of a worker: the task it will be given."""
WAIT_S = 0.005
AT_ONCE = 50
SPIN_S = 0.01
SPINS_AT_ONCE = 2
"""One computes, and the next is at hand. More would leave one process with work at the end and the other without."""


def concurrency(task: str, otherwise: int) -> int:
    """How many of a task a process has in hand at once: `otherwise`, where it neither waits nor computes."""
    return {"wait": AT_ONCE, "spin": SPINS_AT_ONCE}.get(task, otherwise)


def at_once(otherwise: int) -> int:
    """The same of the task that this process's worker will be given."""
    return concurrency(os.environ.get(VARIABLE, ""), otherwise)


def compute() -> None:
    """Takes this thread 10 ms of a processor, by its own clock, which stands while another thread or process runs."""
    end = time.thread_time() + SPIN_S
    while time.thread_time() < end:
        for _ in range(200):
            pass
