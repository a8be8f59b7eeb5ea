"""OpenTelemetry tracing: a span for the enqueue of a task, a span for each attempt at it, and links between them.

The only part of jobrunner that imports opentelemetry, and only when `instrument` is called. Names and attributes of
spans follow the semantic conventions for messaging systems
(https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from jobrunner.errors import UsageError
from jobrunner.formatting import install_command
from jobrunner.observers import OBSERVERS

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["instrument", "is_instrumented", "processing", "uninstrument"]

_tracers: list[Any] = []
"""The tracer of this process, if it is traced."""


class Leased(Protocol):
    """Attributes of an item, from a lease of a bare queue."""

    @property
    def id(self) -> str: ...
    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def attempts(self) -> int: ...


def instrument(tracer_provider: "TracerProvider | None" = None, *, as_child: bool = False) -> None:
    """Traces the enqueues and attempts of this process from now on. A further call replaces the settings.

    `tracer_provider` is the provider of the application; default: the global provider at the time of each span. With
    `as_child` attempts are children of the span that enqueued their task, in one trace; otherwise they begin new traces
    and link to it, as a task may run hours later and many times. Raises UsageError when OpenTelemetry is not installed.
    """
    made = _tracer(tracer_provider, as_child)
    uninstrument()
    _tracers.append(made)
    OBSERVERS.append(made)


def uninstrument() -> None:
    """Ends tracing. Spans that began before end as usual."""
    while _tracers:
        OBSERVERS.remove(_tracers.pop())


def is_instrumented() -> bool:
    """Whether this process is traced."""
    return bool(_tracers)


def processing(lease: Leased, *, queue: str) -> AbstractContextManager[Any]:
    """A span for the processing of an item that a program reserved: `with processing(lease, queue="orders"):`.

    Links to the push; an error that leaves the block is recorded. Raises UsageError unless `instrument` was called.
    """
    if not _tracers:
        raise UsageError("nothing is traced; call jobrunner.tracing.instrument() first")
    around: Callable[..., AbstractContextManager[Any]] = _tracers[0].processing
    return around(queue, lease.id, lease.headers, lease.attempts)


def _tracer(provider: "TracerProvider | None", as_child: bool) -> Any:
    try:
        from jobrunner.tracing.tracer import OpenTelemetryTracer
    except ImportError as error:
        raise UsageError(f"OpenTelemetry is not installed ({error}); {install_command('otel')}") from error
    return OpenTelemetryTracer(provider, as_child=as_child)
