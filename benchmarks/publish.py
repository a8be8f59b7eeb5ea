"""Runs all benchmarks one after the other and writes docs/performance.md from their figures.

    python -m benchmarks.publish FOLDER             # about two hours; the machine should have nothing else to do
    python -m benchmarks.publish FOLDER --rounds 3  # in place of five
    python -m benchmarks.publish FOLDER --only-page # measure nothing: write the page from the files in FOLDER

A program whose file is in FOLDER already is not run again.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import growth_points, pictures
from benchmarks.board import Board
from benchmarks.child import ROOT
from benchmarks.page import Figures, with_tables

PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
PROGRAMS = {
    "figures": ["benchmarks"],
    "growth": ["benchmarks.growth", "--most", "10000000"],
    "prices": ["benchmarks.prices"],
    "limits": ["benchmarks.limits"],
    "anatomy": ["benchmarks.anatomy"],
}
_HAS_FIVE_ROUNDS = "anatomy"


def main() -> int:
    """Exit code: 0; 1 when a program wrote no figures."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=(__doc__ or "").splitlines()[0])
    asked.add_argument("folder", type=Path, help="holds one JSON file of figures for each program")
    asked.add_argument("--only-page", action="store_true", help="measure nothing")
    asked.add_argument("--rounds", type=int, default=5, help="of each program (default 5)")
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, words in PROGRAMS.items():
        file = given.folder / f"{name}.json"
        if not file.exists() and not given.only_page:
            rounds = [] if name == _HAS_FIVE_ROUNDS else ["--rounds", str(given.rounds)]
            subprocess.run([sys.executable, "-m", *words, *rounds, "--json", str(file)], cwd=ROOT)
        if not file.exists():
            print(f"no {file}: python -m {' '.join(words)} --json {file} writes it", file=sys.stderr)
            return 1
    figures = read(given.folder)
    PAGE.write_text(with_tables(PAGE.read_text("utf-8"), figures), "utf-8")
    pictures.bars(figures.board, IMAGES / "speed.svg")
    pictures.growth(figures.growth, IMAGES / "growth.svg")
    print(f"{PAGE} and its pictures are written")
    return 0


def read(folder: Path) -> Figures:
    """The figures of all programs."""

    def of(name: str) -> Any:
        return json.loads((folder / f"{name}.json").read_text("utf-8"))

    table = of("figures")
    board = Board.from_json(table["measures"])
    board.absences += table.get("absences", ())
    return Figures(
        board=board,
        about=table["about"],
        growth=[growth_points.from_json(point) for point in of("growth")],
        prices=of("prices")["rates"],
        limits=of("limits")["rates"],
        anatomy=of("anatomy"),
    )


if __name__ == "__main__":
    sys.exit(main())
