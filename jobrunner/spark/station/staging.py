"""Staging, where Spark runs: the rows of one task attempt, under a key of its own.

What must hold: only the keys of attempts that Spark counts reach the driver, as Spark alone knows which those are; so
a task that is run again, or twice at once, stages nothing twice.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext

from jobrunner.spark.station.members import BatchConnections, BatchRef, new_nonce
from jobrunner.spark.station.row_packer import RowRules, pack_rows

STAGED = "nonce string, rows long, digests binary"


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What one counted task attempt staged."""

    nonce: str
    rows: int
    digests: bytes
    """64 bits for each id that rows name (of a fan-out: of each parent), to find those twice there or missing."""


def stage_rows(place: BatchRef, rules: RowRules, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One Spark task: stages what it is given, then says so in one row (none when it was given nothing)."""
    context = TaskContext.get()
    with place.open() as access:
        staged = stage_batches(access, rules, batches, context.partitionId() if context else 0)
    if staged.rows:
        digests = pa.array([staged.digests], pa.binary())
        yield pa.record_batch({"nonce": [staged.nonce], "rows": [staged.rows], "digests": digests})


def stage_batches(
    access: BatchConnections, rules: RowRules, batches: Iterable[pa.RecordBatch], partition: int
) -> StagedRows:
    """Stages record batches under one new key. Raises PipelineError that names column and item, BatchLost."""
    nonce, rows, digests = new_nonce(), 0, [b""]
    for batch in batches:
        if not batch.num_rows:
            continue
        words, ids = pack_rows(batch, rules, f"{access.place.batch}.{partition}", rows)
        digests.append(digests_of(ids).tobytes())
        access.stage(nonce, words, after=rows)
        rows += len(words) // 4
    return StagedRows(nonce, rows, b"".join(digests))


def digests_of(ids: Iterable[bytes | None]) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """64 bits for each id; nothing for those that are None."""
    present = np.array([one for one in ids if one is not None], dtype=object)
    found: np.ndarray[Any, np.dtype[np.uint64]] = pd.util.hash_array(present, categorize=False)
    return found
