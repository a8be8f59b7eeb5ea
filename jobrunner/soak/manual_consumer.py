"""The process that works without jobs: it reserves items, moves them from one queue to the next, and commits them.

``python -m jobrunner.soak.manual_consumer``. Invariant: the ledger has an item's end before the item is committed, as
with jobs.
"""

import os
import threading

from jobrunner.client.client import Client
from jobrunner.errors import JobrunnerError
from jobrunner.soak.jobs import IN, LEDGER, OUT
from jobrunner.soak.ledger import line_of, write
from jobrunner.soak.processes import asked_to_stop, settings_here

_AT_ONCE = 50
_IDLE_S = 0.05


def carry(client: Client, keepalive_s: float, stop: threading.Event, ledger: str) -> None:
    """Works until it is asked to stop. Where a report fails, the end of the lease gives the item back."""
    while not stop.is_set():
        try:
            carried = _pass_on(client, keepalive_s) + _finish(client, keepalive_s, ledger)
        except JobrunnerError:
            carried = 0
        if not carried:
            stop.wait(_IDLE_S)


def _pass_on(client: Client, keepalive_s: float) -> int:
    leases = client.queue(IN).reserve(_AT_ONCE, keepalive=keepalive_s)
    for lease in leases:
        lease.move(OUT.partition("/")[2])
    return len(leases)


def _finish(client: Client, keepalive_s: float, ledger: str) -> int:
    leases = client.queue(OUT).reserve(_AT_ONCE, keepalive=keepalive_s)
    if leases:
        write(ledger, [line_of(event, lease.id, lease.attempts) for lease in leases for event in ("start", "end")])
        client.queue(OUT).commit_many(leases)
    return len(leases)


def main() -> None:
    """Runs until it is asked to stop."""
    stop = asked_to_stop()
    with Client() as client:
        carry(client, settings_here().keepalive, stop, os.environ[LEDGER])


if __name__ == "__main__":
    main()
