"""The marks of an Iceberg table (see identity.py).

They are in a property of the table, `jobrunner.batches`, that each commit writes together with its snapshot: as a JSON
object, batch → [mark, Unix seconds]. So they outlast snapshots that expire. A commit asserts the snapshot that it was
made for, and so never overwrites marks that another commit wrote since the table was loaded.
"""

import json
from collections.abc import Mapping

from pyiceberg.table import Table

from jobrunner.clock import unix_ms
from jobrunner.errors import TableError
from jobrunner.etl.table_sink import TableAddress
from jobrunner.spark.lake.identity import KEPT_DAYS

MARKS = "jobrunner.batches"
_DAY_S = 86_400
_KEPT_S = KEPT_DAYS * _DAY_S
_MARKS_BEYOND_A_DAY = 2_000
"""Marks older than a day that a table keeps: they are in each version of its metadata, some 60 bytes each."""


def read_marks(table: Table, address: TableAddress) -> dict[str, list[int]]:
    """Batch → [mark, Unix seconds]. Raises TableError when another program changed them."""
    text = table.properties.get(MARKS)
    if not text:
        return {}
    try:
        found: dict[str, list[int]] = json.loads(text)
        if all(len(one) == 2 for one in found.values()):
            return found
    except (ValueError, TypeError, AttributeError):
        pass
    raise TableError(
        f"table {address}: its property {MARKS} was changed by another program, and says no more which "
        "batches are written; restore it from an earlier version of the metadata"
    )


def with_marks(table: Table, address: TableAddress, new: Mapping[str, int]) -> dict[str, str]:
    """The property to set: the marks of a table with new ones, without those that are too old. Raises TableError."""
    there, now = read_marks(table, address), unix_ms() // 1000
    kept = {batch: one for batch, one in there.items() if now - one[1] < _DAY_S}
    older = [(batch, one) for batch, one in there.items() if _DAY_S <= now - one[1] < _KEPT_S]
    kept |= dict(sorted(older, key=lambda pair: -pair[1][1])[:_MARKS_BEYOND_A_DAY])
    marks = kept | {batch: [mark, now] for batch, mark in new.items()}
    return {MARKS: json.dumps(marks, separators=(",", ":"))}
