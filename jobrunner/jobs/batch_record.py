"""How one attempt at a batch of a station ended: an entry of the batch log of its queue.

A driver hands the record to the statistics of its worker (`BatchEnd.record`), which writes it with its next report. So
a batch waits for no call of its own, and the last seconds of a worker that is killed are missing.
"""

from typing import Literal, get_args

import msgspec

BatchOutcome = Literal["decided", "failed", "split", "dead", "released", "lost"]
"""decided: its rows were applied · failed: due again after a delay · split: its parts are due · dead: its last item is
dead · released: handed back, no failure counted · lost: its lease ended, and another driver may hold it"""
OUTCOMES: tuple[BatchOutcome, ...] = get_args(BatchOutcome)
LONGEST_CAUSE = 500


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a batch, as the log keeps it. Bytes are 0 where Spark could not be asked."""

    id: str
    outcome: BatchOutcome
    attempt: int
    """Number of times the batch was handed out, with this one."""
    began_ms: float
    """Unix ms, by the clock of the driver's machine."""
    items: int
    rows: int = 0
    """Rows that this attempt staged for other queues, or as a sink wrote to all its tables and folders. 0 if it was not
    decided, and for a sink that writes by means which neither this package nor Spark counts."""
    failures: int = 0
    """Failed attempts before this one."""
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
    """Which driver ran it, one of several in as many processes; empty when an earlier version wrote it."""
    stops: bool = False
    """The cause is no item's: the station stopped then, and tries again after a pause."""

    @property
    def took_s(self) -> float:
        """From its first item to its end."""
        return self.fill_s + self.run_s + self.advance_s

    @property
    def items_per_s(self) -> float:
        """Items by the time that it ran and was applied; without the wait to be full."""
        return self.items / max(self.run_s + self.advance_s, 0.001)


def batch_figures(record: BatchRecord) -> dict[str, int]:
    """What the statistics of a queue count of it."""
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
    """The entry of the log."""
    return _encode(record)


def read_record(raw: bytes) -> BatchRecord | None:
    """The record of an entry; None for damage, and for one of another version."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
