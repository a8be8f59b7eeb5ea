"""The checks at the end of the demo of the lakehouse: one query for each table, read without Spark."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from jobs_example.demos.checks import Check, at_least, same, same_names
from jobs_example.demos.lakehouse.orders import Truth
from jobs_example.demos.pipelines.remains import Remains
from jobs_example.lakehouse import ICEBERG, catalog_of, delta_table, folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The answers of one table: count(*), count(distinct order), sum(cents) by kind."""

    rows: int
    distinct: int
    cents_by_kind: Mapping[str, int]


def stored_in(table: pa.Table) -> Stored:
    """Of a table with the columns order, kind and cents."""
    sums = table.group_by("kind").aggregate([("cents", "sum")])
    return Stored(
        rows=table.num_rows,
        distinct=pc.count_distinct(table["order"]).as_py(),
        cents_by_kind=dict(zip(sums["kind"].to_pylist(), sums["cents_sum"].to_pylist(), strict=True)),
    )


_COLUMNS = ["order", "kind", "cents"]


def read_delta() -> Any:
    """These columns of the Delta table."""
    return DeltaTable(delta_table().removeprefix("delta:")).to_pyarrow_table(columns=_COLUMNS)


def read_iceberg() -> Any:
    """These columns of the Iceberg table."""
    catalog, _, name = ICEBERG.removeprefix("iceberg:").partition(".")
    table = load_catalog(catalog, **catalog_of(folder())).load_table(name)
    return table.scan(selected_fields=tuple(_COLUMNS)).to_arrow()


def verdict(tables: Mapping[str, Stored], truth: Truth, remains: Remains, lost_bytes: int | None) -> list[Check]:
    """Whether each order is in each table once, at its price, or dead with its reason; and nothing is left over."""
    told = sum(word in remains.dead.get(task_id, "") for task_id, word in truth.dead.items())
    return [
        at_least("bytes that the server lost", 1, lost_bytes or 0),
        *(check for name, stored in tables.items() for check in _of_table(name, stored, truth)),
        same_names("dead: the wrong orders", truth.dead.keys(), remains.dead.keys()),
        same("of these, with the reason", len(truth.dead), told),
        same("items left in the queues", 0, remains.open),
        same("items the server still has: the dead", len(truth.dead), remains.items),
        same("keys left of Spark's batches", 0, len(remains.staged)),
    ]


def _of_table(name: str, stored: Stored, truth: Truth) -> list[Check]:
    return [
        same(f"{name}: count(*)", len(truth.ids), stored.rows),
        same(f"{name}: count(distinct order)", len(truth.ids), stored.distinct),
        same(f"{name}: sum(cents), by kind", _told(truth.cents_by_kind), _told(stored.cents_by_kind)),
    ]


def _told(cents: Mapping[str, int] | Counter[str]) -> str:
    whole = sum(cents.values())
    return f"{whole} ({', '.join(str(cents[kind]) for kind in sorted(cents)[:2])}, …)"
