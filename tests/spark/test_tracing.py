"""The span of a batch: one, with links to the pushes of its items, and its error when it fails."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from jobrunner.tracing import instrument, uninstrument


def test_a_batch_is_one_span_linked_to_the_pushes_of_its_items(flights, drive):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    @flights.spark_station("clean", to="late", max_wait=0, schema="n int")
    def leave(df, spark):
        return df

    @flights.spark_station("late", to="on_time", max_wait=0, schema="n int")
    def fail(df, spark):
        raise ValueError("no column of that name")

    flights.declare("on_time")
    instrument(provider)
    try:
        flights.push_many("clean", [{"n": n} for n in range(3)])
        flights.push("clean", {"n": 3})
        drive("clean")
        drive("late", 1)
    finally:
        uninstrument()

    spans = exporter.get_finished_spans()
    pushes = {span.get_span_context().span_id for span in spans if span.kind is SpanKind.PRODUCER}
    done, failed = [span for span in spans if span.kind is SpanKind.CONSUMER]
    assert len(pushes) == 2
    assert {link.context.span_id for link in failed.links} == {link.context.span_id for link in done.links} == pushes
    assert failed.status.status_code is StatusCode.ERROR
    assert done.status.status_code is StatusCode.UNSET
    assert (done.attributes or {})["messaging.batch.message_count"] == 4
    assert (failed.name, done.name) == ("process flights/late", "process flights/clean")
    assert failed.status.description == "ValueError: no column of that name"
