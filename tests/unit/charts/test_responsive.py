"""Charts: the drawing follows from the values, and no input can break out of the SVG."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

import pytest

from jobrunner.charts import ChartSeries, nice_top
from jobrunner.charts.responsive import bars, lines, shares, sparkline, ticks

START = datetime(2026, 11, 21, 10, tzinfo=UTC)


def minutes(count):
    return [START + timedelta(minutes=at) for at in range(count)]


def svg(markup):
    found, *_ = re.findall(r"<svg.*?</svg>", str(markup))
    return ET.fromstring(found)


@pytest.mark.parametrize(("most", "top"), [(0, 1), (1, 1), (3, 3), (7, 8), (10, 10), (11, 20), (1204, 2000), (0.2, 1)])
def test_an_axis_ends_at_a_round_number_that_holds_the_most(most, top):
    assert nice_top(most) == top


def test_bars_stack_and_the_highest_stack_reaches_its_share_of_the_axis():
    drawn = svg(
        bars(
            minutes(2),
            [ChartSeries(name="a", look="good", values=[3, 0]), ChartSeries(name="b", look="bad", values=[1, None])],
            title="t",
        )
    )

    fills = [part for part in drawn if part.get("class", "").startswith("fill")]

    assert [part.get("class") for part in fills] == ["fill good", "fill bad"]
    assert [float(part.get("y")) for part in fills] == [40.0, 0.0]  # 3 of 4 from below, then the fourth


def test_a_line_has_a_gap_where_there_is_no_value():
    drawn = svg(
        lines(minutes(5), [ChartSeries(name="p50", look="pending", values=[1, 2, None, 2, 1])], title="run", unit=" ms")
    )

    assert sum(part.get("class") == "line pending" for part in drawn) == 2


def test_each_step_of_a_chart_tells_its_values():
    drawn = svg(lines(minutes(2), [ChartSeries(name="p50", look="pending", values=[1, 20])], title="run", unit=" ms"))

    assert [part.get("data-tip") for part in drawn if part.get("class") == "hot"] == [
        "Nov 21 10:00 · p50 1 ms",
        "Nov 21 10:01 · p50 20 ms",
    ]


@pytest.mark.parametrize(
    ("count", "apart", "labels"),
    [
        (60, timedelta(minutes=1), ["10:00", "10:10", "10:20", "10:30", "10:40", "10:50"]),
        (24, timedelta(hours=1), ["12:00", "16:00", "20:00", "00:00", "04:00", "08:00"]),
        (72, timedelta(hours=1), ["12:00", "00:00", "12:00", "00:00", "12:00", "00:00"]),
        (168, timedelta(hours=1), ["Nov 22", "Nov 23", "Nov 24", "Nov 25", "Nov 26", "Nov 27", "Nov 28"]),
        (1, timedelta(hours=1), []),
    ],
)
def test_the_axis_of_time_is_marked_at_round_times(count, apart, labels):
    assert [label for _, label in ticks([START + apart * at for at in range(count)])] == labels


def test_a_plot_of_nothing_says_so_and_half_a_task_is_no_mark():
    drawn = str(bars(minutes(2), [ChartSeries(name="a", look="good", values=[0, None])], title="t"))

    assert "Nothing was measured" in drawn
    assert "0.5" not in drawn


@pytest.mark.parametrize(
    "markup",
    [
        bars(minutes(1), [ChartSeries(name='"><script>', look="good", values=[1])], title='"><script>', unit="<"),
        sparkline([1, 2], label='"><script>'),
        shares([('"><script>', "good", 1)], label='"><script>'),
    ],
)
def test_names_cannot_break_out_of_a_chart(markup):
    assert "<script>" not in str(markup)
    svg(markup)


@pytest.mark.parametrize(
    "markup", [bars([], [], title="t"), sparkline([], label="l"), shares([], label="l")]
)
def test_nothing_to_draw_is_drawn_empty(markup):
    svg(markup)


def test_no_chart_has_a_style_of_its_own():
    drawn = bars(minutes(1), [ChartSeries(name="a", look="good", values=[1])], title="t") + sparkline([1, 2], label="l")

    assert "style=" not in drawn


def test_a_mark_is_drawn_at_its_step_and_told_there_and_in_the_legend():
    marks = [(START + timedelta(minutes=2), "release a"), (START + timedelta(minutes=2, seconds=9), "release <b>"),
             (START - timedelta(minutes=1), "before"), (START + timedelta(minutes=5), "after")]  # fmt: skip
    series = [ChartSeries(name="p50", look="pending", values=[1] * 5)]

    markup = lines(minutes(5), series, title="run", unit=" ms", marks=marks)
    drawn = svg(markup)

    assert [part.get("x1") for part in drawn if part.get("class") == "mark"] == ["300"]
    tips = [part.get("data-tip") for part in drawn if part.get("class") == "hot"]
    assert [tip for tip in tips if "release" in tip] == ["Nov 21 10:02 · p50 1 ms · release a, release <b>"]
    assert "<b>" not in markup
    assert not {"before", "after"} & set(re.findall(r"\w+", markup))
