"""Spans of tasks on their way: from the enqueue to every attempt, over retries, moves, flows and batches."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as contexts
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jobrunner import Backoff, Client, Item, Job, Snooze, chain, job
from jobrunner.client.batches import Batches
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.item import read_headers
from jobrunner.client.loop_clients import async_client, current_async_client
from jobrunner.client.outgoing import sending
from jobrunner.errors import ServerRefused, UsageError
from jobrunner.etl import Pipeline, To
from jobrunner.formatting import DISTRIBUTION
from jobrunner.jobs.registry import forget
from jobrunner.observers import OBSERVERS
from jobrunner.redaction import HIDDEN
from jobrunner.tracing import instrument, is_instrumented, processing, uninstrument
from tests.worker import traced_jobs as jobs

ROOT = Path(__file__).parents[2]
FAST = Backoff(base=0.01, factor=1)


class Recorder:
    """The exported spans, in the order of their ends."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.kind is kind]

    @property
    def sent(self) -> list[ReadableSpan]:
        return self.of(SpanKind.PRODUCER)

    @property
    def run(self) -> list[ReadableSpan]:
        return self.of(SpanKind.CONSUMER)


@pytest.fixture
def spans() -> Iterator[Recorder]:
    """Traces everything; the recorded spans."""
    recorder = Recorder()
    instrument(recorder.provider)
    yield recorder
    uninstrument()


@pytest.fixture
def declared() -> Iterator[list[str]]:
    """Names of jobs that are forgotten behind the test."""
    names: list[str] = []
    yield names
    for name in names:
        forget(name)


@pytest.fixture
def flaky(declared: list[str]) -> Any:
    """A job that fails once, then succeeds."""

    @job(queue="mail", max_attempts=3, backoff=FAST)
    def traced_flaky(text: str = "") -> str:
        ran.append(text)
        if len(ran) == 1:
            raise ValueError("the first try fails")
        return text

    ran: list[str] = []
    declared.append("traced_flaky")
    return traced_flaky


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id


def test_spans_name_the_version_of_jobrunner_and_of_the_conventions(spans: Recorder, client: Client) -> None:
    client.queue("orders").push({"n": 1})

    scope = spans.sent[0].instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.version) == ("jobrunner", version(DISTRIBUTION))
    assert str(scope.schema_url).startswith("https://opentelemetry.io/schemas/")


def test_every_attempt_is_linked_to_the_enqueue_and_says_how_it_ended(
    current: Client, run: Any, flaky: Any, spans: Recorder
) -> None:
    task = flaky.enqueue("hello")
    run(queues=["mail"], drain=True)

    (sent,) = spans.sent
    failed, succeeded = spans.run
    assert sent.name == "publish mail"
    assert attributes_of(sent) == {
        "messaging.system": "jobrunner", "messaging.destination.name": "mail", "messaging.operation.name": "publish",
        "messaging.operation.type": "send", "messaging.message.id": task.id, "jobrunner.job": "traced_flaky",
    }  # fmt: skip
    assert failed.name == "process mail"
    assert linked(failed) == linked(succeeded) == [id_of(sent)]
    assert failed.parent is succeeded.parent is None
    assert [attributes_of(span)["jobrunner.attempt"] for span in spans.run] == [1, 2]
    assert [attributes_of(span)["jobrunner.outcome"] for span in spans.run] == ["failed", "succeeded"]
    assert {attributes_of(span)["messaging.message.id"] for span in spans.run} == {task.id}
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "ValueError: the first try fails"
    (event,) = failed.events
    assert event.attributes is not None
    assert event.attributes["exception.type"] == "ValueError"
    assert "Traceback" in str(event.attributes["exception.stacktrace"])
    assert succeeded.status.status_code is StatusCode.UNSET


def test_as_child_puts_the_attempts_into_the_trace_of_the_enqueue(current: Client, run: Any, flaky: Any) -> None:
    recorder = Recorder()
    instrument(recorder.provider, as_child=True)
    try:
        flaky.enqueue()
        run(queues=["mail"], drain=True)
    finally:
        uninstrument()

    (sent,) = recorder.sent
    for attempt in recorder.run:
        assert attempt.parent is not None
        assert attempt.parent.span_id == id_of(sent)
        assert attempt.links == ()


def test_what_a_job_enqueues_and_traces_itself_is_within_its_attempt(
    current: Client, run: Any, declared: list[str], spans: Recorder
) -> None:
    @job(queue="inner")
    def traced_inner() -> None: ...

    @job(queue="mail")
    def traced_outer() -> None:
        with spans.provider.get_tracer("own").start_as_current_span("own"):
            traced_inner.enqueue()

    declared += ["traced_inner", "traced_outer"]
    traced_outer.enqueue()
    run(queues=["mail", "inner"])

    (own,) = spans.of(SpanKind.INTERNAL)
    outer, inner = sorted(spans.run, key=lambda span: span.start_time)  # whichever ended first
    _, nested = spans.sent
    assert own.parent is not None
    assert own.parent.span_id == id_of(outer)
    assert nested.parent is not None
    assert nested.parent.span_id == id_of(own)
    assert linked(inner) == [id_of(nested)]


