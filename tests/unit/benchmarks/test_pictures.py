"""The pictures of the benchmarks: well-formed, and with a mark for every contender and every size."""

from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks import pictures
from benchmarks.board import Board
from benchmarks.growth_points import GrowthPoint

SVG = "{http://www.w3.org/2000/svg}"


def marks(path: Path, tag: str, look: str) -> list[ET.Element]:
    return [part for part in ET.parse(path).iter(f"{SVG}{tag}") if look in (part.get("class") or "").split()]


def test_bars_name_all_contenders_with_their_medians_and_leave_out_those_that_are_void(tmp_path: Path) -> None:
    board = Board()
    for measure in ("drain", "waits", "bulk", "start", "cpu_us", "client_us"):
        for who, values in {"jobrunner": (50, 60, 70), "rq": (1, 2, 3), "bare <loop>": (99,), "lost": (500,)}.items():
            for value in values:
                board.add(measure, who, value)
        board.void(measure, "lost", "3 tasks lost")

    pictures.bars(board, tmp_path / "speed.svg")

    names = [label.text for label in marks(tmp_path / "speed.svg", "text", "label")]
    assert names == [*["bare <loop>", "jobrunner", "rq"] * 3, *["rq", "jobrunner", "bare <loop>"] * 3]
    assert [value.text for value in marks(tmp_path / "speed.svg", "text", "value")][:3] == ["99", "60", "2"]


def test_growth_has_a_plot_for_each_series_and_a_dot_for_each_size(tmp_path: Path) -> None:
    sizes = {"waiting": (1_000, 10_000), "queues": (1,), "history kept (0: off)": (0, 1_000, 10_000)}
    points = [
        GrowthPoint(series=series, size=size, queues=[], server_us=[19.0, 20.0 + size / 100, 25.0 + size / 100])
        for series, found in sizes.items()
        for size in found
    ]

    pictures.growth(points, tmp_path / "growth.svg")

    assert [title.text for title in marks(tmp_path / "growth.svg", "text", "title")] == list(sizes)
    assert len(marks(tmp_path / "growth.svg", "circle", "ours")) == 6
    assert len(marks(tmp_path / "growth.svg", "path", "line")) == 3
    assert "off" in [tick.text for tick in marks(tmp_path / "growth.svg", "text", "tick")]
