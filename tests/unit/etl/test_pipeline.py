"""Pipelines as declared: names, options, links, and what is refused."""

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from jobrunner import etl, job
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.errors import InvalidName, InvalidOption, PipelineError, UnknownOption
from jobrunner.etl import Pipeline, SparkStation
from jobrunner.etl.pipeline import all_pipelines, find_pipeline
from jobrunner.jobs.declared_queues import declare_of_pipeline, published_by, publishing
from jobrunner.jobs.registry import StationDefinition, all_stations, driver_of, forget, waiting_on_crash
from jobrunner.retry import Backoff
from tests.support.registries import station_of
from tests.unit.worker.attempts import attempt_at


def work(item: Any) -> None:
    """A station."""


def settings_of(*queues: str) -> list[Mapping[str, Any]]:
    """What a worker of these queues publishes as their settings, by queue."""
    return [one.settings for one in published_by(queues)]


def own_stations() -> list[StationDefinition]:
    """Those of pipeline `orders`; other tests have some that stay."""
    return [station for station in all_stations() if station.queue.startswith("orders/")]


def frames(df: Any, spark: Any) -> Any:
    """A station on Spark."""


def test_a_declared_function_stays_what_it_is_and_its_station_is_known(orders: Pipeline) -> None:
    declared = orders.station("raw", to="end", timeout=3, concurrency=4, max_attempts=2)(work)

    definition = station_of("orders/raw")
    assert declared is work
    assert definition is not None
    assert (definition.name, definition.queue, definition.is_async) == ("work", "orders/raw", False)
    assert (definition.options.timeout, definition.options.result_ttl) == (3.0, 0.0)
    assert settings_of("orders/raw") == [{"max_inflight": 4, "max_attempts": 2}]


def test_workers_know_of_short_leases_as_the_server_does(orders: Pipeline) -> None:
    orders.sink("end", keepalive=2)(work)

    definition = station_of("orders/end")
    assert definition is not None
    assert (settings_of("orders/end"), definition.options.keepalive) == ([{"keepalive": 2}], 2.0)


def test_a_station_says_what_becomes_of_its_items_in_a_crash(orders: Pipeline) -> None:
    """Whatever type an item has: it is the station that runs it."""
    orders.station("raw", to="end", on_crash="wait")(work)
    orders.sink("end")(lambda item: None)
    patient = job(name="patient", on_crash="wait")(lambda: None)
    try:
        waits = waiting_on_crash()
        assert waits is not None
        assert waits(attempt_at("", queue="orders/raw"))
        assert waits(attempt_at("patient"))
        assert not waits(attempt_at("patient", queue="orders/end"))
        assert not waits(attempt_at("unknown"))
    finally:
        forget(patient.definition.name)
    with pytest.raises(InvalidOption, match="on_crash='never'"):
        orders.station("other", to="end", on_crash="never")(work)


def test_exported_names_exist() -> None:
    assert [name for name in etl.__all__ if not hasattr(etl, name)] == []


def test_a_backoff_goes_to_the_server_and_a_callable_stays_with_the_worker(orders: Pipeline) -> None:
    def delay(retry_count: int, error: BaseException) -> float:
        return 1.0

    orders.station("a", to="b", backoff=Backoff(base=1))(work)
    orders.sink("b", backoff=delay)(lambda item: None)

    a, b = own_stations()
    assert (settings_of("orders/a"), a.options.backoff) == ([{"backoff": Backoff(base=1)}], None)
    assert (settings_of("orders/b"), b.options.backoff, b.name) == ([{}], delay, "b")


def test_a_station_that_leads_nowhere_is_an_error(orders: Pipeline) -> None:
    for to in ((), None, 7, []):
        with pytest.raises(PipelineError, match=r"leads nowhere; .* sink"):
            orders.station("raw", to=to)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="names a queue twice"):
        orders.station("raw", to=("a", "orders/a"))


