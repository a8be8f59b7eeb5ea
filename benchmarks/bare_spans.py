"""The time of OpenTelemetry's own SDK for a span like that of an attempt, without jobrunner.

    python -m benchmarks.bare_spans
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.results import Summary, Table

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SHARES = {"tracing": 1.0, "tracing 1 in 100": 0.01}


def provider(share: float) -> "TracerProvider":
    """Samples this share of what begins here. Spans are exported into memory, which is less work than to send them."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    made = TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)))
    made.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    return made


def span_us(share: float, spans: int = 20_000) -> float:
    """Microseconds a span: begun with a link and the attributes of an attempt, current for a moment, ended."""
    from opentelemetry import context, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

    made = provider(share)
    tracer, nowhere = made.get_tracer("bare"), Context()
    links = [Link(SpanContext(1 << 100, 1 << 50, is_remote=True, trace_flags=TraceFlags(1)))]
    began = time.perf_counter()
    for n in range(spans):
        attributes: dict[str, str | int] = {
            "messaging.system": "jobrunner",
            "messaging.destination.name": "bench",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": str(n),
            "jobrunner.attempt": 1,
            "jobrunner.max_attempts": 5,
            "jobrunner.job": "Noop",
        }
        span = tracer.start_span(
            "process bench", context=nowhere, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )
        context.detach(context.attach(trace.set_span_in_context(span)))
        span.set_attribute("jobrunner.outcome", "succeeded")
        span.end()
    took = time.perf_counter() - began
    made.shutdown()
    return 1e6 * took / spans


def table(found: Mapping[str, Sequence[float]]) -> Table:
    """Microseconds of a span at each share, and their spread."""
    summaries = {name: Summary.of(took) for name, took in found.items()}
    rows = [(f"bare spans, {name}", one.text(1), one.spread(1)) for name, one in summaries.items()]
    return Table(("OpenTelemetry alone", "µs a span", "spread"), rows, left=(0, 2))


if __name__ == "__main__":
    print(table({name: [span_us(share) for _ in range(5)] for name, share in SHARES.items()}).text())
