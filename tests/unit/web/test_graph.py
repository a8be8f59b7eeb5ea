"""The graph of a pipeline: layers follow the links, loops end, and names are escaped."""

import xml.etree.ElementTree as ET

from jobrunner.web.graph import Box, bend, draw, layered


def box(name, *targets, **more):
    return Box(name=name, kind="station", href=f"/queues/{name}", targets=targets, **more)


def test_a_queue_stands_right_of_all_that_lead_to_it():
    boxes = [box("raw", "clean", "load"), box("clean", "load"), box("load")]

    assert layered(boxes) == [["raw"], ["clean", bend("raw", "load", 1)], ["load"]]


def test_a_link_that_passes_a_layer_by_runs_behind_no_box():
    drawn = ET.fromstring(str(draw([box("raw", "clean", "load"), box("clean", "load"), box("load")], label="p")))

    long = [part for part in drawn if part.get("class") == "link"][1]
    (node,) = (part for part in drawn if part.get("href") == "/queues/clean")
    left, top = (float(text) for text in node.get("transform")[10:-1].split())
    passes_at = float(long.get("d").partition("h196")[0].split()[-1])
    assert f"{left:.0f} {passes_at:.0f}h196" in long.get("d")
    assert passes_at > top + 84


def test_branches_share_a_layer_in_the_order_of_their_links():
    boxes = [box("raw", "good", "odd"), box("good", "end"), box("odd", "end"), box("end")]

    assert layered(boxes) == [["raw"], ["good", "odd"], ["end"]]


def test_a_loop_is_laid_out_and_its_way_back_is_drawn():
    boxes = [box("fetch", "parse"), box("parse", "fetch", "store"), box("store")]

    drawn = ET.fromstring(str(draw(boxes, label="crawl")))

    assert layered(boxes) == [["fetch"], ["parse"], ["store"]]
    assert sum(part.get("class") == "link" for part in drawn) == 3


def test_counts_and_troubles_are_told_in_words_too():
    drawn = ET.fromstring(str(draw([box("raw", waiting=12_500, pending=3, dead=2, paused=True)], label="p")))

    (node,) = (part for part in drawn if part.tag == "a")
    assert node.get("aria-label") == "raw, station, paused: 12500 waiting, 3 pending, 2 dead"
    assert node.get("class") == "node paused troubled"


def test_a_link_to_nowhere_and_the_way_of_the_dead():
    drawn = ET.fromstring(str(draw([box("raw", "gone", dead_letter_queue="lost"), box("lost")], label="p")))

    assert [part.get("class") for part in drawn if part.tag == "path"] == ["link dead"]


def test_names_cannot_break_out():
    drawn = str(draw([box('"><script>alert(1)</script>')], label='"><b>'))

    assert "<script>" not in drawn
    ET.fromstring(drawn)


def test_no_boxes_are_an_empty_picture():
    ET.fromstring(str(draw([], label="nothing")))


def test_a_graph_of_few_layers_may_shrink_and_a_long_one_is_scrolled():
    def line(count):
        return [Box(name=f"s{n}", kind="station", href="/", targets=(f"s{n + 1}",)) for n in range(count)]

    assert 'class="graph fits"' in draw(line(5), label="short")
    assert 'class="graph"' in draw(line(6), label="long")


def test_the_bar_of_a_station_is_its_share_of_the_largest_backlog():
    boxes = [box("raw", "clean", waiting=1000), box("clean", "load", waiting=250), box("load", waiting=1), box("end")]

    drawn = ET.fromstring(str(draw(boxes, label="p")))

    bars = {
        node.get("href"): [int(bar.get("width")) for bar in node.iter("rect") if bar.get("class") == "backlog"]
        for node in drawn
        if node.get("href")
    }
    assert bars == {"/queues/raw": [168], "/queues/clean": [42], "/queues/load": [3], "/queues/end": []}


def test_without_a_backlog_no_station_has_a_bar():
    assert "backlog" not in str(draw([box("raw", "clean"), box("clean")], label="p"))


def test_counts_that_are_too_long_for_a_node_are_drawn_narrower() -> None:
    def counts(**numbers: int) -> str:
        drawn = str(draw([Box(name="raw", kind="station", href="/", **numbers)], label="orders"))
        return drawn[drawn.index('class="counts"') :]

    assert "textLength" not in counts(waiting=1_960, pending=10)
    narrow = counts(waiting=1, dead=39)
    assert 'textLength="168" lengthAdjust="spacingAndGlyphs">1 waiting · 0 pending · <tspan' in narrow
