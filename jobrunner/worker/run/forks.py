"""Ends a copy of this process that a job made with os.fork, when the copy comes back from the job.

Such a copy would go on as a second worker: it holds the sockets, the pipe of the lease keeper and the attempts of the
first, and would report them again.
"""

import os
import sys
import traceback
from contextlib import suppress

PID = os.getpid()
"""This process; noted again in each fork, so that a comparison needs no system call."""


def _note() -> None:
    global PID
    PID = os.getpid()


os.register_at_fork(after_in_child=_note)


def leave_fork(owner: int, error: BaseException | None = None) -> None:
    """Ends this process as Python would, with the code of SystemExit, unless it is `owner`. Runs no exit handlers: they
    belong to the process that was forked."""
    if owner == PID:
        return
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    elif error is not None:
        code = 1
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)
