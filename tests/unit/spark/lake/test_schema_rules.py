"""Columns of rows and of a table: what is added, widened, and refused before anything is written."""

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from jobrunner.errors import PipelineError, TableError
from jobrunner.spark.lake.arrow_types import arrow_schema
from jobrunner.spark.lake.commit import commit, open_table
from jobrunner.spark.lake.schema_rules import fit
from tests.unit.spark.lake.conftest import Lake, part


def columns(**kinds):
    return pa.schema(list(kinds.items()))


def test_new_columns_and_those_that_are_missing(lake, numbers):
    lake.write(part("a"), numbers(1, name=["x"]))
    lake.write(part("b"), numbers(2, seen=[0.5], tags=[["t"]]))
    lake.write(part("c"), numbers(3))
    rows = lake.read().sort_by("n").to_pydict()
    assert rows == {"n": [1, 2, 3], "name": ["x", None, None], "seen": [None, 0.5, None], "tags": [None, ["t"], None]}


def test_a_column_that_another_driver_adds_meanwhile(lake, numbers):
    lake.write(part("a"), numbers(1))
    ready = lake.prepare(part("b"), numbers(2, seen=[0.5]))
    files = lake.files(ready, numbers(2, seen=[0.5]))
    lake.write(part("c"), numbers(3, seen=[1.5], more=["x"]))
    assert commit(ready, files).rows == 1
    assert sorted(lake.read().column("seen").to_pylist(), key=str) == [0.5, 1.5, None]


def test_a_column_that_another_driver_adds_with_another_type_meanwhile_refuses_the_batch(lake, numbers):
    lake.write(part("a"), numbers(1))
    ready = lake.prepare(part("b"), numbers(2, seen=["yes"]))
    files = lake.files(ready, numbers(2, seen=["yes"]))
    lake.write(part("c"), numbers(3, seen=[1.5]))
    with pytest.raises(TableError, match=f"'seen' of table {lake.table} is double, and that of the rows is string"):
        commit(ready, files)
    assert lake.column() == [1, 3]
    assert len(lake.data_files()) == 2


def test_narrow_numbers_enter_wide_columns(lake):
    wide = pa.table({"n": pa.array([1], pa.int64()), "f": pa.array([1.0]), "d": pa.array([1], pa.decimal128(20, 2))})
    narrow = wide.cast(columns(n=pa.int32(), f=pa.float32(), d=pa.decimal128(10, 2)))
    lake.write(part("a"), wide)
    lake.write(part("b"), narrow)
    assert lake.read().column("n").to_pylist() == [1, 1]
    assert lake.read().schema.field("n").type == pa.int64()


def test_columns_widen_where_the_format_can(lake):
    narrow = pa.table({"n": pa.array([1], pa.int32()), "f": pa.array([1.0], pa.float32())})
    wide = pa.table({"n": pa.array([2**40]), "f": pa.array([1e300])})
    lake.write(part("a"), narrow)
    if lake.address.format == "delta":
        with pytest.raises(TableError, match=f"'n' of table {lake.table} is int32, and that of the rows is int64: "
                                             "this format cannot widen a column"):  # fmt: skip
            lake.write(part("b"), wide)
        assert len(lake.data_files()) == 1
        return
    lake.write(part("b"), wide)
    assert lake.read().sort_by("n").to_pydict() == {"n": [1, 2**40], "f": [1.0, 1e300]}
    lake.write(part("c"), narrow)
    assert lake.column() == [1, 1, 2**40]


@pytest.mark.parametrize(
    ("there", "own", "words"),
    [
        ({"a": pa.string()}, {"a": pa.int64()}, "column 'a' of table T is string, and that of the rows is int64"),
        ({"a": pa.int64()}, {"a": pa.float64()}, "column 'a' of table T is int64, and that of the rows is double"),
        ({"a": pa.timestamp("us")}, {"a": pa.timestamp("us", "UTC")}, "is timestamp[us], and that of the rows is t"),
        ({"a": pa.decimal128(10, 2)}, {"a": pa.decimal128(12, 3)}, "is decimal128(10, 2), and that of the rows is dec"),
        ({"a": pa.struct([("x", pa.int64())])}, {"a": pa.struct([("y", pa.int64())])}, "is struct<x: int64>, and that"),
        ({"Name": pa.string()}, {"name": pa.string()}, "table T has a column 'Name', the rows have 'name'"),
        ({}, {"a": pa.null()}, "column 'a' for table T has no type"),
        ({}, {}, "the rows for table T have no column"),
        ({}, {"a": pa.int8(), "A": pa.int8()}, "two columns for table T are called 'a' and 'A'"),
    ],
)
def test_what_is_refused_names_the_column_the_types_and_the_table(there, own, words):
    with pytest.raises(TableError) as error:
        fit("T", columns(**there), columns(**own), widens_table=True)
    assert words in str(error.value)


