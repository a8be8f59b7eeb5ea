"""Records of attempts at batches of a station: the entries of the batch log of its queue.

A driver passes the record to the statistics of its worker (`BatchEnd.record`), which write it with their next report.
So a batch needs no call of its own, and the log lacks the last seconds of a killed worker.
"""

from typing import Literal, get_args

import msgspec

BatchOutcome = Literal["decided", "failed", "split", "dead", "released", "lost"]
"""decided: its rows apply · failed: due again after a delay · split: its parts are due · dead: its last item is dead ·
released: due again, no failure counted · lost: its lease ended, and another driver may hold it"""
OUTCOMES: tuple[BatchOutcome, ...] = get_args(BatchOutcome)
LONGEST_CAUSE = 500


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of the batch log: one attempt at a batch. Bytes are 0 where Spark could not be asked."""

    id: str
    outcome: BatchOutcome
    attempt: int
    """How often the batch was handed out, this attempt included."""
    began_ms: float
    """Unix ms, by the clock of the driver's machine."""
    items: int
    rows: int = 0
    """The number of rows that this attempt staged for other queues, or that a sink wrote to all its tables and folders.
    0 for an attempt that was not decided, and for a sink whose writes neither this package nor Spark counts."""
    failures: int = 0
    """The number of failed attempts before this attempt."""
    cause: str = ""
    """The error in one line; empty for a batch that was decided."""
    fill_s: float = 0.0
    run_s: float = 0.0
    """From the end of filling to the decision, or to the failure."""
    commit_s: float = 0.0
    """The part of `run_s` that the decision took."""
    advance_s: float = 0.0
    """From the decision until its last row was applied."""
    spilled_bytes: int = 0
    shuffle_bytes: int = 0
    driver: str = ""
    """The driver that ran it, one of several in as many processes; empty when an earlier version wrote the entry."""
    stops: bool = False
    """Whether no item caused the error: then the station stopped, and tries again after a pause."""

    @property
    def took_s(self) -> float:
        """Seconds from the first item of the batch to its end."""
        return self.fill_s + self.run_s + self.advance_s

    @property
    def items_per_s(self) -> float:
        """Items per second of the time in which the batch ran and was applied, without the time of filling."""
        return self.items / max(self.run_s + self.advance_s, 0.001)


def batch_figures(record: BatchRecord) -> dict[str, int]:
    """The counters of the record in the statistics of its queue."""
    return {
        f"batches_{record.outcome}": 1,
        "batch_items": record.items,
        "batch_rows": record.rows,
        "batch_fill_us": round(record.fill_s * 1e6),
        "batch_run_us": round((record.run_s - record.commit_s) * 1e6),
        "batch_commit_us": round(record.commit_s * 1e6),
        "batch_advance_us": round(record.advance_s * 1e6),
        "spilled_bytes": record.spilled_bytes,
        "shuffle_bytes": record.shuffle_bytes,
    }


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(BatchRecord).decode


def write_record(record: BatchRecord) -> bytes:
    """Encodes a record as an entry of the log."""
    return _encode(record)


def read_record(raw: bytes) -> BatchRecord | None:
    """The record of an entry; None for an entry that is damaged or of another version."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