def test_many_at_once_are_one_producer_span_with_their_number(
    current: Client, run: Any, flaky: Any, spans: Recorder
) -> None:
    flaky.enqueue_many([flaky.bind(str(number)) for number in range(5)])
    run(queues=["mail"], drain=True)

    (sent,) = spans.sent
    assert attributes_of(sent)["messaging.batch.message_count"] == 5
    assert len(spans.run) == 6
    assert {one for span in spans.run for one in linked(span)} == {id_of(sent)}


def test_a_bare_item_keeps_its_headers_and_is_linked_by_whoever_processes_it(current: Client, spans: Recorder) -> None:
    queue = current.queue("bare")
    queue.push_many([1, Item(2, headers={"own": "kept"})])

    (sent,) = spans.sent
    first, second = queue.reserve(2)
    assert second.headers == {"own": "kept", "traceparent": first.headers["traceparent"]}
    with pytest.raises(ZeroDivisionError), processing(first, queue="bare"):
        raise ZeroDivisionError
    (span,) = spans.run
    assert linked(span) == [id_of(sent)]
    assert span.status.status_code is StatusCode.ERROR


def test_the_span_of_an_item_or_a_batch_has_no_hidden_value(current: Client, spans: Recorder) -> None:
    current.queue("bare").push(1)
    error = ValueError("login failed: password='hunter2'\nmore")

    with pytest.raises(ValueError, match="login"), processing(current.queue("bare").reserve()[0], queue="bare"):
        raise error
    (tracer,) = OBSERVERS
    assert tracer.run_batch("bare", "b", 1, list, lambda: error) is error

    for span in spans.run:
        (event,) = span.events
        assert event.attributes is not None
        assert event.attributes["exception.message"] == f"login failed: password={HIDDEN} more"
        assert "test_tracing" in str(event.attributes["exception.stacktrace"])
        assert "hunter2" not in f"{dict(event.attributes)} {span.status.description}"
        assert span.status.status_code is StatusCode.ERROR
    assert len(spans.run) == 2


def test_an_item_with_a_traceparent_of_its_own_keeps_it(current: Client, spans: Recorder) -> None:
    mine = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    queue = current.queue("bare")
    queue.push(1, headers={"traceparent": mine})

    assert queue.reserve(1)[0].headers == {"traceparent": mine}


def test_a_send_that_fails_ends_its_span_as_an_error(current: Client, spans: Recorder, raw: Any) -> None:
    raw.set(keys_of(current).queue("bare").waiting, "damaged")

    with pytest.raises(ServerRefused):
        current.queue("bare").push(1)

    assert spans.sent[0].status.status_code is StatusCode.ERROR


def test_asyncio_enqueues_and_runs_are_traced(
    current: Client, run: Any, declared: list[str], spans: Recorder
) -> None:
    @job(queue="mail")
    class TracedAsync(Job):
        async def run(self) -> str:
            await asyncio.sleep(0)
            return f"{trace.get_current_span().get_span_context().span_id}"

    async def enqueue() -> None:
        async with async_client():
            await TracedAsync().aenqueue()
            await current_async_client().queue("bare").push(1)

    declared.append("TracedAsync")
    asyncio.run(enqueue())
    run(queues=["mail"])

    sent, pushed = spans.sent
    (ran,) = spans.run
    assert pushed.name == "publish bare"
    assert linked(ran) == [id_of(sent)]
    assert attributes_of(ran)["jobrunner.outcome"] == "succeeded"


def test_an_item_of_a_pipeline_is_linked_at_every_station_also_what_it_became(
    current: Client, run: Any, spans: Recorder
) -> None:
    line = Pipeline("traced", current)

    @line.station("raw", to="parts")
    def parse(item: Any) -> Any:
        return To("parts", item.payload, headers={"parsed": "yes"})

    @line.station("parts", to="kept", fan_out=True)
    def split(item: Any) -> list[int]:
        return [1, 2]

    @line.sink("kept")
    def keep(item: Any) -> None: ...

    line.push("raw", {"n": 1})
    run(queues=["traced/raw", "traced/parts", "traced/kept"])

    (sent,) = spans.sent
    assert [(span.name, attributes_of(span)["jobrunner.outcome"]) for span in spans.run] == [
        ("process traced/raw", "moved"), ("process traced/parts", "fanned_out"),
        ("process traced/kept", "succeeded"), ("process traced/kept", "succeeded"),
    ]  # fmt: skip
    assert {one for span in spans.run for one in linked(span)} == {id_of(sent)}
    assert attributes_of(spans.run[0])["jobrunner.moved_to"] == "traced/parts"
    assert attributes_of(spans.run[1])["jobrunner.children"] == 2


