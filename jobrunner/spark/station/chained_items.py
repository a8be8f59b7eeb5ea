"""Stations in Python within a chain: one item after the other, where Spark runs.

An item goes through station after station until one on Spark is next. An error makes it dead with the reason, as there
is no queue in which it could wait for another attempt.
"""

from collections.abc import Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from jobrunner.attempt import Attempt
from jobrunner.client.item import read_payload
from jobrunner.errors import ParameterError, StationError
from jobrunner.etl.chain import PythonStep
from jobrunner.etl.station import StationItem
from jobrunner.jobs.running_task import JobRun
from jobrunner.logs import logger
from jobrunner.outcome import Fail, Moved, Retry, Snooze, Steer
from jobrunner.spark.payloads import misfit, payload_check
from jobrunner.spark.row_errors import CAUSED_BY_CODE, one_line
from jobrunner.spark.station import members

ROWS = members.COLUMNS.append(pa.field("_to", pa.string())).append(pa.field("_error", pa.string()))
DDL = f"{members.DDL}, _to string, _error string"


class ItemRows:
    """Turns items of one queue into rows of the stations on Spark behind it: `_to` is the full name of the queue. Life:
    a Spark task makes its own."""

    def __init__(
        self, queue: str, steps: Mapping[str, PythonStep], schemas: Mapping[str, StructType | None]
    ) -> None:  # fmt: skip
        self._queue = queue
        self._steps = steps
        self._checks = {name: payload_check(schema) for name, schema in schemas.items()}

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of one Arrow batch, without those of items that a station dropped."""
        found: list[tuple[Any, ...]] = []
        times = pc.cast(pc.cast(batch.column("_enqueue_time"), pa.timestamp("us")), pa.int64()).to_pylist()
        names = ("_id", "payload", "_type", "_attempts", "_headers")
        items = zip(*[batch.column(name).to_pylist() for name in names], times, strict=True)
        for task_id, payload, kind, number, headers, time_us in items:
            attempt = Attempt(
                queue=self._queue, id=task_id, token="", deadline_ms=0.0, keepalive_ms=0.0, type=kind,
                payload=payload.encode(), number=number, retry_count=number - 1, enqueue_time_ms=time_us / 1000,
                max_attempts=0, headers=None if headers is None else headers.encode(), encoding=b"json",
            )  # fmt: skip
            row = self._row(attempt)
            if row is not None:
                found.append((task_id, row[0], kind, number, time_us, row[1], row[2], row[3]))
        columns = list(zip(*found, strict=True)) or [()] * len(ROWS)
        arrays = [pa.array(values, pa.int64() if one.name == "_enqueue_time" else one.type).cast(one.type)
                  for one, values in zip(ROWS, columns, strict=True)]  # fmt: skip
        return pa.record_batch(arrays, schema=ROWS)

    def _row(self, attempt: Attempt) -> tuple[str, str | None, str, str | None] | None:
        """(payload, headers, queue, error); None for an item that ends here."""
        while attempt.queue in self._steps:
            step = self._steps[attempt.queue]
            try:
                moved = _outcome(step, attempt)
            except CAUSED_BY_CODE:
                raise
            except _Asked as asked:
                raise StationError(str(asked)) from None
            except Fail as failed:
                return "", None, attempt.queue, str(failed)
            except Exception as error:
                return "", None, attempt.queue, one_line(error)
            if moved is None:
                return None
            _move(attempt, moved)
        payload = attempt.payload or b""
        try:
            if attempt.encoding != b"json":
                raise ValueError("the payload is bytes, not JSON")
            self._checks[attempt.queue](payload)
        except (msgspec.MsgspecError, ValueError, RecursionError, TypeError) as error:
            return "", None, attempt.queue, f"PipelineError: {misfit(error)}"
        headers = None if attempt.headers is None else attempt.headers.decode()
        return payload.decode(), headers, attempt.queue, None


class _Asked(Exception):
    """A station asked for what a chain cannot do for one item: the batch fails."""


def _outcome(step: PythonStep, attempt: Attempt) -> Moved | None:
    """Where the item goes; None: it ends here. Raises what the station raised, and Fail."""
    queue = step.link.queue
    try:
        payload = read_payload(attempt.payload, attempt.encoding)
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"station {queue!r} cannot read the payload of item {attempt.id}: {error}") from error
    try:
        found = step.link.outcome(step.function(StationItem(payload, cast(JobRun, _ItemRun(attempt)))), attempt)
    except Steer as steer:
        found = steer
    if isinstance(found, Moved):
        if found.delay_s:
            raise _Asked(f"station {queue!r} returned a delay for item {attempt.id}: a chain has no queue to wait in")
        return found
    if isinstance(found, Fail):
        raise found
    if isinstance(found, (Retry, Snooze)):
        raise _Asked(
            f"station {queue!r} asked to try item {attempt.id} again ({type(found).__name__}: {found}), which a chain "
            "does with whole batches only: raise Fail for it, or take the station out of the chain"
        )
    return None  # dropped or cancelled


def _move(attempt: Attempt, moved: Moved) -> None:
    attempt.queue = moved.queue
    if moved.payload is not None:
        attempt.payload, attempt.encoding = moved.payload, moved.encoding.encode()
    if moved.headers is not None:
        attempt.headers = moved.headers


class _ItemRun(SimpleNamespace):
    """What a StationItem asks of the run it belongs to, where there is no worker."""

    deadline: datetime | None = None
    cancelled = False

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt=attempt)

    @property
    def log(self) -> Any:
        """A structlog logger bound to queue, item and attempt."""
        attempt = self.attempt
        return logger("jobrunner.job").bind(queue=attempt.queue, task=attempt.id, attempt=attempt.number)

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Shows nothing: the item has no attempt of its own."""
