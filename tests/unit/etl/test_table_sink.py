"""Sinks into tables as they are declared, without Spark."""

import tomllib
from pathlib import Path

import pytest

from jobrunner.errors import InvalidOption, PipelineError, SparkMissing, UnknownOption
from jobrunner.etl import table_sink
from jobrunner.etl.table_sink import TableAddress, TableSink
from jobrunner.jobs.declared_queues import published_by
from jobrunner.jobs.registry import driver_of


def shape(df, spark):
    return df


def test_the_call_declares_the_sink(orders):
    orders.spark_sink("late", table="delta:/lake/late/", schema="n int", partition_by="day", merge_on=["n"],
                      latest_by="at", id_column="item", max_size=5)  # fmt: skip
    declared = orders.spark_stations["orders/late"]
    assert declared.function == TableSink(address=TableAddress("delta", "/lake/late"), partition_by=("day",),
                                          merge_on=("n",), latest_by="at", id_column="item")  # fmt: skip
    assert (declared.name, declared.is_sink) == ("late", True)
    assert [one.settings for one in published_by(["orders/late"])] == [{"max_size": 5}]
    orders.check()


def test_it_may_stand_above_a_function_that_shapes_the_rows(orders):
    assert orders.spark_sink("late", table="iceberg:lake.db.late")(shape) is shape
    declared = orders.spark_stations["orders/late"]
    assert (declared.function.shape, declared.name, declared.origin) == (shape, "shape", f"{__name__}:shape")
    assert [node.queue for node in orders.graph.nodes] == ["orders/late"]
    with pytest.raises(PipelineError, match=r"is called as <lambda>\(df, spark\)"):
        orders.spark_sink("other", table="iceberg:lake.db.late")(lambda df, spark, batch: df)


def test_a_cell_of_a_notebook_may_be_run_again_whatever_its_function_is_called(orders):
    """It was "declared twice", unless the function had the name of the queue."""
    cell = (
        "@orders.spark_sink('late', table='delta:/lake/late', max_size={size})\n"
        "def {name}(df, spark): return df"
    )
    for size, name in ((5, "shape"), (7, "shape"), (9, "late"), (11, "reshape")):
        exec(cell.format(size=size, name=name), {"__name__": "__main__", "orders": orders})
    declared = orders.spark_stations["orders/late"]
    assert (declared.name, declared.origin) == ("reshape", "__main__:reshape")
    assert [one.settings for one in published_by(["orders/late"])] == [{"max_size": 11}]
    assert [node.queue for node in orders.graph.nodes] == ["orders/late"]
    exec("orders.spark_sink('late', table='delta:/lake/other')", {"__name__": "__main__", "orders": orders})
    assert orders.spark_stations["orders/late"].name == "late"
    orders.spark_sink("other", table="delta:/lake/other")(shape)
    with pytest.raises(PipelineError, match="'other' of pipeline 'orders' is declared twice"):
        exec("orders.spark_sink('other', table='delta:/lake/other')", {"__name__": "__main__", "orders": orders})


@pytest.mark.parametrize(
    ("options", "parallel"),
    [({}, 2), ({"merge_on": "n"}, 1), ({"merge_on": "n", "parallel": 3}, 3), ({"parallel": 1}, 1)],
)
def test_a_merge_runs_one_batch_at_a_time_unless_it_is_told_to(orders, options, parallel):
    """Else the older of two versions of a row may be merged last."""
    orders.spark_sink("late", table="delta:/lake/late", **options)
    assert orders.spark_stations["orders/late"].parallel == parallel


