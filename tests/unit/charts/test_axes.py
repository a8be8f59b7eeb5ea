"""Charts with axes inside: scales, gaps, titles of marks, and names that cannot break out."""

import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

import pytest

from jobrunner.charts import ChartSeries, fitting, halves, logarithmic, quarters, round_step, times
from jobrunner.charts.axes import columns, legend, lines, spans, stacked_bars

START = datetime(2026, 11, 21, 10, tzinfo=UTC)
STARTS = [START + timedelta(minutes=at) for at in range(5)]


def series(*values, name="p50"):
    return ChartSeries(name=name, look="s1", values=values)


def marks(drawn, tag, look):
    return [part for part in ET.fromstring(drawn).iter(tag) if look in (part.get("class") or "").split()]


@pytest.mark.parametrize(("most", "ticks"), [(10, (0, 2.5, 5, 7.5, 10)), (11, (0, 5, 10, 15)), (0, (0, 0.25))])
def test_a_linear_axis_starts_at_zero_and_holds_the_most(most, ticks):
    scale = quarters(most, 100, 0)

    assert scale.ticks == pytest.approx(ticks)
    assert (scale.at(0), scale.at(scale.high)) == (100, 0)


def test_a_time_axis_may_reach_from_the_first_to_the_last_year():
    """As in a report on tasks of which one has a wrong clock: the end of its last bucket was beyond all instants."""
    starts = [datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
    drawn = stacked_bars(starts, 7 * 86_400, [series(1, 2)], "tasks/s")
    assert 3 < len(marks(drawn, "line", "notch")) < 10


def test_a_small_axis_has_three_ticks():
    assert halves(5, 0, 90).ticks == (0, 3, 6)


def test_values_of_different_magnitudes_get_a_logarithmic_axis():
    assert fitting([1, 49], 0, 90).is_log is False
    wide = fitting([3, 150], 0, 90)
    assert (wide.is_log, wide.ticks) == (True, (1, 10, 100, 1000))
    assert wide.at(10) == pytest.approx(30)
    assert wide.at(0.1) == wide.start


def test_zero_has_a_place_of_its_own_on_a_logarithmic_axis():
    scale = fitting([0, 3, 150], 0, 100)
    assert (scale.is_log, scale.ticks) == (True, (0, 1, 10, 100, 1000))
    assert (scale.at(0), scale.at(0.5), scale.at(1), scale.at(10), scale.at(1000)) == pytest.approx((0, 5, 10, 40, 100))


def test_shares_are_drawn_linearly_from_zero():
    drawn = lines(STARTS, 60, [series(0, 0.01, 0.02, 5, 0)], "% of tasks", is_linear=True)

    heights = [float(mark.get("cy")) for mark in marks(drawn, "circle", "s1")]
    assert heights[0] == heights[-1] == max(heights)
    ticks = [mark.text for mark in marks(drawn, "text", "tick")]
    assert ticks[0] == "0"
    assert "0.01" not in ticks


def test_labels_of_columns_do_not_touch():
    hours = [f"{hour:02}" for hour in range(24)]
    shown = [mark.text for mark in marks(columns(hours, [series(*[1.0] * 24)], "hour", "%"), "text", "tick")]
    assert [label for label in shown if label in hours] == hours[::2]


def test_a_logarithmic_axis_has_ticks_at_powers_of_ten_within_it():
    assert logarithmic(5, 20_000, 0, 1).ticks == (10, 100, 1000, 10_000)


def test_an_axis_of_time_has_ticks_at_round_times():
    scale = times(START + timedelta(seconds=10), START + timedelta(minutes=30), 0, 1)

    assert [datetime.fromtimestamp(at, UTC).minute for at in scale.ticks] == [5, 10, 15, 20, 25, 30]
    assert round_step(24 * 3600, 7) == 4 * 3600


def test_a_line_has_a_gap_where_there_is_no_value_and_a_dot_for_each_value():
    drawn = lines(STARTS, 60, [series(1, 2, None, 2, 1)], "run, ms")

    assert len(marks(drawn, "path", "line")) == 2
    titles = [mark.findtext("title") for mark in marks(drawn, "circle", "s1")]
    assert titles[0] == "2026-11-21 10:00:00 · p50: 1.00 run, ms"
    assert len(titles) == 4


def test_bars_stack_from_the_floor():
    drawn = stacked_bars(STARTS[:1], 60, [series(3), series(1, name="dead")], "tasks/s", START)

    lower, upper = marks(drawn, "rect", "s1")
    assert float(upper.get("y")) + float(upper.get("height")) == pytest.approx(float(lower.get("y")), abs=0.02)
    assert len(marks(drawn, "line", "mark")) == 1


def test_a_span_reaches_from_the_first_to_the_last_value_of_its_row():
    drawn = spans(["mail", "empty"], [series(10, None), series(20, None, name="p99")], "run, ms")

    (line,) = marks(drawn, "line", "span")
    assert [line.get("x1"), line.get("x2")] == [dot.get("cx") for dot in marks(drawn, "circle", "s1")]


@pytest.mark.parametrize(
    "drawn",
    [
        lines(STARTS[:1], 60, [series(1, name='"><script>')], '"><script>'),
        columns(['"><script>'], [series(1, name='"><script>')], "<", "<"),
        spans(['"><script>'], [series(1)], "<"),
        legend([series(1, name="<script>")]),
    ],
)
def test_names_cannot_break_out_of_a_chart(drawn):
    assert "<script>" not in drawn
    ET.fromstring(drawn)
