"""The tables of docs/performance.md."""

import pytest

from benchmarks.board import Board
from benchmarks.child import ROOT
from benchmarks.growth_points import GrowthPoint
from benchmarks.measures import EVERYTHING, PLAIN, SAMPLED
from benchmarks.page import Figures, sections, with_tables
from benchmarks.results import growth_ratio


def _point(size: int, *server_us: float, series: str = "waiting") -> GrowthPoint:
    return GrowthPoint(series=series, size=size, queues=[], server_us=list(server_us))


def _figures() -> Figures:
    board = Board()
    for figure in (60_000.0, 64_000.0, 70_000.0):
        board.add("drain", "jobrunner", figure)
    board.add("drain", "rq", 600.0)
    board.add("drain", "prototype loop", 128_000.0)
    board.void("bulk", "arq", "2 lost")
    board.absences.append("waits, rq: one at a time")
    return Figures(
        board=board,
        about="here and now",
        growth=[_point(1_000, 4.0, 5.0, 6.0), _point(10_000, 6.0), _point(1, 3.0, series="queues")],
        prices={PLAIN: [10_000.0], EVERYTHING: [5_000.0], SAMPLED: [7_000.0]},
        limits={"drain": {"jobrunner": [50.0], "scripts alone": [200.0]}},
        anatomy={"drain": ["| µs a task | jobrunner |", "|---|---|", "| Lua alone | 3.0 |"]},
    )


def test_every_target_that_was_measured_is_told_with_what_was_reached() -> None:
    tables = sections(_figures())["targets"]

    assert "| drain, tasks/s | ≥ 8 × rq | 107 | met |" in tables
    assert "| drain, tasks/s | ≥ 0.6 × prototype loop | 0.5 | MISSED |" in tables
    assert "| cost of a task from the smallest to the largest queue | ≤ 1.5 × | 1.20 | met |" in tables
    assert tables[-2].endswith("and tracing | ≥ 0.6 × plain | 0.50 | MISSED |")
    assert tables[-1].endswith("and tracing of 1 in 100 | ≥ 0.6 × plain | 0.70 | met |")
    assert not any("idle" in line for line in tables)


def test_a_cell_is_the_median_with_the_spread_and_a_void_one_says_so() -> None:
    lines = sections(_figures())["throughput"]

    assert lines[2].startswith("| **jobrunner** | 64,000<br><small>60,000–70,000</small> |")
    assert next(line for line in lines if line.startswith("| arq |")).endswith("| void |")
    assert [line.split(" | ")[0].strip("| *") for line in lines[2:]] == ["jobrunner", "rq", "arq", "prototype loop"]


def test_costs_are_beside_those_of_the_smallest_and_prices_beside_plain() -> None:
    tables = sections(_figures())

    assert tables["growth"][3] == "|  | 10,000 | 6.0 | 6.0–6.0 | 1.20 |"
    assert tables["prices"][-2].endswith("| 0.50 | 100.0 |")
    assert tables["limits"][-1] == "|  | scripts alone | 200 | 200–200 | 0.25 |"
    assert tables["voids"] == ["- VOID: enqueue in bulk, tasks/s, arq: 2 lost", "- waits, rq: one at a time"]
    assert growth_ratio(_figures().growth, "queues") == 1


def test_the_page_has_a_place_for_each_table_and_writing_twice_changes_nothing() -> None:
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")

    once = with_tables(page, _figures())

    assert "60,000–70,000" in once
    assert with_tables(once, _figures()) == once


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(SystemExit, match="no place for targets"):
        with_tables("# Speed\n", _figures())
