"""Jobs that child processes of a worker import: one records the span it runs in, one dies."""

import os
import sys

from opentelemetry import baggage, trace

from jobrunner import job
from jobrunner.tracing import instrument

if (spec := sys.modules["__main__"].__spec__) is not None and spec.name == "jobrunner.worker.run.child":
    instrument()  # in a child only: the test does it in its own process


@job(queue="traced", result_ttl=60)
def traceparent_seen() -> str:
    """The span that is current in the child."""
    found = trace.get_current_span().get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-01"


@job(queue="traced", result_ttl=60)
def baggage_seen() -> dict[str, object]:
    """The baggage that is current."""
    return dict(baggage.get_all())


@job(queue="traced", max_attempts=1)
def traced_exit() -> None:
    """Ends its process."""
    os._exit(3)