def test_a_column_without_nulls(lake, numbers):
    with pytest.raises(TableError, match="table T allows no null in column 'n', and the rows have no such column"):
        fit("T", pa.schema([pa.field("n", pa.int64(), nullable=False)]), columns(a=pa.string()), widens_table=True)
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())])
    open_table(lake.address).create(strict, ())
    lake.write(part("a"), numbers(1, s=["x"]))
    with pytest.raises(PipelineError, match="1 rows have no value for column 'n', in which table") as error:
        lake.write(part("b"), numbers(2, None, s=["y", None]))
    assert not isinstance(error.value, TableError)
    assert lake.column() == [1]
    assert len(lake.data_files()) == 1


NESTED = pa.list_(pa.struct([("t", pa.timestamp("us", "UTC"))]))


@pytest.mark.parametrize("how", [{}, {"merge_on": ["n"]}], ids=["appended", "merged"])
@pytest.mark.parametrize(
    ("kind", "first", "last", "shown"),
    [
        (pa.timestamp("us", "UTC"), -62_135_596_800_000_000, 253_402_300_799_999_999, "0000-12-31 23:59:59.999999"),
        (pa.timestamp("us"), -62_135_596_800_000_000, 253_402_300_799_999_999, "0000-12-31 23:59:59.999999"),
        (pa.date32(), -719_162, 2_932_896, "0000-12-31"),
    ],
    ids=["timestamp", "timestamp_ntz", "date"],
)
def test_times_beyond_the_years_1_to_9999_are_the_fault_of_their_item(lake, numbers, how, kind, first, last, shown):
    """The table would take the file, and then not be committed, or not be read."""

    def of(*numbers):
        return pa.array(numbers, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)

    lake.write(part("a"), numbers(1, 2, v=of(first, last)), **how)
    for batch, value in (("b", first - 1), ("c", last + 1)):
        words = rf"a value of column 'v' for table {lake.table} is {shown if batch == 'b' else '10000-01-01'}"
        with pytest.raises(PipelineError, match=words) as error:
            lake.write(part(batch), numbers(3, v=of(value)), **how)
        assert not isinstance(error.value, TableError)
    assert lake.column("v") == of(first, last).to_pylist()


@pytest.mark.parametrize("how", [{}, {"merge_on": ["n"]}], ids=["appended", "merged"])
@pytest.mark.parametrize("kind", [NESTED, pa.map_(pa.int32(), NESTED)], ids=["a list", "a map"])
def test_times_beyond_the_years_1_to_9999_are_found_in_nested_columns(lake, numbers, how, kind):
    def of(time):
        times = [None, {"t": time}]
        return pa.array([None, [(1, times)] if pa.types.is_map(kind) else times], kind)

    lake.write(part("a"), numbers(1, 2, v=of(253_402_300_799_999_999)), **how)
    with pytest.raises(PipelineError, match=r"a value of column 'v' for table .* is 10000-01-01"):
        lake.write(part("b"), numbers(3, 4, v=of(253_402_300_800_000_000)), **how)
    assert lake.column() == [1, 2]


def test_partitions_of_a_table_and_of_a_sink(lake, numbers):
    day = {"day": ["mon"]}
    lake.write(part("a"), numbers(1, **day), partition_by=["day"])
    lake.write(part("b"), numbers(2, **day))
    with pytest.raises(TableError, match=rf"{lake.table} is partitioned by 'day', the sink says partition_by=\['n'\]"):
        lake.write(part("c"), numbers(3, **day), partition_by=["n"])
    with pytest.raises(TableError, match="is partitioned by 'day', and the rows have no such column"):
        lake.write(part("c"), numbers(3))
    assert lake.column() == [1, 2]


def test_partitions_that_no_table_can_have(lake, numbers):
    with pytest.raises(TableError, match="cannot be partitioned by 'f', of type double"):
        lake.write(part("a"), numbers(1, f=[0.5]), partition_by=["f"])
    with pytest.raises(TableError, match="is partitioned by 'none', and the rows have no such column"):
        lake.write(part("a"), numbers(1), partition_by=["none"])


def test_rows_that_have_columns_of_partitions_alone(lake, numbers):
    """Files of Delta do not have those columns, so they would have neither columns nor rows."""
    days = pa.table({"day": ["mon", "tue", "mon"]})
    if lake.address.format == "iceberg":
        assert lake.write(part("a"), days, partition_by=["day"]).rows == 3
        assert lake.column("day") == ["mon", "mon", "tue"]
        return
    words = f"table {lake.table} is partitioned by all columns of the rows, 'day': its data files would have none"
    with pytest.raises(TableError, match=words):
        lake.write(part("a"), days, partition_by=["day"])
    lake.write(part("b"), numbers(1, day=["mon"]), partition_by=["day"])
    with pytest.raises(TableError, match=words):
        lake.write(part("c"), days)
    assert lake.column("day") == ["mon"]


def test_rows_without_a_column_are_called_so(lake):
    with pytest.raises(TableError, match=f"the rows for table {lake.table} have no column"):
        lake.write(part("a"), pa.table({}))


