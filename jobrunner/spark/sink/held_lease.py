"""Renews the lease of a write while one of its Spark tasks runs.

Before its first Spark task begins, a write has no rows on the server, and Spark may compute for hours, so its lease is
long. Then it has rows, and the lease is short: rows of a driver that died stay in the server's memory no longer than
that. Spark tasks of the write run until all rows are staged, and each renews the lease, so the lease expires only when
no task ran for its whole length.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from jobrunner.client.batches import BatchLease
from jobrunner.errors import BatchLost, JobrunnerError
from jobrunner.logs import SafeLogger

UNBEGUN_LEASE_S = 86_400.0
"""Length of the lease from the opening of a write to its first Spark task."""
LEASE_S = 3_600.0
"""Length of the lease from the last renewal by a Spark task, on a live executor, to the decision."""
_RENEWED_EACH_S = 600.0
_log = SafeLogger("jobrunner.spark")


@contextmanager
def held(lease: BatchLease) -> Iterator[None]:
    """Renews the lease at once, and from a thread while the block runs, also while Spark computes the next rows.

    Raises BatchLost when the write was decided or taken back before.
    """
    lease.renew()
    over = threading.Event()
    thread = threading.Thread(target=_keep, args=(lease, over), name=f"jobrunner-write-{lease.id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _keep(lease: BatchLease, over: threading.Event) -> None:
    while not over.wait(_RENEWED_EACH_S):
        try:
            lease.renew()
        except BatchLost:  # the next staging call of the block raises it
            return
        except JobrunnerError as error:
            _log.warning("lease not renewed", batch=lease.id, error=str(error))
