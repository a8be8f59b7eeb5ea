"""Upserts by key, each batch once."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.expressions import EqualTo

from jobrunner.errors import BatchLost, PipelineError, TableError
from jobrunner.spark.lake import commit as lake_commit
from jobrunner.spark.lake.commit import commit_merge, open_table
from jobrunner.spark.lake.services import compact_table
from tests.unit.spark.lake.conftest import Lake, part

KEY = {"merge_on": ["n"]}


def values(lake):
    return {row["n"]: row["v"] for row in lake.read().to_pylist()}


def test_a_row_replaces_the_one_with_its_key_once(lake, numbers):
    lake.write(part("a"), numbers(1, 2, v=["a", "a"]), **KEY)
    lake.write(part("b"), numbers(2, 3, v=["b", "b"]), **KEY)
    again = lake.write(part("a", epoch=2), numbers(1, 2, v=["a", "a"]), **KEY)
    assert again.repeated
    assert lake.write(part("b.1"), numbers(3, v=["z"]), **KEY).repeated
    assert values(lake) == {1: "a", 2: "b", 3: "b"}


def test_columns_are_added_and_those_that_are_missing_stay_or_are_asked_for(lake, numbers):
    lake.write(part("a"), numbers(1, 2, v=["a", "a"]), **KEY)
    lake.write(part("b"), numbers(2, 3, v=["b", "b"], more=[1, 2]), **KEY)
    assert values(lake) == {1: "a", 2: "b", 3: "b"}
    rows = numbers(3, 4, v=["c", "c"])
    if lake.address.format == "iceberg":
        with pytest.raises(TableError, match=f"table {lake.table} has a column .more. and the rows have not"):
            lake.write(part("c"), rows, **KEY)
        rows = rows.append_column("more", [[2, None]])
    lake.write(part("c"), rows, **KEY)
    assert values(lake) == {1: "a", 2: "b", 3: "c", 4: "c"}
    assert sorted(lake.read().column("more").to_pylist(), key=str) == [1, 2, None, None]


def test_columns_widen_for_a_merge(lake, numbers):
    if lake.address.format == "delta":
        return
    lake.write(part("a"), numbers(1, v=pa.array([1], pa.int32())), **KEY)
    lake.write(part("b"), numbers(1, 2, v=pa.array([2**40, 1])), **KEY)
    assert values(lake) == {1: 2**40, 2: 1}


def test_of_two_drivers_at_once_one_merges(lake, numbers, monkeypatch):
    lake.write(part("a"), numbers(1, v=["a"]), **KEY)
    rows = numbers(1, v=["b"])
    for first, second in (("b", "b"), ("c", "c.1"), ("d", "other")):
        one, two = lake.prepare(part(first), rows, **KEY), lake.prepare(part(second, 2), rows, **KEY)
        merge, done = one.table.merge, []

        def second_comes_first(rows, key, attempt, merge=merge, done=done, two=two):
            if not done:
                done.append(commit_merge(two, rows))
            return merge(rows, key, attempt)

        monkeypatch.setattr(one.table, "merge", second_comes_first)
        if second == "c.1":
            with pytest.raises(BatchLost):
                commit_merge(one, rows)
        else:
            assert commit_merge(one, rows).repeated is (first == second)
        assert done[0].rows == 1
    assert values(lake) == {1: "b"}
    assert lake.read().num_rows == 1


def test_of_rows_with_one_key_the_last_by_an_order_counts_else_they_are_refused(lake, numbers):
    rows = numbers(1, 1, 2, v=["old", "new", "x"], at=[5, 6, 7])
    with pytest.raises(PipelineError, match=rf"several rows for table {lake.table} have the key {{'n': 1}}") as error:
        lake.write(part("a"), rows, **KEY)
    assert not isinstance(error.value, TableError)
    lake.write(part("a"), rows.take([1, 0, 2]), order=["at"], **KEY)
    assert values(lake) == {1: "new", 2: "x"}


def test_an_order_by_values_that_cannot_be_compared_is_no_items_fault(lake, numbers):
    with pytest.raises(TableError, match=rf"latest_by='v' for table {lake.table}: the column is list.*: take a column"):
        lake.write(part("a"), numbers(1, 1, v=[[1], [2]]), order=["v"], **KEY)


def test_a_row_without_a_value_to_order_by_counts_least(lake, numbers):
    rows = numbers(1, 1, 1, 2, 2, 3, 3, v=list("abcdefg"), at=[5.0, None, 2.0, float("nan"), 1.0, None, None])
    lake.write(part("a"), rows, order=["at", "v"], **KEY)
    assert values(lake) == {1: "a", 2: "e", 3: "g"}


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_a_key_that_is_zero_with_a_sign_is_zero(lake, numbers, kind):
    """Two such rows of one batch stopped the sink for good: each replaced the same row of the table."""
    for batch, last in (("a", "b"), ("b", "c")):
        rows = numbers(1, 2, 3, x=pa.array([0.0, -0.0, float("nan")], kind), v=["a", last, "n"])
        lake.write(part(batch), rows, order=["n"], merge_on=["x"])
        assert sorted(row["v"] for row in lake.read().to_pylist()) == [last, "n"]


def test_a_row_that_was_appended_with_a_signed_zero_is_replaced(lake, numbers):
    lake.write(part("a"), numbers(1, 2, x=[-0.0, 1.0], v=["a", "a"]))
    lake.write(part("b"), numbers(3, x=[0.0], v=["b"]), merge_on=["x"])
    assert sorted(lake.column()) == [2, 3]


def test_a_delta_table_that_takes_no_merge_says_so_at_once(tmp_path, numbers):
    """It passed for a conflict with other writers, for a minute at each attempt."""
    from deltalake import DeltaTable

    lake = Lake(f"delta:{tmp_path}/t")
    lake.write(part("a"), numbers(1, v=["a"]))
    DeltaTable(tmp_path / "t").alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(TableError, match=r"table delta:.*/t has delta.appendOnly, and merge_on=\['n'\] replaces rows"):
        lake.write(part("b"), numbers(1, v=["b"]), **KEY)
    lake.write(part("c"), numbers(2, v=["c"]))
    assert values(lake) == {1: "a", 2: "c"}


def test_a_key_of_values_that_cannot_be_compared_is_no_items_fault(lake, numbers):
    with pytest.raises(TableError, match=rf"merge_on=\['s'\] for table {lake.table}: column 's' is struct.*: take a"):
        lake.write(part("a"), numbers(1, s=[{"a": 1}]), merge_on=["s"])


def test_a_key_without_a_value_is_the_fault_of_its_item(lake, numbers):
    with pytest.raises(PipelineError, match="1 rows have no value for 'n', a column of merge_on") as error:
        lake.write(part("a"), numbers(None, 1), **KEY)
    assert not isinstance(error.value, TableError)
    with pytest.raises(TableError, match=rf"merge_on=\['x'\] for table {lake.table}: the rows have no column 'x'"):
        lake.write(part("a"), numbers(1), merge_on=["x"])


def test_a_merge_that_changes_nothing_is_remembered_too(lake, numbers):
    rows = numbers(1, v=["a"])
    lake.write(part("a"), rows, **KEY)
    assert lake.write(part("b"), rows, **KEY).rows == 1
    assert lake.write(part("b", epoch=2), numbers(1, v=["z"]), **KEY).repeated
    assert values(lake) == {1: "a"}


def test_a_key_of_several_columns_for_a_batch_of_thousands(lake, numbers):
    """One expression of all keys took a minute for 5 000 of them, and the process ended at 20 000."""
    key = {"merge_on": ["n", "kind"]}
    for batch, value, first in (("a", "old", 0), ("b", "new", 10_000)):
        of = range(first, first + 20_000)
        lake.write(part(batch), numbers(*of, kind=[f"k{n % 7}" for n in of], v=[value] * len(of)), **key)
    found = lake.read()
    assert sorted(found.column("n").to_pylist()) == list(range(30_000))
    assert found.filter(pc.equal(found.column("v"), "old")).num_rows == 10_000


@pytest.mark.parametrize("name", ["a.b", "a b", "a'b", 'a"b', "a`b", "a/b", "ä", "%20", "Key"])
def test_a_key_of_any_name(lake, name, numbers):
    for batch, value in (("a", "old"), ("b", "new")):
        lake.write(part(batch), numbers(1, 2, **{name: ["x", "y"], "v": [value, value]}), merge_on=[name])
    assert lake.column("v") == ["new", "new"]


def test_a_file_without_a_key_of_the_batch_stays(lake, numbers):
    for batch, first in (("a", 0), ("b", 1000)):
        lake.write(part(batch), numbers(*range(first, first + 300), v=["x"] * 300), **KEY)
    before = lake.named_files()
    lake.write(part("c"), numbers(*range(1100, 1400), v=["y"] * 300), **KEY)
    assert len(before & lake.named_files()) == 1
    assert lake.column() == [*range(300), *range(1000, 1400)]


def test_keys_of_several_columns_and_partitions(lake, numbers):
    key = {"merge_on": ["n", "day of"], "partition_by": ["day of"]}
    for batch, value in (("a", "old"), ("b", "new")):
        days = {"day of": pa.array(["mon", "tue"]), "v": pa.array([value, value])}
        lake.write(part(batch), numbers(1, 1, **days), **key)
    assert sorted(lake.read().column("v").to_pylist()) == ["new", "new"]
    assert lake_commit.RETRIES_S > 1


_STRUCT = pa.struct([("x", pa.int64()), ("y", pa.string())])
_ONE = {"x": 1, "y": None}
_MAP = pa.map_(pa.string(), _STRUCT)
_LISTS = [None, [], [None], [_ONE, None], None]
_MAPS = [None, [], [("k", None)], [("k", _ONE)], None]
NESTED = {
    "list": (pa.list_(_STRUCT), _LISTS),
    "map": (_MAP, _MAPS),
    "struct": (
        pa.struct([("l", pa.list_(_STRUCT)), ("m", _MAP)]),
        [None, *({"l": a, "m": b} for a, b in zip(_LISTS[:-1], _MAPS[:-1], strict=True))],
    ),
    "lists": (pa.list_(pa.list_(_STRUCT)), [None, [None], [[], None, [None]], [[_ONE]], []]),
    "structs": (
        pa.list_(pa.struct([("l", pa.list_(_STRUCT))])),
        [None, [{"l": None}, {"l": []}, None], [], [{"l": [None]}], None],
    ),
    "numbers": (pa.list_(pa.int64()), [None, [], [None], [1, None], None]),
}


def test_rows_that_are_copied_keep_nulls_and_empty_lists_apart(lake, numbers):
    """`pyiceberg` reads and writes each null list and map of structs as an empty one."""
    others = {name: pa.array(values, kind) for name, (kind, values) in NESTED.items()}
    rows = numbers(*range(5), **others)
    lake.write(part("a"), rows)
    lake.write(part("b"), rows.slice(3, 1), **KEY)
    assert raw(lake) == rows.to_pylist()
    lake.write(part("c"), rows.take([0, 1, 4]), **KEY)
    assert raw(lake) == rows.to_pylist()
    lake.write(part("d"), rows.slice(0, 3))
    assert compact_table(lake.table) > 1
    assert raw(lake) == sorted([*rows.to_pylist(), *rows.slice(0, 3).to_pylist()], key=lambda row: row["n"])


def raw(lake):
    """The rows as they are in the data files, whatever a library makes of them."""
    found = [row for name in lake.named_files() for row in lake.read_file(name).to_pylist()]
    return sorted(found, key=lambda row: row["n"])


@pytest.mark.parametrize(("name", "metrics"), [("a.b", "full"), ("carrier", "counts"), ("carrier", "none")])
def test_rows_of_a_partition_without_bounds_are_found(catalog, name, metrics):
    """Their files were those of null, as pyiceberg takes a partition from the bounds of its column: readers with a
    filter saw no row, and a merge left the old rows beside the new ones."""
    lake = Lake(f"iceberg:{catalog()}.db.late")
    lake.write(part("a"), pa.table({name: ["AA"], "v": ["old"]}), partition_by=[name])
    table = open_table(lake.address)
    table.load()
    with table._table.transaction() as change:
        change.set_properties({"write.metadata.metrics.default": metrics})
    rows = pa.table({name: ["B" * 40, None, "AA"], "v": ["old", "of null", "new"]})
    lake.write(part("b"), rows)
    lake.write(part("c"), pa.table({name: ["AA", "B" * 40], "v": ["newest", "newest"]}), merge_on=[name])

    table.load()
    found = [(one[name], one["v"]) for one in table._table.scan(EqualTo(name, "B" * 40)).to_arrow().to_pylist()]
    assert found == [("B" * 40, "newest")]
    assert sorted(lake.column("v")) == ["newest", "newest", "of null"]
