"""The spans that are measured without jobrunner."""

import pytest

from benchmarks import bare_spans


@pytest.mark.parametrize("share", bare_spans.SHARES.values())
def test_a_span_takes_a_time(share: float) -> None:
    assert bare_spans.span_us(share, 5) > 0


def test_each_share_has_a_line() -> None:
    title, line = bare_spans.table({"tracing": [40.0, 41.25, 50.0]}).text().splitlines()
    assert title.split() == ["OpenTelemetry", "alone", "µs", "a", "span", "spread"]
    assert line.split() == ["bare", "spans,", "tracing", "41.2", "40.0–50.0"]
