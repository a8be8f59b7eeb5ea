"""Reads the batch log of a station: the outcomes of the last attempts at its batches."""

from collections.abc import Sequence

from msgspec.structs import replace

from jobrunner.broker.calls import batch_log
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.jobs.batch_record import BatchRecord, read_record

__all__ = ["BatchRecord", "batches_of", "recent_batches", "stopped_by"]


def recent_batches(client: Client, queue: str, count: int = batch_log.MOST) -> list[BatchRecord]:
    """The last attempts at batches of a queue, newest first; workers write them within five seconds.

    Empty for a queue without a station on Spark. Each attempt is listed once, even when its worker wrote it twice, as
    after a lost reply. Raises ServerError.
    """
    redaction = client.redaction()
    found = batches_of(client, [queue])[queue][:count]
    return [replace(one, cause=redaction.text(one.cause)) for one in found]


def stopped_by(batches: Sequence[BatchRecord]) -> BatchRecord | None:
    """The attempt in the batch log whose error made the station pause; None when a batch succeeded since."""
    for one in batches:
        if one.outcome == "decided" or one.stops:
            return one if one.stops else None
    return None


def batches_of(client: Client, queues: Sequence[str], count: int = batch_log.MOST) -> dict[str, list[BatchRecord]]:
    """The last attempts for several queues, in one round trip, with causes that are not redacted."""
    keys = keys_of(client)
    logs = broker_of(client).run_many([batch_log.recent(keys.queue(queue), count) for queue in queues])
    return {queue: _read(entries) for queue, entries in zip(queues, logs, strict=True)}


def _read(entries: Sequence[bytes]) -> list[BatchRecord]:
    found: dict[tuple[str, int, str], BatchRecord] = {}
    for raw in entries:
        if (record := read_record(raw)) is not None:
            found.setdefault((record.id, record.attempt, record.outcome), record)
    return list(found.values())
