"""Spans: the parent of an attempt's span, read from the task's headers, and the attributes of every span.

Tasks that were enqueued together have the same headers, so parents are cached by headers. The usual header, version 00
without a tracestate, is parsed without the propagator, which takes five times as long. Attributes follow
OpenTelemetry's conventions for messaging; jobrunner's own begin with `jobrunner.`.
"""

import re
import traceback
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jobrunner.attempt import Attempt
from jobrunner.client.item import read_headers
from jobrunner.outcome import (
    Acknowledged,
    Cancelled,
    Dropped,
    Failed,
    FannedOut,
    Moved,
    Outcome,
    Released,
    Snoozed,
    Unknown,
)
from jobrunner.redaction import in_error
from jobrunner.retry import is_spent
from jobrunner.task import Task

W3C = TraceContextTextMapPropagator()
BAGGAGE = W3CBaggagePropagator()
NOWHERE = Context()
_REMEMBERED = 128
_usual = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})").fullmatch
SCHEMA_URL = "https://opentelemetry.io/schemas/1.27.0"
"""The version of the conventions that the attributes follow."""
_NAMES: dict[type, str] = {
    Acknowledged: "acknowledged", Cancelled: "cancelled", Dropped: "dropped", Moved: "moved", Released: "released",
    Snoozed: "snoozed", FannedOut: "fanned_out", Unknown: "unknown",
}  # fmt: skip


def read_origin(headers: Mapping[str, str]) -> SpanContext:
    """The span context in headers; an invalid context without a span."""
    found = _usual(headers.get("traceparent", ""))
    if found is None or "tracestate" in headers:
        return trace.get_current_span(W3C.extract(headers, context=NOWHERE)).get_span_context()
    trace_id, span_id, flags = found.groups()
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


@lru_cache(_REMEMBERED)
def origin_of(headers: bytes | None) -> SpanContext:
    """The span context in encoded headers."""
    return read_origin(read_headers(headers))


@lru_cache(_REMEMBERED)
def way_of(headers: bytes | None, as_child: bool) -> tuple[Context, tuple[Link, ...]]:
    """The parent context, with the baggage, and the links of an attempt's span."""
    return begin_from(read_headers(headers), as_child)


def begin_from(headers: Mapping[str, str], as_child: bool) -> tuple[Context, tuple[Link, ...]]:
    """The parent context, with the baggage, and the links of a span, for the headers of its task."""
    origin, context = read_origin(headers), baggage_in(headers)
    if not origin.is_valid:
        return context, ()
    if as_child:
        return trace.set_span_in_context(NonRecordingSpan(origin), context), ()
    return context, (Link(origin),)


def baggage_in(headers: Mapping[str, str]) -> Context:
    """A context with the baggage in headers and nothing else."""
    return BAGGAGE.extract(headers, context=NOWHERE) if "baggage" in headers else NOWHERE


def of_sending(queue: str, tasks: Sequence[Task]) -> dict[str, Any]:
    """Attributes of a producer span."""
    attributes = _shared(queue, "publish", "send")
    if len(tasks) == 1:
        return attributes | {"messaging.message.id": tasks[0].id} | _job(tasks[0].type)
    types = {task.type for task in tasks}
    return attributes | {"messaging.batch.message_count": len(tasks)} | (_job(types.pop()) if len(types) == 1 else {})


def of_attempt(attempt: Attempt) -> dict[str, Any]:
    """Attributes of an attempt as it begins."""
    said: dict[str, Any] = {  # one literal, for speed: built for every attempt
        "messaging.system": "jobrunner",
        "messaging.destination.name": attempt.queue,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": attempt.id,
        "jobrunner.attempt": attempt.number,
        "jobrunner.max_attempts": attempt.max_attempts,
    }
    if attempt.type:
        said["jobrunner.job"] = attempt.type
    return said


def of_item(queue: str, task_id: str, attempt: int) -> dict[str, Any]:
    """Attributes of an item that a program reserved itself."""
    return _shared(queue, "process", "process") | {"messaging.message.id": task_id, "jobrunner.attempt": attempt}


def of_batch(queue: str, batch: str, size: int) -> dict[str, Any]:
    """Attributes of a batch."""
    return _shared(queue, "process", "process") | {"messaging.batch.message_count": size, "jobrunner.batch.id": batch}


def end(span: Span, attempt: Attempt, outcome: Outcome | None) -> None:
    """Records the outcome of an attempt, and ends its span. Without an outcome the attempt was interrupted and is
    released."""
    if not span.is_recording():  # the span was not sampled, or the job ended it
        span.end()
        return
    try:
        span.set_attribute("jobrunner.outcome", name_of(attempt, outcome))
        if isinstance(outcome, Failed | Acknowledged) and outcome.error:
            fail(span, outcome.error)
        if isinstance(outcome, Moved):
            span.set_attribute("jobrunner.moved_to", outcome.queue)
        elif isinstance(outcome, FannedOut):
            span.set_attribute("jobrunner.children", len(outcome.children))
    finally:
        span.end()


def name_of(attempt: Attempt, outcome: Outcome | None) -> str:
    """The name of the outcome: succeeded, failed (to be retried), dead, ..."""
    if isinstance(outcome, Failed):
        return "dead" if not outcome.retry or is_spent(attempt.number, attempt.max_attempts or 0) else "failed"
    return "released" if outcome is None else _NAMES.get(type(outcome), "succeeded")


def raised(span: Span, error: BaseException) -> None:
    """Records an error with its traceback, without hidden values."""
    first = f"{type(error).__name__}: {error}".replace("\n", " ")
    lines = traceback.format_exception(error) if error.__traceback__ else ()
    fail(span, in_error("\n".join((first, "".join(lines)))))


def fail(span: Span, error: str) -> None:
    """Records an error as text: its first line is `Type: message`, the rest a traceback."""
    first, _, trace_text = error.partition("\n")
    kind, _, message = first.partition(": ")
    exception = {"exception.type": kind, "exception.message": message}
    span.add_event("exception", exception | ({"exception.stacktrace": trace_text} if trace_text else {}))
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, first))


def _shared(queue: str, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": "jobrunner",
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _job(name: str) -> dict[str, Any]:
    return {"jobrunner.job": name} if name else {}
