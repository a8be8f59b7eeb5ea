"""The tasks that wait or compute: for how long, and how many of them at once.

Only the standard library is used: contenders import this from environments of their own.
"""

import os
import time

VARIABLE = "BENCHMARK_TASK"
"""The environment variable that names the task of a worker."""
WAIT_S = 0.005
AT_ONCE = 50
SPIN_S = 0.01
SPINS_AT_ONCE = 2
"""One computes, and the next is prefetched. More would leave one process with work at the end and the other without."""


def concurrency(task: str, otherwise: int) -> int:
    """The number of tasks that a process holds at once: `otherwise`, where the task neither waits nor computes."""
    return {"wait": AT_ONCE, "spin": SPINS_AT_ONCE}.get(task, otherwise)


def at_once(otherwise: int) -> int:
    """The same for the task of this process's worker."""
    return concurrency(os.environ.get(VARIABLE, ""), otherwise)


def compute() -> None:
    """Uses 10 ms of CPU by this thread's own clock, which does not run while another thread or process does."""
    end = time.thread_time() + SPIN_S
    while time.thread_time() < end:
        for _ in range(200):
            pass
