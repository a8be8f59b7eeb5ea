"""The lease for compaction of a Delta table on an object store, kept in the log of the table.

`deltalake` commits two concurrent compactions of the same files, which doubles each row. So a compaction holds a lease:
an application transaction whose version is the end of the lease in Unix seconds, 0 after its release. Of two concurrent
commits of the lease, the library refuses one.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from threading import Event, Thread

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from jobrunner.clock import unix_ms
from jobrunner.errors import UsageError
from jobrunner.etl.table_sink import TableAddress
from jobrunner.spark.lake.tables import guarded

APPLICATION = "jobrunner-compaction"
LEASE_S = 3600
"""Seconds for which a compaction that died blocks others."""
_RENEWED_S = 900


@contextmanager
def compaction_lease(address: TableAddress) -> Iterator[None]:
    """Holds the lease, and renews it. Raises UsageError while another process has it, TableError."""
    own = [guarded(address, "taking the lease of a compaction", lambda: _take(address))]
    ended = Event()
    renewing = Thread(target=_renew, args=(address, own, ended), name="compaction lease", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        with suppress(Exception):  # the lease expires; do not replace the error of the compaction
            _replace(address, own, 0)


def _take(address: TableAddress) -> int:
    table = DeltaTable(address.where)
    now, ends = unix_ms() // 1000, table.transaction_version(APPLICATION) or 0
    if ends > now:
        raise UsageError(_taken(address, ends))
    try:
        _write(table, now + LEASE_S)
    except CommitFailedError as error:
        raise UsageError(_taken(address, now + LEASE_S)) from error
    return now + LEASE_S


def _renew(address: TableAddress, own: list[int], ended: Event) -> None:
    while not ended.wait(_RENEWED_S):
        with suppress(Exception):  # the next renewal comes long before the lease ends
            _replace(address, own, unix_ms() // 1000 + LEASE_S)


def _replace(address: TableAddress, own: list[int], ends: int) -> None:
    """Writes a new end of the lease, unless the lease expired and another process took it."""
    table = DeltaTable(address.where)
    if table.transaction_version(APPLICATION) == own[0]:
        _write(table, ends)
        own[0] = ends


def _write(table: DeltaTable, ends: int) -> None:
    lease = CommitProperties(app_transactions=[Transaction(APPLICATION, ends, unix_ms())])
    table.create_write_transaction([], "append", table.schema(), commit_properties=lease)


def _taken(address: TableAddress, ends: int) -> str:
    at = datetime.fromtimestamp(ends, UTC)
    return f"another process compacts table {address}; wait until it ends, or until {at:%H:%M} UTC if it died"