def test_partitions_by_a_function_are_refused(lake, numbers):
    if lake.address.format == "delta":
        return
    from pyiceberg.catalog import load_catalog

    lake.write(part("a"), numbers(1))
    with load_catalog("lake").load_table("db.late").update_spec() as change:
        change.add_field("n", "bucket[4]")
    with pytest.raises(TableError, match=r"is partitioned by bucket\[4\] of 'n': a sink writes partitions of whole"):
        lake.write(part("b"), numbers(2))


@pytest.mark.parametrize("change", ["rename", "drop"])
@pytest.mark.parametrize("value", ["c", 5])
def test_a_column_that_another_program_renamed_or_dropped_does_not_come_back(catalog, numbers, change, value):
    """Values of the older column would be read as those of the new one, or as text where numbers are to be."""
    from pyiceberg.catalog import load_catalog

    from tests.unit.spark.lake.conftest import Lake

    lake = Lake(f"iceberg:{catalog()}.db.late")
    lake.write(part("a"), numbers(1, v=["a"]))
    ready = lake.prepare(part("b"), numbers(2, v=["b"]))
    files = lake.files(ready, numbers(2, v=["b"]))
    with load_catalog("lake").load_table("db.late").update_schema() as columns:
        columns.rename_column("v", "w") if change == "rename" else columns.delete_column("v")
    before = lake.read().to_pylist()
    words = f"table {lake.table} had a column 'v' that was renamed or dropped"
    with pytest.raises(TableError, match=words):
        commit(ready, files)
    with pytest.raises(TableError, match=words):
        lake.write(part("c"), numbers(3, v=[value]))
    with pytest.raises(TableError, match=words):
        lake.write(part("d"), numbers(3, v=[value], w=["w"]), merge_on=["n"])
    assert lake.read().to_pylist() == before
    lake.write(part("e"), numbers(3, w=["w"]))
    lake.write(part("f"), numbers(4, w=["x"], other=[1]))
    assert lake.column() == [1, 3, 4]
    assert lake.read().sort_by("n").column("w").to_pylist() == ["a" if change == "rename" else None, "w", "x"]


def test_a_new_column_beside_one_that_another_program_adds_and_drops_meanwhile(
    catalog, numbers, monkeypatch
):
    """The schema is the same again then, which was all that the commit compared: the column that was dropped came back,
    and the new one, with its values, was in no schema."""
    lake = Lake(f"iceberg:{catalog()}.db.late")
    lake.write(part("a"), numbers(1))
    rows = numbers(2, m=pa.array([7]))
    ready = lake.prepare(part("b"), rows)
    files = lake.files(ready, rows)
    catalog_of, asked = ready.table._catalog, []
    commit_table = catalog_of.commit_table

    def commit_behind_the_other(*words):
        asked.append(words)
        if len(asked) == 1:
            there = open_table(lake.address)
            there.load()
            with there._table.update_schema() as change:
                change.add_column("other", LongType())
            with there._table.update_schema() as change:
                change.delete_column("other")
        return commit_table(*words)

    monkeypatch.setattr(catalog_of, "commit_table", commit_behind_the_other)
    commit(ready, files)
    table = open_table(lake.address)
    table.load()
    assert {one.name: one.field_id for one in table._table.schema().fields} == {"n": 1, "m": 3}
    assert sorted(map(str, lake.read().to_pylist())) == ["{'n': 1, 'm': None}", "{'n': 2, 'm': 7}"]


def test_types_of_spark():
    from pyspark.sql import types as spark

    schema = spark.StructType(
        [
            spark.StructField("a", spark.ByteType()), spark.StructField("b", spark.TimestampType()),
            spark.StructField("e", spark.ArrayType(spark.MapType(spark.StringType(), spark.DecimalType(5, 1)))),
        ]
    )  # fmt: skip
    found = arrow_schema("T", schema)
    assert found.types[:2] == [pa.int8(), pa.timestamp("us", "UTC")]
    assert found.field("e").type.value_type.item_type == pa.decimal128(5, 1)
    with pytest.raises(TableError, match="column 'v' for table T is of type variant, which no table has: cast it"):
        arrow_schema("T", spark.StructType([spark.StructField("v", spark.ArrayType(spark.VariantType()))]))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "a struct without fields, which no table has"),
        (("a", "A"), "a struct with the fields 'a' and 'A': rename one of them"),
        (("a", "b", "a"), "a struct with the fields 'a' and 'a': rename one of them"),
    ],
)
def test_structs_that_no_file_can_hold_or_spark_could_not_read_back(names, words):
    from pyspark.sql import types as spark

    of = spark.StructType([spark.StructField(name, spark.IntegerType()) for name in names])
    with pytest.raises(TableError, match=f"column 'v' for table T has {words}"):
        arrow_schema("T", spark.StructType([spark.StructField("v", spark.ArrayType(of))]))


def test_a_delta_table_that_asks_more_of_a_writer_is_refused(tmp_path, numbers):
    from deltalake import DeltaTable

    from tests.unit.spark.lake.conftest import Lake

    made = Lake(f"delta:{tmp_path}/t")
    made.write(part("a"), numbers(1))
    DeltaTable(tmp_path / "t").alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(TableError, match=r"needs delta\.constraints\.positive of its writers"):
        made.write(part("b"), numbers(2))