def test_the_steps_of_a_flow_are_linked_to_its_enqueue(
    current: Client, run: Any, declared: list[str], spans: Recorder
) -> None:
    @job(queue="mail")
    def traced_step(number: int) -> int:
        return number

    declared.append("traced_step")
    flow = chain(traced_step.bind(1), traced_step.bind(2)).enqueue()
    run(queues=["mail"])

    assert flow.result(timeout=30) == 2
    (sent,) = spans.sent
    assert [linked(span) for span in spans.run] == [[id_of(sent)]] * 2


def test_a_replay_is_linked_to_the_first_enqueue(current: Client, run: Any, flaky: Any, spans: Recorder) -> None:
    current.queue("mail").configure(history=60)
    task = flaky.enqueue()
    run(queues=["mail"], drain=True)
    current.queue("mail").replay(task.id)
    run(queues=["mail"], drain=True)

    assert [linked(span) for span in spans.run] == [[id_of(spans.sent[0])]] * 3


def test_a_task_that_is_given_up_is_dead_and_one_that_snoozes_is_no_error(
    current: Client, run: Any, declared: list[str], spans: Recorder
) -> None:
    @job(queue="mail", max_attempts=1)
    def traced_doomed(first: bool) -> Any:
        if first:
            return Snooze(in_=0.01)
        raise RuntimeError("no more")

    declared.append("traced_doomed")
    traced_doomed.enqueue(True)
    run(queues=["mail"])
    traced_doomed.enqueue(False)
    run(queues=["mail"])

    outcomes = {attributes_of(span)["jobrunner.outcome"]: span.status.status_code for span in spans.run}
    assert outcomes["dead"] is StatusCode.ERROR
    assert outcomes["snoozed"] is StatusCode.UNSET


def test_a_task_that_was_acknowledged_early_and_fails_is_an_error(
    current: Client, run: Any, declared: list[str], spans: Recorder
) -> None:
    """Nothing but the log and the trace knows of it: the task is gone, and is not tried again."""

    @job(queue="mail", ack="early")
    def traced_early(fails: bool) -> Any:
        if fails:
            raise RuntimeError("no more")
        return Snooze(in_=60)

    declared.append("traced_early")
    for fails in (True, False):
        traced_early.enqueue(fails)
    run(queues=["mail"], concurrency=1)

    assert [attributes_of(span)["jobrunner.outcome"] for span in spans.run] == ["acknowledged"] * 2
    failed, snoozed = spans.run
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "RuntimeError: no more")
    assert [event.name for event in failed.events] == ["exception"]
    assert (snoozed.status.status_code, list(snoozed.events)) == (StatusCode.UNSET, [])


def test_an_attempt_in_a_process_that_dies_has_a_span_and_its_child_knows_it(
    current: Client, run: Any, spans: Recorder
) -> None:
    told = jobs.traceparent_seen.enqueue()
    died = jobs.traced_exit.enqueue()
    run(modules=["tests.worker.traced_jobs"], queues=["traced"], executor="processes", concurrency=1)

    by_task = {attributes_of(span)["messaging.message.id"]: span for span in spans.run}
    assert told.result(timeout=30).split("-")[2] == f"{id_of(by_task[told.id]):016x}"
    assert by_task[died.id].status.status_code is StatusCode.ERROR
    assert attributes_of(by_task[died.id])["error.type"] == "AttemptCrashed"


@contextmanager
def carrying(**values: str) -> Iterator[None]:
    """Baggage of OpenTelemetry."""
    here = contexts.get_current()
    for name, value in values.items():
        here = baggage.set_baggage(name, value, here)
    token = contexts.attach(here)
    try:
        yield
    finally:
        contexts.detach(token)


@pytest.mark.parametrize("as_child", [False, True])
def test_the_baggage_of_the_enqueue_is_there_in_the_job_and_what_it_enqueues(
    current: Client, run: Any, declared: list[str], as_child: bool
) -> None:
    recorder = Recorder()
    instrument(recorder.provider, as_child=as_child)

    @job(queue="mail", result_ttl=60)
    def traced_parent() -> str:
        return jobs.baggage_seen.using(queue="mail").enqueue().id

    @job(queue="mail", result_ttl=60)
    async def traced_baggage() -> dict[str, object]:
        return dict(baggage.get_all())

    declared += ["traced_parent", "traced_baggage"]
    with carrying(tenant="ada & co", empty=""):
        parent, awaited = traced_parent.enqueue(), traced_baggage.enqueue()
    neighbour = jobs.baggage_seen.using(queue="mail").enqueue()
    run(queues=["mail"], concurrency=1)
    uninstrument()

    expected = {"tenant": "ada & co", "empty": ""}
    assert awaited.result(timeout=30) == expected
    assert current.task(parent.result(timeout=30)).result(timeout=30) == expected
    assert neighbour.result(timeout=30) == {}
    with recorder.provider.get_tracer("own").start_as_current_span("outer"):
        assert not baggage.get_all()


