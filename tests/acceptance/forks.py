"""Processes of tests that are forked from one that has imported what they need, and done nothing else.

Dozens of them cost little. Each is a process as any other: with a pid, signals and an end of its own.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext

PRELOADED = ["jobrunner.worker.worker", "tests.acceptance.row_children", "tests.acceptance.worker_process"]


def forks() -> ForkServerContext:
    """Makes processes and what they talk through; one server of forks for each test process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
