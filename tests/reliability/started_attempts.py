"""A module for workers whose ledger must show which attempts they took up: importing it wraps `Runner.run`.

The entry `taken`, with the number of the lease, is written when an executor's thread begins to carry out an attempt.
The worker marks the attempt as begun after that (jobrunner/worker/lease_keeper/keeper_link.py), and the job's own
first entry comes after the mark. Invariant: a process that is killed at any instant leaves no mark without `taken`,
and no entry of the job without a mark. The wrapper neither reads nor calls the marks, so a worker that marks what no
thread has taken up is found.
"""

from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.worker.run.runner import Runner
from tests.acceptance.ledger import record

_run = Runner.run


def _run_recorded(self: Runner, attempt: Attempt, *rest: Any) -> Any:
    record("taken", attempt.id, attempt.number, attempt.token)
    return _run(self, attempt, *rest)


Runner.run = _run_recorded  # type: ignore[method-assign]
