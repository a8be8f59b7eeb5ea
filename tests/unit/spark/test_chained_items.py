"""Items behind the stations in Python of a chain: to whom they go, with which columns, and what becomes of bad ones."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from jobrunner.client.client import Client
from jobrunner.etl import Drop, Pipeline, To
from jobrunner.etl.chain import StationChain
from jobrunner.outcome import Fail
from jobrunner.spark.station.chained_items import ItemRows, TargetPayloads
from jobrunner.spark.station.payload_shape import OWN, OWN_KINDS
from tests.support.registries import forget_pipelines

NUMBERS = spark.StructType([spark.StructField("n", spark.IntegerType())])
WORDS = spark.StructType([spark.StructField("n", spark.StringType()), spark.StructField("w", spark.StringType())])
LIMIT = 100
AT = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def rows(client: Client) -> Rows:
    """rows(station, payloads): the rows behind a station in Python before `numbers`, `also`, `words` and `any`."""

    def run(station: Callable[[Any], Any], payloads: list[str], own_is_null: bool = False) -> Any:
        pipeline = Pipeline("p", client)
        pipeline.station("raw", to=("numbers", "also", "words", "any"))(station)
        for name in ("numbers", "also", "words", "any"):
            pipeline.spark_sink(name)(lambda df, spark, batch: None)
        chain = _chain(pipeline)
        forget_pipelines()
        steps = {name: step.to_be_sent(LIMIT) for name, step in chain.python.items()}
        targets = TargetPayloads({"p/numbers": NUMBERS, "p/also": NUMBERS, "p/words": WORDS, "p/any": None}, "UTC")
        ids = [f"i{number}" for number in range(len(payloads))]
        count = len(payloads)
        columns = [ids, [""] * count, [1] * count, [AT] * count, ['{"h": "1"}'] * count]
        if own_is_null:
            columns[1:] = [[None] * count] * 4
        own = [pa.array(values, kind) for values, kind in zip(columns, OWN_KINDS, strict=True)]
        batch = pa.record_batch([*own, pa.array(payloads, pa.string())], names=[*OWN, "payload"])
        made = ItemRows("p/raw", steps, targets).of(batch)
        assert made.schema == targets.arrow_schema()
        assert made.schema.names == targets.spark_schema().fieldNames()
        return made.to_pylist()

    return run


def _chain(pipeline: Pipeline) -> StationChain:
    pipeline.chain("raw")
    function = pipeline.spark_stations["p/raw"].function
    assert isinstance(function, StationChain)
    return function


def by_payload(item: Any) -> Any:
    kind, payload = item.payload
    if kind == "drop":
        return Drop()
    if kind == "fail":
        raise Fail("no good", retry=False)
    return To(kind, payload)


def test_each_row_has_the_columns_of_its_target_alone(rows: Rows) -> None:
    sent = ['["numbers", {"n": 1}]', '["words", {"n": "x", "w": "y"}]', '["any", [1]]', '["also", {}]']
    found = rows(by_payload, sent)
    payloads = [{name: row[name] for name in row if name[0].isdigit()} for row in found]
    nothing = {"0.n": None, "1.n": None, "1.w": None, "2.payload": None}
    assert payloads == [
        nothing | {"0.n": 1}, nothing | {"1.n": "x", "1.w": "y"}, nothing | {"2.payload": "[1]"}, nothing,
    ]  # fmt: skip
    assert [row["_to"] for row in found] == ["p/numbers", "p/words", "p/any", "p/also"]
    assert {(row["_error"], row["_headers"], row["_attempts"], row["_enqueue_time"]) for row in found} == {
        (None, '{"h": "1"}', 1, AT)
    }


def test_a_misfit_and_an_error_are_told_and_their_neighbours_go_on(rows: Rows) -> None:
    numbers = ['["numbers", {"n": 1}]', '["numbers", {"n": "one"}]', '["numbers", {"n": 2}]']
    found = rows(by_payload, [*numbers, '["drop", 0]', '["fail", 0]', "[", numbers[0]])
    assert [(row["_id"], row["0.n"]) for row in found] == [
        ("i0", 1), ("i1", None), ("i2", 2), ("i4", None), ("i5", None), ("i6", 1),
    ]  # fmt: skip
    misfit, failed, broken = [row["_error"] for row in found if row["_error"] is not None]
    assert misfit == "PipelineError: the payload does not fit the schema: column 'n': expected int, got str"
    assert "no good" in failed
    assert "cannot read the payload of item i5" in broken


def test_an_error_whose_text_cannot_be_sent_is_that_of_its_item(rows: Rows) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def fails(item: Any) -> Any:
        raise [Fail("half of \ud800"), ValueError("half of \ud800"), Mute()][item.payload]

    assert [row["_error"] for row in rows(fails, ["0", "1", "2"])] == [
        "half of \\ud800", "ValueError: half of \\ud800", "Mute: (an error that cannot be shown)",
    ]  # fmt: skip


def test_an_item_has_time_and_the_limit_on_payloads_is_that_of_the_driver(rows: Rows) -> None:
    def left(item: Any) -> Any:
        assert timedelta(hours=23) < item.deadline - datetime.now(UTC) < timedelta(hours=25)
        return To("any", "x" * item.payload)

    fits, too_large = rows(left, [str(LIMIT - 2), str(LIMIT)])
    assert (fits["2.payload"], fits["_error"]) == (f'"{"x" * (LIMIT - 2)}"', None)
    assert "PayloadTooLarge" in too_large["_error"]


def test_own_columns_that_are_null_are_those_of_a_new_item(rows: Rows) -> None:
    """As behind an outer join of a station on Spark."""
    (found,) = rows(by_payload, ['["any", 1]'], own_is_null=True)
    assert (found["_type"], found["_attempts"], found["_headers"], found["_error"]) == ("", 1, None, None)
    assert found["_enqueue_time"].timestamp() == 0


def test_items_that_all_end_make_a_table_without_rows(rows: Rows) -> None:
    assert rows(by_payload, ['["drop", 0]', '["drop", 1]']) == []