def test_a_queue_of_another_pipeline_is_refused_at_the_declaration(orders: Pipeline) -> None:
    """KEU-30: and so is its name for the dead, and one that is no name."""
    with pytest.raises(PipelineError, match="'stock/raw' is of pipeline 'stock', not of 'orders'"):
        orders.station("raw", to="stock/raw")
    with pytest.raises(PipelineError, match="of pipeline 'stock'"):
        orders.sink("stock/raw")
    with pytest.raises(PipelineError, match="of pipeline 'stock'"):
        orders.station("raw", to="end", dead_letter_queue="stock/dead")
    with pytest.raises(InvalidName):
        orders.station("raw", to="no such name")


@pytest.mark.parametrize("name", ["orders", "orders/orders"])
def test_a_queue_with_the_name_of_its_pipeline_is_refused_at_the_declaration(orders: Pipeline, name: str) -> None:
    """Its keys were those of the plain queue, and each handed out the tasks of the other."""
    for declare in (orders.sink, orders.declare, lambda queue: orders.station("raw", to=queue), orders.queue):
        with pytest.raises(InvalidName, match="keys would be those of queue 'orders'; name the queue or its"):
            declare(name)


def test_two_stations_on_one_queue_are_an_error(orders: Pipeline) -> None:
    orders.station("raw", to="end")(work)

    for again in (orders.sink("raw"), orders.station("orders/raw", to="end")):
        with pytest.raises(PipelineError, match="'raw' of pipeline 'orders' is declared twice: as station work"):
            again(lambda item: None)
    with pytest.raises(PipelineError, match="declared twice"):
        orders.declare("raw")
    assert len(own_stations()) == 1


def test_an_unknown_target_is_found_by_the_check_which_names_the_nearest(orders: Pipeline) -> None:
    orders.station("raw", to="claen")(work)
    orders.sink("clean")(work)

    with pytest.raises(PipelineError, match=r"station work of queue 'raw' leads to 'claen' .* did you mean 'clean'"):
        orders.check()


def test_where_the_dead_go_must_be_declared(orders: Pipeline, current: Client) -> None:
    orders.sink("end", dead_letter_queue="graves")(work)
    with pytest.raises(PipelineError, match=r"leads to 'graves' \(dead_letter_queue=…\)"):
        orders.push("end", 1)

    orders.declare("graves", max_size=5)
    orders.push("end", 1)
    assert orders.queue("end").settings().dead_letter_queue == "orders/graves"
    assert orders.queue("graves").settings().max_size == 5


def test_a_pipeline_without_a_station_is_an_error(orders: Pipeline) -> None:
    orders.declare("end")
    with pytest.raises(PipelineError, match="has no station"):
        orders.check()


def test_an_unknown_option_names_the_nearest(orders: Pipeline) -> None:
    with pytest.raises(UnknownOption, match="did you mean 'timeout'"):
        orders.station("raw", to="end", timeuot=3)  # type: ignore[call-arg]
    with pytest.raises(UnknownOption, match="did you mean 'max_size'"):
        orders.declare("end", maxsize=3)  # type: ignore[call-arg]
    with pytest.raises(UnknownOption):
        orders.spark_station("raw", to="end", timeout=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"max_size": 0}, {"timeout": 0}, {"history": "long"}])
def test_a_wrong_value_is_refused_at_the_declaration(orders: Pipeline, options: Any) -> None:
    with pytest.raises(InvalidOption):
        orders.station("raw", to="end", **options)


def test_the_number_of_partitions_is_not_declared(orders: Pipeline) -> None:
    """It was written among the settings of the queue, where nothing reads it."""
    for refused in (
        lambda: orders.sink("end", partitions=3)(work),  # type: ignore[call-arg]
        lambda: orders.declare("graves", partitions=3),  # type: ignore[call-arg]
        lambda: orders.spark_station("batches", to="end", partitions=3),  # type: ignore[call-arg]
    ):
        with pytest.raises(InvalidOption, match="partitions=3 is set on the server and not declared"):
            refused()


@pytest.mark.parametrize("wrong", [0, -1, "x"])
def test_a_wrong_concurrency_is_named_so(orders: Pipeline, wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=f"concurrency={wrong!r}: give a whole number from 1"):
        orders.sink("end", concurrency=wrong)(work)


def test_what_cannot_take_one_item_is_no_station(orders: Pipeline) -> None:
    with pytest.raises(PipelineError, match=r"is called as nothing\(item\)"):

        @orders.sink("a")
        def nothing() -> None: ...

    with pytest.raises(PipelineError, match=r"function \(item\)"):
        orders.sink("b")(dict)
    with pytest.raises(PipelineError, match=r"called as frames\(df, spark, batch\)"):
        orders.spark_sink("c")(frames)


