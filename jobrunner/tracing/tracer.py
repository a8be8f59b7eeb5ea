"""Records tasks as spans. Invariant: an error of tracing (an exporter, a damaged header) never becomes an error of a
task.

The context of the span that enqueued a task travels in its headers, as `traceparent`
(https://www.w3.org/TR/trace-context/), and the baggage of that moment as `baggage`. Retries and moves keep headers and
a replay copies them, so every attempt finds both, wherever it runs.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, TracerProvider

from jobrunner.attempt import Attempt
from jobrunner.client.item import read_headers, write_headers
from jobrunner.formatting import DISTRIBUTION
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Outcome
from jobrunner.task import Task
from jobrunner.tracing import spans
from jobrunner.tracing.spans import BAGGAGE, NOWHERE, W3C, baggage_in, begin_from, origin_of, way_of

_LINKS = 128
"""Most links of a span: the default limit of OpenTelemetry's SDKs."""
_log = SafeLogger("jobrunner.tracing")
T = TypeVar("T")


class OpenTelemetryTracer:
    """Observes enqueues and attempts (see middleware.py). `provider` None: the global provider."""

    def __init__(self, provider: TracerProvider | None, *, as_child: bool) -> None:
        self._tracer = trace.get_tracer(
            "jobrunner", version(DISTRIBUTION), tracer_provider=provider, schema_url=spans.SCHEMA_URL
        )
        self._as_child = as_child

    @contextmanager
    def sending(self, tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
        """A producer span for each queue, current while the tasks are sent."""
        with ExitStack() as ends:
            yield self._tagged(tasks, ends)

    def run(self, attempt: Attempt, work: Callable[[Attempt], Outcome]) -> Outcome:
        """A consumer span, current while the attempt runs."""
        begun = self._begun(attempt)
        if begun is None:
            return work(attempt)
        span, context = begun
        token = contexts.attach(context)
        outcome: Outcome | None = None
        try:
            outcome = work(attempt)
        finally:
            contexts.detach(token)
            _end(span, attempt, outcome)
        return outcome

    async def run_async(self, attempt: Attempt, work: Callable[[Attempt], Awaitable[Outcome]]) -> Outcome:
        """`run` for a coroutine; a cancelled attempt is released."""
        begun = self._begun(attempt)
        if begun is None:
            return await work(attempt)
        span, context = begun
        token = contexts.attach(context)
        outcome: Outcome | None = None
        try:
            outcome = await work(attempt)
        finally:
            contexts.detach(token)
            _end(span, attempt, outcome)
        return outcome

    def run_batch(
        self, queue: str, batch: str, size: int, headers: Callable[[], Sequence[bytes | None]], work: Callable[[], T]
    ) -> T:
        """One consumer span with links to the first items, at most 128 different ones."""
        span = self._begun_batch(queue, batch, size, headers)
        if span is None:
            return work()
        with _ended(span):
            result = work()
            if isinstance(result, BaseException):
                _quietly(partial(spans.raised, span, result))
        return result

    def current(self) -> str:
        """The traceparent of the current span."""
        return _carrier().get("traceparent", "")

    @contextmanager
    def within(self, traceparent: str, headers: bytes | None) -> Iterator[None]:
        """Makes a span of another process the current one, with the baggage in the headers of its task."""
        here = _with_baggage(baggage_in(read_headers(headers)))
        token = contexts.attach(W3C.extract({"traceparent": traceparent}, context=here))
        try:
            yield
        finally:
            contexts.detach(token)

    @contextmanager
    def processing(self, queue: str, task_id: str, headers: Mapping[str, str], attempt: int) -> Iterator[Span]:
        """A consumer span for an item that a program reserved itself."""
        begun = self._begun_item(queue, task_id, headers, attempt)
        if begun is None:
            yield trace.INVALID_SPAN
            return
        span, context = begun
        token = contexts.attach(context)
        try:
            with _ended(span):
                yield span
        finally:
            contexts.detach(token)

    def _tagged(self, tasks: Sequence[Task], ends: ExitStack) -> Sequence[Task]:
        try:
            return self._with_spans(tasks, ends)
        except Exception as error:
            _log.warning("enqueued without a trace", error=str(error))
            return tasks

    def _with_spans(self, tasks: Sequence[Task], ends: ExitStack) -> Sequence[Task]:
        here = contexts.get_current()
        by_queue: dict[str, list[Task]] = {}
        for task in tasks:
            by_queue.setdefault(task.queue, []).append(task)
        carriers: dict[str, dict[str, str]] = {}
        for queue, sent in by_queue.items():
            span = self._tracer.start_span(
                f"publish {queue}",
                context=here,
                kind=SpanKind.PRODUCER,
                attributes=spans.of_sending(queue, sent),
            )
            carriers[queue] = _carrier(trace.set_span_in_context(span))
            ends.enter_context(_ended(span))
        known: dict[tuple[str, bytes | None], bytes | None] = {}
        return [_with_header(task, carriers[task.queue], known) for task in tasks]

    def _begun(self, attempt: Attempt) -> tuple[Span, Context] | None:
        try:
            way = way_of(attempt.headers, self._as_child)
            return self._consumer(attempt.queue, way, spans.of_attempt(attempt))
        except Exception as error:
            _log.warning("run without a trace", task=attempt.id, error=str(error))
            return None

    def _begun_item(
        self, queue: str, task_id: str, headers: Mapping[str, str], attempt: int
    ) -> tuple[Span, Context] | None:
        try:
            way = begin_from(headers, self._as_child)
            return self._consumer(queue, way, spans.of_item(queue, task_id, attempt))
        except Exception as error:
            _log.warning("item without a trace", task=task_id, error=str(error))
            return None

    def _consumer(
        self, queue: str, way: tuple[Context, tuple[Link, ...]], attributes: dict[str, Any]
    ) -> tuple[Span, Context]:
        """The span, and the context to run in."""
        context, links = way
        here = _with_baggage(context)
        span = self._tracer.start_span(
            f"process {queue}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )
        return span, trace.set_span_in_context(span, here)

    def _begun_batch(
        self, queue: str, batch: str, size: int, headers: Callable[[], Sequence[bytes | None]]
    ) -> Span | None:
        try:
            return self._tracer.start_span(
                f"process {queue}",
                context=NOWHERE,
                kind=SpanKind.CONSUMER,
                attributes=spans.of_batch(queue, batch, size),
                links=[Link(origin) for origin in _origins(headers())],
            )
        except Exception as error:
            _log.warning("batch without a trace", batch=batch, error=str(error))
            return None


def _carrier(context: Context | None = None) -> dict[str, str]:
    found: dict[str, str] = {}
    W3C.inject(found, context=context)
    if baggage.get_all(context) and "baggage" in propagate.get_global_textmap().fields:
        BAGGAGE.inject(found, context=context)
    return found


def _with_baggage(context: Context) -> Context:
    """The current context with the baggage of another one."""
    here = contexts.get_current()
    for name, value in baggage.get_all(context).items():
        here = baggage.set_baggage(name, value, here)
    return here


def _with_header(task: Task, carrier: dict[str, str], known: dict[tuple[str, bytes | None], bytes | None]) -> Task:
    """The task with the headers of its span. Headers within a batch are mostly equal, and are encoded once."""
    if not carrier:
        return task
    key = (task.queue, task.headers)
    if key not in known:
        own = read_headers(task.headers)
        known[key] = task.headers if "traceparent" in own else write_headers(carrier | own)
    return msgspec.structs.replace(task, headers=known[key])


def _origins(headers: Sequence[bytes | None]) -> list[SpanContext]:
    """The distinct spans that enqueued these items."""
    found: dict[tuple[int, int], SpanContext] = {}
    for raw in headers:
        origin = origin_of(raw)
        if origin.is_valid:
            found.setdefault((origin.trace_id, origin.span_id), origin)
    return list(found.values())[:_LINKS]


@contextmanager
def _ended(span: Span) -> Iterator[None]:
    """Makes the span current within the block, records the block's error, and ends the span with it."""
    try:
        # OpenTelemetry would record the error unchanged, with values that are hidden everywhere else.
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield
    except Exception as error:
        _quietly(partial(spans.raised, span, error))
        raise
    finally:
        _quietly(span.end)


def _end(span: Span, attempt: Attempt, outcome: Outcome | None) -> None:
    try:
        spans.end(span, attempt, outcome)
    except Exception as error:
        _log.warning("a span was not ended as it should", error=str(error), task=attempt.id)


def _quietly(end: Callable[[], None]) -> None:
    try:
        end()
    except Exception as error:
        _log.warning("a span was not ended as it should", error=str(error))
