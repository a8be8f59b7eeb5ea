"""The import time of a producer: of the modules that a program needs to enqueue tasks."""

import time
from statistics import median

from benchmarks.child import run_to_end
from benchmarks.contender import Contender

_TIMES = 5


def import_ms(contender: Contender) -> float:
    """The median of what a process that imports takes longer than one that does nothing. Raises ChildFailed."""
    python = contender.produce[0]
    return 1e3 * median(_seconds(python, contender.imports) - _seconds(python, "pass") for _ in range(_TIMES))


def _seconds(python: str, program: str) -> float:
    began = time.perf_counter()
    run_to_end([python, "-c", program], {})
    return time.perf_counter() - began