async def yields_awaited(item: Any) -> AsyncIterator[int]:
    yield 1


def yields(item: Any, spark: Any = None, batch: Any = None) -> Iterator[int]:
    yield 1


async def awaits(df: Any, spark: Any, batch: Any = None) -> None: ...


def test_a_function_that_a_call_does_not_run_is_no_station(orders: Pipeline) -> None:
    """Its items would end as if it had run, or go on as one list."""
    for queue, function in {"raw": yields, "more": yields_awaited}.items():
        for declare in (orders.station(queue, to="end"), orders.sink(queue)):
            with pytest.raises(PipelineError, match=f"queue 'orders/{queue}' is a generator: .* with fan_out=True"):
                declare(function)
        orders.station(queue, to="end", fan_out=True)(function)
    for declare in (orders.spark_station("late", to="end", fan_out=True), orders.spark_sink("late")):
        with pytest.raises(PipelineError, match="queue 'orders/late' is a generator"):
            declare(yields)
        with pytest.raises(PipelineError, match="queue 'orders/late' is async, and on Spark nothing awaits it"):
            declare(awaits)


def test_a_queue_is_found_by_either_name_and_an_unknown_one_names_the_nearest(
    orders: Pipeline, current: Client
) -> None:
    orders.sink("end")(work)

    assert orders.queue("end").name == orders.queue("orders/end").name == "orders/end"
    with pytest.raises(PipelineError, match="no queue 'edn'; did you mean 'end'"):
        orders.push("edn", 1)


def test_a_push_configures_the_queues_once_for_each_client(orders: Pipeline, current: Client) -> None:
    orders.station("raw", to="end", max_attempts=2, concurrency=3, history=timedelta(hours=1))(work)
    orders.sink("end")(work)

    task_id = orders.push("raw", {"a": 1}, headers={"trace": "1"}, priority=2)
    settings = orders.queue("raw").settings()
    assert (settings.max_attempts, settings.max_inflight, settings.history) == (2, 3, 3600.0)
    assert current.queues() == ["orders/end", "orders/raw"]
    orders.queue("raw").configure(max_attempts=9)
    assert len(orders.push_many("raw", [1, 2])) == 2
    assert orders.queue("raw").settings().max_attempts == 9
    assert current.task(task_id).record().priority == 2


def test_a_push_leaves_the_settings_to_the_workers_that_publish_them(orders: Pipeline, current: Client) -> None:
    """The first push of a program that knows a queue by its name took the limit from the station of another one."""
    station = declare_of_pipeline("orders/clean", {"max_inflight": 1}, "service:clean")
    broker_of(current).run_many(publishing(keys_of(current), [station], 10.0))
    orders.station("raw", to="clean", max_attempts=2)(work)
    orders.declare("clean")
    orders.push("raw", 1)
    assert orders.queue("clean").settings().max_inflight == 1
    assert orders.queue("raw").settings().max_attempts == 2


def test_an_id_of_ones_own_is_one_in_the_whole_pipeline(orders: Pipeline, current: Client) -> None:
    orders.station("raw", to="end")(work)
    orders.sink("end")(work)
    known: list[str] = []

    orders.push("raw", "first", id="one")
    assert orders.queue("end").push("second", id="one", on_clash=known.extend) == "one"
    assert known == ["one"]
    assert (orders.queue("raw").ids("waiting"), orders.queue("end").ids("waiting")) == (["one"], [])


def test_what_is_declared_behind_a_push_is_checked_and_published_by_the_next(
    orders: Pipeline, current: Client
) -> None:
    """As in a notebook, cell by cell: neither was, in this program."""
    orders.sink("raw")(work)
    orders.push("raw", 1)
    orders.declare("late", max_size=7)
    orders.push("raw", 2)
    assert orders.queue("late").settings().max_size == 7
    orders.station("clean", to="typo")(work)
    with pytest.raises(PipelineError, match="typo"):
        orders.push("raw", 3)


