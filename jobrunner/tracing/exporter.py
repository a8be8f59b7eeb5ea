"""Starts tracing and exporting spans when it is imported: the module that `jobrunner work --otel` loads.

Child processes that run attempts import the same modules as their worker, including this one, so they are traced, too.
A program calls `jobrunner.tracing.instrument` and sets up its provider itself.
"""

import atexit
import os
import sys
import threading
from importlib import import_module

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

from jobrunner.errors import InvalidOption, UsageError
from jobrunner.formatting import install_command
from jobrunner.logs import IDENTITY, SafeLogger
from jobrunner.tracing import instrument

_LAST_SPANS_S = 3.0
_log = SafeLogger("jobrunner.tracing")


def export_spans() -> None:
    """Starts tracing with the provider that is set up already (by `opentelemetry-instrument`, say), else with a new
    one.

    The new provider reads OpenTelemetry's usual variables: OTEL_TRACES_EXPORTER (otlp, console or none),
    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER.
    """
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        own = {} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: "jobrunner"}
        provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        if (exporter := _exporter(os.environ.get("OTEL_TRACES_EXPORTER", "otlp"))) is not None:
            provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        _send_the_last_at_exit(provider)
    instrument()


def _send_the_last_at_exit(provider: TracerProvider) -> None:
    """Exports the last spans at exit with a time limit. The provider's own shutdown would delay a stopping worker for
    half a minute while the collector is unreachable."""
    is_over = threading.Event()

    def send() -> None:
        is_over.wait()
        provider.shutdown()

    def end() -> None:
        is_over.set()
        sender.join(_LAST_SPANS_S)
        if sender.is_alive():
            _log.warning("the last spans were not sent: the collector does not answer", waited_s=_LAST_SPANS_S)

    sender = threading.Thread(target=send, name="jobrunner-spans", daemon=True)
    sender.start()  # started now, as Python starts no threads at exit
    atexit.register(end)


def _exporter(name: str) -> SpanExporter | None:
    if name == "none":
        return None
    if name == "console":
        if IDENTITY.log_format != "json":
            return ConsoleSpanExporter(out=sys.stderr)
        return ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: f"{span.to_json(indent=None)}\n")
    if name != "otlp":
        raise InvalidOption(f"OTEL_TRACES_EXPORTER={name!r}: choose otlp, console or none, or set one up in code")
    told = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = told or "http/protobuf"
    if protocol not in ("http/protobuf", "grpc"):
        raise InvalidOption(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r}: choose http/protobuf or grpc")
    way = protocol.partition("/")[0]
    try:
        made: SpanExporter = import_module(f"opentelemetry.exporter.otlp.proto.{way}.trace_exporter").OTLPSpanExporter()
    except ImportError as error:
        remedy = "pip install opentelemetry-exporter-otlp-proto-grpc" if way == "grpc" else install_command("otel")
        raise UsageError(f"no OTLP exporter for {way} is installed ({error}); {remedy}") from error
    return made


export_spans()
