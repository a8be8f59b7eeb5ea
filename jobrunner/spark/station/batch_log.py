"""Records the batches of a driver: an entry in the batch log, the station's statistics, events for lineage.

Invariant: recording neither delays nor fails a batch. Entries go to the worker's statistics, which write them with
their next report; lineage has its own thread.
"""

from dataclasses import dataclass
from secrets import token_hex

from jobrunner.client.batches import BatchLease
from jobrunner.client.client import Client
from jobrunner.clock import monotonic, unix_ms
from jobrunner.etl.spark_station import SparkStation
from jobrunner.jobs.batch_driver import BatchEnd, Seen
from jobrunner.jobs.batch_record import LONGEST_CAUSE, BatchOutcome, BatchRecord
from jobrunner.logs import SafeLogger
from jobrunner.spark.lineage import lineage_of
from jobrunner.spark.station.batch_jobs import SparkJobs, SparkUsage

_log = SafeLogger("jobrunner.spark")


@dataclass(slots=True, kw_only=True)
class AttemptNote:
    """A running attempt at a batch. The driver sets the instants (monotonic clock) as they pass."""

    lease: BatchLease
    jobs: SparkJobs | None = None
    """None for a batch that another driver decided and that is only rolled forward."""
    filled_s: float = 0.0
    decided_s: float = 0.0
    commit_s: float = 0.0
    rows: int = 0


class BatchLog:
    """Records the batches of one station. Thread-safe when each thread has its own notes."""

    def __init__(self, station: SparkStation, client: Client, seen: Seen) -> None:
        self._seen = seen
        self._driver = token_hex(4)
        self._lineage = lineage_of(station, client)

    def begin(self, lease: BatchLease) -> AttemptNote:
        """Records that a batch was taken."""
        return AttemptNote(lease=lease, filled_s=lease.taken_s, decided_s=lease.taken_s)

    def filled(self, note: AttemptNote, jobs: SparkJobs) -> None:
        """Records that the function of the station begins."""
        note.filled_s, note.jobs = monotonic(), jobs
        if self._lineage is not None:
            self._lineage.started(note.lease.id, note.lease.epoch)

    def close(self) -> None:
        """Closes the lineage when the driver ends."""
        if self._lineage is not None:
            self._lineage.close()

    def failed(self, note: AttemptNote, outcome: BatchOutcome, cause: str, *, stops: bool = False) -> None:
        """Records an attempt that ended without a decision. `stops`: the station pauses because of it."""
        self._write(note, outcome, cause, run_s=monotonic() - note.filled_s, advance_s=0.0, stops=stops)

    def done(self, note: AttemptNote) -> None:
        """Records that the last row of the batch was applied."""
        run_s, advance_s = note.decided_s - note.filled_s, monotonic() - note.decided_s
        record = self._write(note, "decided", "", run_s=run_s, advance_s=advance_s)
        seconds = {"take_s": record.fill_s, "run_s": run_s, "commit_s": record.commit_s, "advance_s": advance_s}
        lengths = {name: round(value, 3) for name, value in seconds.items()}
        per_s = round(record.items / max(record.took_s, 0.001))
        _log.info("batch done", queue=note.lease.queue, batch=record.id, epoch=record.attempt, items=record.items,
                  rows=record.rows, per_s=per_s, **lengths)  # fmt: skip

    def _write(
        self, note: AttemptNote, outcome: BatchOutcome, cause: str, *, run_s: float, advance_s: float,
        stops: bool = False,
    ) -> BatchRecord:  # fmt: skip
        lease = note.lease
        usage = note.jobs.usage() if note.jobs is not None else SparkUsage()
        rows = note.rows + usage.written_rows if outcome == "decided" else 0
        record = BatchRecord(
            id=lease.id, outcome=outcome, attempt=lease.epoch, items=lease.size, rows=rows,
            began_ms=unix_ms() - (monotonic() - lease.taken_s) * 1000, failures=lease.failures,
            cause=cause[:LONGEST_CAUSE], fill_s=note.filled_s - lease.taken_s, run_s=run_s, commit_s=note.commit_s,
            advance_s=advance_s, spilled_bytes=usage.spilled_bytes, shuffle_bytes=usage.shuffle_bytes,
            driver=self._driver, stops=stops,
        )  # fmt: skip
        self._seen(BatchEnd(record=record))
        if self._lineage is not None:  # a batch that was decided before this hand-out is the run of that attempt
            self._lineage.ended(record, attempt=lease.epoch - (note.jobs is None))
        return record
