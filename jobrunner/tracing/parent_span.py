"""The span that enqueued a task, read from its headers.

Tasks that were enqueued together have the same headers, so what was read is remembered; and what everybody writes,
version 00 and no tracestate, is read without the propagator, which takes five times as long.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jobrunner.client.item import read_headers

W3C = TraceContextTextMapPropagator()
NOWHERE = Context()
_REMEMBERED = 128
_usual = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})").fullmatch


def read_origin(headers: Mapping[str, str]) -> SpanContext:
    """The context of the span; an invalid one without a span."""
    found = _usual(headers.get("traceparent", ""))
    if found is None or "tracestate" in headers:
        return trace.get_current_span(W3C.extract(headers, context=NOWHERE)).get_span_context()
    trace_id, span_id, flags = found.groups()
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


@lru_cache(_REMEMBERED)
def origin_of(headers: bytes | None) -> SpanContext:
    """The same of headers as they travel."""
    return read_origin(read_headers(headers))


@lru_cache(_REMEMBERED)
def way_of(headers: bytes | None, as_child: bool) -> tuple[Context, tuple[Link, ...]]:
    """Where the span of an attempt begins, and what it links to."""
    return begin_from(origin_of(headers), as_child)


def begin_from(origin: SpanContext, as_child: bool) -> tuple[Context, tuple[Link, ...]]:
    """The same of an origin."""
    if not origin.is_valid:
        return NOWHERE, ()
    if as_child:
        return trace.set_span_in_context(NonRecordingSpan(origin), NOWHERE), ()
    return NOWHERE, (Link(origin),)