def test_a_queue_has_one_sink(orders):
    orders.spark_sink("late", table="delta:/lake/late")
    with pytest.raises(PipelineError, match="'late' of pipeline 'orders' is declared twice"):
        orders.spark_sink("late", table="delta:/lake/other")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "lake/late"}, "'lake/late' is no table format"),
        ({"table": "delt:/lake"}, "'delt' is no table format .did you mean 'delta'"),
        ({"table": 5}, "table=5: give a text such as 'delta:/lake/late'"),
        ({"table": "delta:lake/late"}, "is relative to the folder of whichever process"),
        ({"table": "delta:"}, "is relative to the folder"),
        ({"table": "delta:/lake/a\\b"}, "which the library of Delta takes for another one: give it another name"),
        ({"table": "delta:/lake/a%25b"}, "path with '%25', which the library"),
        ({"table": "delta:/lake/a%2Fb"}, "path with '%2F', which the library"),
        ({"table": "delta:/lake/a\tb"}, "which the library"),
        ({"table": "delta:file:///lake/a%2541b"}, "path with '%41', which the library"),
        ({"table": "delta:file:///lake/a#b"}, "path with '#', which the library"),
        ({"table": "delta:file:///lake/a[b"}, r"path with '\[', which the library of Delta .* or leave out file:"),
        ({"table": "delta:file:///lake/a b"}, "path with ' ', which the library"),
        ({"table": "delta:s3://bucket/a?b"}, r"path with '\?', which the library"),
        ({"table": "delta:/"}, "name a folder of its own below the root"),
        ({"table": "delta:s3://"}, "name a folder of its own below the root"),
        ({"table": "iceberg:db.late"}, "name catalog, namespace and table"),
        ({"table": "iceberg:lake..late"}, "name catalog, namespace and table"),
        ({"merge_on": ["n"]}, "merge_on of queue 'late' is an option of a sink into a table; add table="),
        ({"table": "delta:/a", "latest_by": "at"}, "latest_by='at' of queue 'late' chooses among rows of one key"),
        ({"table": "delta:/a", "partition_by": [1]}, r"partition_by=\[1\]: give names of columns"),
        ({"table": "delta:/a", "merge_on": ["n", "n"]}, r"merge_on=\['n', 'n'\] names a column twice"),
        ({"table": "delta:/a", "schema": "variant"}, "schema='variant' of queue 'late': a table has typed columns"),
    ],
)
def test_wrong_options_are_refused_at_the_declaration(orders, options, words):
    with pytest.raises(InvalidOption, match=words):
        orders.spark_sink("late", **options)
    assert orders.graph.nodes == []


def test_an_option_that_nobody_knows_names_the_nearest(orders):
    with pytest.raises(UnknownOption, match="did you mean 'merge_on'"):
        orders.spark_sink("late", table="delta:/a", merge_n=["n"])


def test_a_missing_library_is_named_at_the_start_of_the_worker(orders, monkeypatch):
    orders.spark_sink("late", table="delta:/a")
    monkeypatch.setattr(table_sink, "find_spec", lambda name: None)
    with pytest.raises(SparkMissing, match=r"the table delta:/a needs deltalake: pip install .*\[lake\]"):
        driver_of("orders/late")(orders.client, lambda _: None)


@pytest.mark.parametrize(
    ("table", "found", "words"),
    [
        ("delta:/a", "1.5.1", r"needs deltalake 1\.6\.3 or newer, not 1\.5\.1: pip install .*\[lake\]"),
        ("delta:/a", "1.6.0", r"needs deltalake 1\.6\.3 or newer, not 1\.6\.0: pip install .*\[lake\]"),
        ("iceberg:a.b.c", "0.10.0", r"needs pyiceberg 0\.11 or newer, not 0\.10\.0: pip install .*\[lake\]"),
        ("delta:/a", "1.6.3rc1", None),
        ("delta:/a", "1.10", None),
        ("iceberg:a.b.c", "0.11.0", None),
        ("iceberg:a.b.c", "1.0", None),
    ],
)
def test_a_library_that_would_double_rows_or_cannot_merge_is_refused(monkeypatch, table, found, words):
    monkeypatch.setattr(table_sink, "find_spec", lambda name: object())
    monkeypatch.setattr(table_sink, "_version", lambda name: found)
    check = table_sink.address_of(table).check_installed
    if words is None:
        check()
        return
    with pytest.raises(SparkMissing, match=words):
        check()


def test_the_extra_installs_the_lowest_versions_that_are_accepted():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    listed = " ".join(project["optional-dependencies"]["lake"])
    for library, lowest in table_sink._LOWEST.items():
        assert library in listed
        assert f">={lowest}" in listed
