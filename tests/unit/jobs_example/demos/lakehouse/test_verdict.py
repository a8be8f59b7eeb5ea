"""The verdict of the demo: what agrees, and what it names when something does not."""

from collections import Counter
from dataclasses import replace

import pyarrow as pa

from jobs_example.demos.checks import Check
from jobs_example.demos.lakehouse.orders import Truth
from jobs_example.demos.lakehouse.verdict import Stored, stored_in, verdict
from jobs_example.demos.pipelines.remains import Remains

TRUTH = Truth(ids={"a", "b"}, cents_by_kind=Counter({"kind-1": 30, "kind-2": 5}), dead={"x": "quantity"})
RIGHT = Stored(rows=2, distinct=2, cents_by_kind={"kind-1": 30, "kind-2": 5})
LEFT = Remains(open=0, dead={"x": "Fail: quantity='many' is no number"}, staged=(), items=1)


def differing(tables: dict[str, Stored], left: Remains = LEFT, lost: int | None = 7) -> list[str]:
    checks: list[Check] = verdict(tables, TRUTH, left, lost)
    return [check.what for check in checks if not check.agrees]


def test_when_all_is_right_all_agrees() -> None:
    assert differing({"Delta": RIGHT, "Iceberg": RIGHT}) == []


def test_a_doubled_row_of_one_table_is_named() -> None:
    assert differing({"Delta": RIGHT, "Iceberg": replace(RIGHT, rows=3)}) == ["Iceberg: count(*)"]


def test_a_wrong_sum_a_missing_reason_and_what_is_left_are_named() -> None:
    wrong = replace(RIGHT, cents_by_kind={"kind-1": 29, "kind-2": 6})
    left = Remains(open=1, dead={"x": "other"}, staged=("batch:1:rows",), items=2)
    assert differing({"Delta": wrong}, left, lost=None) == [
        "bytes that the server lost",
        "Delta: sum(cents), by kind",
        "of these, with the reason",
        "items left in the queues",
        "items the server still has: the dead",
        "keys left of Spark's batches",
    ]


def test_the_query_of_a_table() -> None:
    table = pa.table({"order": ["a", "b", "b"], "kind": ["k", "k", "l"], "cents": [1, 2, 4]})
    assert stored_in(table) == Stored(rows=3, distinct=2, cents_by_kind={"k": 3, "l": 4})