def test_baggage_is_there_in_a_child_process_and_where_a_program_reserves_an_item(
    current: Client, run: Any, spans: Recorder
) -> None:
    with carrying(tenant="ada"):
        told = jobs.baggage_seen.enqueue()
        current.queue("bare").push("x")
    run(modules=["tests.worker.traced_jobs"], queues=["traced"], executor="processes", concurrency=1)
    assert told.result(timeout=30) == {"tenant": "ada"}

    (lease,) = current.queue("bare").reserve(1)
    with processing(lease, queue="bare"):
        assert dict(baggage.get_all()) == {"tenant": "ada"}
    assert not baggage.get_all()


def test_baggage_stays_where_the_program_does_not_propagate_it(
    current: Client, spans: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with OTEL_PROPAGATORS=tracecontext."""
    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", CompositePropagator([TraceContextTextMapPropagator()]))
    with carrying(tenant="ada"):
        task = jobs.baggage_seen.enqueue()
    assert "baggage" not in read_headers(task.record().fields["headers"])


def test_a_tracer_that_fails_changes_nothing(current: Client, run: Any, flaky: Any) -> None:
    class Broken:
        def get_tracer(self, *_: Any, **__: Any) -> Any:
            return self

        def start_span(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("no spans today")

    instrument(Broken())  # type: ignore[arg-type]
    try:
        task = flaky.enqueue("hello")
        current.queue("bare").push(1)
        (lease,) = current.queue("bare").reserve()
        with processing(lease, queue="bare") as span:
            span.set_attribute("orders.id", 1)
        with pytest.raises(ZeroDivisionError), processing(lease, queue="bare"):
            raise ZeroDivisionError
        run(queues=["mail"], drain=True)
    finally:
        uninstrument()

    assert task.result(timeout=30) == "hello"


def test_a_span_that_cannot_be_ended_changes_nothing(current: Client, run: Any, flaky: Any) -> None:
    class Broken(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise RuntimeError(f"{span.name} goes nowhere")

    provider = TracerProvider()
    provider.add_span_processor(Broken())
    instrument(provider)
    try:
        task = flaky.enqueue("hello")
        (tracer,) = OBSERVERS
        assert tracer.run_batch("bare", "b", 1, list, lambda: 4) == 4
        current.queue("bare").push(1)
        with processing(current.queue("bare").reserve()[0], queue="bare"):
            pass
        run(queues=["mail"], drain=True)
    finally:
        uninstrument()

    assert task.result(timeout=30) == "hello"


def test_headers_of_a_batch_that_are_alike_are_written_once(spans: Recorder, current: Client) -> None:
    tasks = [Item(n) for n in range(3)]
    line = current.queue("bare")._ref
    with sending([line.task(item) for item in tasks], None) as traced:
        assert len({id(task.headers) for task in traced}) == 1


def test_nothing_is_traced_before_it_is_asked_for(current: Client) -> None:
    assert not is_instrumented()
    assert OBSERVERS == []
    current.queue("bare").push(1)
    (lease,) = current.queue("bare").reserve()
    assert lease.headers == {}
    with pytest.raises(UsageError, match="instrument"):
        processing(lease, queue="bare")


def test_a_span_of_a_batch_links_to_its_items_each_enqueue_once(current: Client, spans: Recorder) -> None:
    queue = current.queue("bare")
    queue.push_many(range(3))
    queue.push("more")
    current.queue("untraced").push(1)
    lease = Batches(broker_of(current), keys_of(queue)).take(10, lease_s=30)
    assert lease is not None
    (tracer,) = OBSERVERS

    assert tracer.run_batch("bare", lease.id, lease.size, lambda: lease.headers(128), lambda: 4) == 4
    error = ValueError("no")
    assert tracer.run_batch("bare", lease.id, lease.size, lambda: [None, b"damaged"], lambda: error) is error

    done, failed = spans.run
    assert linked(done) == [id_of(spans.sent[0]), id_of(spans.sent[1])]
    assert attributes_of(done)["messaging.batch.message_count"] == 4
    assert failed.links == ()
    assert failed.status.description == "ValueError: no"


def test_what_is_not_traced_does_not_import_the_tracing() -> None:
    code = "import sys, jobrunner.public, jobrunner.cli.work; print([one for one in sys.modules if 'tracing' in one])"
    attributes_of = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    assert attributes_of.stdout == "[]\n"
