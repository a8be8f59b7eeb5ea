"""Which span enqueued a task: whatever its headers are, the same that OpenTelemetry's propagator finds in them."""

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jobrunner.attempt import Attempt
from jobrunner.outcome import Succeeded
from jobrunner.tracing import spans
from jobrunner.tracing.spans import begin_from, origin_of, read_origin, way_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
USUAL = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": USUAL},
        {"traceparent": f"00-{TRACE}-{SPAN}-00", "own": "kept"},
        {"traceparent": USUAL, "tracestate": "vendor=1,other=2"},
        {"traceparent": USUAL, "tracestate": "damaged"},
        {"traceparent": f" {USUAL}\t"},
        {"traceparent": f"{USUAL}\n"},
        {"traceparent": f"{USUAL}-more"},
        {"traceparent": f"cc-{TRACE}-{SPAN}-01-more"},
        {"traceparent": f"ff-{TRACE}-{SPAN}-01"},
        {"traceparent": f"00-{'0' * 32}-{SPAN}-01"},
        {"traceparent": f"00-{TRACE}-{'0' * 16}-01"},
        {"traceparent": USUAL.upper()},
        {"traceparent": f"00-{TRACE[:-1]}_-{SPAN}-01"},
        {"traceparent": "x" * 600},
        {"traceparent": ""},
        {"own": "alone"},
        {},
    ],
)
def test_an_origin_is_what_the_propagator_finds(headers: dict[str, str]) -> None:
    found = TraceContextTextMapPropagator().extract(headers, context=Context())
    expected = trace.get_current_span(found).get_span_context()

    for origin in (read_origin(headers), origin_of(msgspec.json.encode(headers))):
        assert origin.is_valid == expected.is_valid
        assert origin == expected or not expected.is_valid


@pytest.mark.parametrize("raw", [None, b"", b"damaged", b'{"traceparent": 1}'])
def test_damaged_headers_have_no_origin(raw: bytes | None) -> None:
    assert not origin_of(raw).is_valid
    assert way_of(raw, False) == way_of(raw, True) == begin_from({}, True)


def test_what_was_enqueued_together_shares_what_was_read() -> None:
    raw = msgspec.json.encode({"traceparent": USUAL})
    context, links = way_of(raw, False)

    assert way_of(bytes(bytearray(raw)), False)[1] is links
    assert [link.context for link in links] == [origin_of(raw)]
    assert not context


def test_nothing_is_made_for_a_span_that_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt("mail", "1", "1", 0.0, 0.0, "greet", None, 1, 0, 0.0, 0, None)
    monkeypatch.setattr(spans, "name_of", lambda *_: pytest.fail("the name is not needed"))

    spans.end(NonRecordingSpan(INVALID_SPAN_CONTEXT), attempt, Succeeded())
