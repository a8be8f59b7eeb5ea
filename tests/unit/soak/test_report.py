"""The output of a soak: lines and a plot."""

from xml.etree import ElementTree as ET

from jobrunner.soak.audit import SoakSample
from jobrunner.soak.checks import SoakCheck, equals, none_of
from jobrunner.soak.faults import InjectedFault
from jobrunner.soak.report import line_of, plotted, verdict_lines

SAMPLES = [
    SoakSample(at_s=float(at), acked=at * 200, finished=at * 199, open=at, per_s=200.0, p50_ms=3.0, p99_ms=1200.0,
           memory={"worker-1": 50 << 20, "worker-12": 60 << 20}, descriptors={"worker-1": 12}, keys=1000 + at)
    for at in range(0, 100, 10)
]  # fmt: skip


def test_a_sample_is_one_line_also_where_nothing_could_be_measured() -> None:
    assert "1,990 done" in line_of(10, SAMPLES[1])
    assert "p99 1.2 s" in line_of(10, SAMPLES[1])
    assert "? keys" in line_of(0, SoakSample(at_s=0))


def test_the_verdict_says_no_when_one_check_does() -> None:
    unjudged = SoakCheck(name="memory", value="too few samples", bound="not judged", holds=None)

    assert verdict_lines([equals("lost", 0, 0), unjudged], {}, 0)[-1] == "HELD: nothing was lost"
    said = verdict_lines([equals("lost", 1, 0), unjudged], {"kills": 3}, 2)
    assert said[-1] == "NOT HELD: 1 of 2 checks"
    assert "NOT lost: 1 (= 0)" in said
    assert "faults: 3 kills; 2 tasks began again because of them" in said


def test_of_many_things_found_some_are_shown() -> None:
    assert none_of("keys", [str(n) for n in range(9)]).value == "0, 1, 2, and 6 more"
    assert none_of("keys", []).value == "none"


def test_a_plot_is_one_picture_with_a_panel_for_each_figure_and_a_mark_for_each_fault() -> None:
    faults = [
        InjectedFault(at_s=15.0, kind="kills", told="<worker> killed"),
        InjectedFault(at_s=50.0, kind="cuts", told="all"),
    ]

    drawn = ET.fromstring(plotted(SAMPLES, faults))

    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"finished a second", "resident memory", "keys", "kills", "cuts"} <= set(words)
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}title"))) == 2
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) >= 9
    ET.fromstring(plotted([], []))