def test_a_queue_is_declared_again_by_the_same_cell_of_a_notebook_only(orders: Pipeline) -> None:
    """As a station is; it was an error that named no difference."""
    cell = "orders.declare('late', max_size={})"
    for size in (5, 7):
        exec(cell.format(size), {"__name__": "__main__", "orders": orders})
    assert settings_of("orders/late") == [{"max_size": 7}]
    assert [node.short for node in orders.graph.nodes] == ["late"]
    with pytest.raises(PipelineError, match="'late' of pipeline 'orders' is declared twice: as a queue"):
        orders.declare("late")


def test_a_pipeline_may_have_a_client_of_its_own(client: Client) -> None:
    own = Pipeline("own", client)
    own.sink("end")(work)

    own.push("end", 1)

    assert client.queue("own/end").counts()["waiting"] == 1


def test_a_pipeline_is_found_by_its_name(orders: Pipeline) -> None:
    assert find_pipeline("orders") is orders
    with pytest.raises(PipelineError, match="did you mean 'orders'"):
        find_pipeline("order")


def test_a_second_pipeline_of_a_name_replaces_that_of_its_own_module_only(orders: Pipeline) -> None:
    orders.sink("end")(work)
    namespace = {"Pipeline": Pipeline, "__name__": "elsewhere"}
    with pytest.raises(PipelineError, match="import it from one of them"):
        exec("Pipeline('orders')", namespace)

    exec("Pipeline('theirs')", namespace)
    exec("again = Pipeline('theirs')", namespace)
    assert find_pipeline("theirs") is namespace["again"]
    assert [pipeline.name for pipeline in all_pipelines()] == ["orders", "theirs"]


def test_a_station_on_spark_is_recorded_with_all_that_its_driver_needs(
    orders: Pipeline, current: Client, monkeypatch: Any
) -> None:
    declared = orders.spark_station(
        "raw", to=("late", "on_time"), batch=20_000, max_wait=2, schema="id int", missing="fail", fan_out=True,
        lease=30, max_size=7,
    )(frames)  # fmt: skip
    orders.spark_sink("late", batch=5)(lambda df, spark, batch: None)
    orders.sink("on_time")(work)
    orders.check()

    station = orders.spark_stations["orders/raw"]
    assert declared is frames
    assert isinstance(station, SparkStation)
    assert (station.function, station.name, station.targets) == (frames, "frames", ("orders/late", "orders/on_time"))
    assert (station.batch, station.max_wait, station.schema, station.missing) == (20_000, 2.0, "id int", "fail")
    assert (station.fan_out, station.is_sink, station.lease) == (True, False, 30.0)
    assert station.link.waits("orders/late")
    sink = orders.spark_stations["orders/late"]
    assert (sink.is_sink, sink.batch, sink.targets, sink.name) == (True, 5, (), "late")
    assert station_of("orders/raw") is None

    engine = type("Engine", (), {"StationDriver": staticmethod(lambda *given: given)})
    modules = {"jobrunner.spark.station.driver": engine}
    monkeypatch.setattr("jobrunner.etl.spark_station.import_module", modules.__getitem__)
    make = driver_of("orders/raw")
    assert make is not None
    assert make(current, print) == (station, current, print)  # type: ignore[comparison-overlap]
    assert settings_of("orders/raw", "orders/on_time") == [{}, {"max_size": 7}]


@pytest.mark.parametrize(
    "options", [{"batch": 0}, {"batch": 10**7}, {"missing": "ignore"}, {"schema": ""}, {"lease": 0}, {"max_wait": -1}]
)
def test_wrong_options_of_a_station_on_spark_are_refused(orders: Pipeline, options: Any) -> None:
    with pytest.raises(InvalidOption):
        orders.spark_station("raw", to="end", **options)


def test_a_schema_that_is_no_text_is_refused_in_one_short_line(orders: Pipeline) -> None:
    class StructType:
        def __repr__(self) -> str:
            return f"StructType([{', '.join(['StructField(column, LongType(), True)'] * 20)}])"

    with pytest.raises(InvalidOption, match=r"^schema=StructType\(.*… of queue .*: give columns as text") as refused:
        orders.spark_station("raw", to="end", schema=StructType())  # type: ignore[arg-type]
    assert len(str(refused.value)) < 200
