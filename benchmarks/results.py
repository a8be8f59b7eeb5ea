"""Statistics and tables of the benchmarks, computed once for the terminal, docs/performance.md and its pictures.

Every program builds a `Table` from its measurements: `text` renders it for the terminal, `markdown` for the page. The
pictures draw the same `Summary` of a series.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

from benchmarks.growth_points import GrowthPoint
from benchmarks.measures import OURS, PLAIN

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """Median, minimum and maximum of the values of all rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Raises statistics.StatisticsError when there are no values."""
        return cls(median(values), min(values), max(values))

    def ratio(self, base: Self) -> float:
        """The median of this series divided by that of `base`."""
        return self.median / base.median

    def text(self, digits: int = 0) -> str:
        """The median, with this many decimals."""
        return f"{self.median:,.{digits}f}"

    def spread(self, digits: int = 0) -> str:
        """Minimum and maximum."""
        return f"{self.least:,.{digits}f}–{self.most:,.{digits}f}"


class Table:
    """Titles and rows of text. `left`: the columns whose cells are aligned left on the terminal.

    With `groups` the first column names a group of consecutive rows: Markdown shows it in the first row of each group.
    `bold`: cells of these texts are bold in Markdown.
    """

    def __init__(
        self, titles: Row, rows: Iterable[Row], *, left: Sequence[int] = (0,), groups: bool = False, bold: str = ""
    ) -> None:
        self.titles = titles
        self.rows = list(rows)
        self._left = left
        self._groups = groups
        self._bold = bold

    def text(self) -> str:
        """Aligned columns, for the terminal."""
        rows = [self.titles, *self.rows]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.titles))]
        return "\n".join(self._line(row, widths) for row in rows)

    def markdown(self) -> Iterator[str]:
        """The lines of a Markdown table."""
        yield _cells("" if self._groups else self.titles[0], *self.titles[1:])
        yield "|---|" + "---|" * (len(self.titles) - 1)
        group = None
        for row in self.rows:
            first = "" if self._groups and row[0] == group else row[0]
            group = row[0]
            yield _cells(first, *(f"**{cell}**" if cell and cell == self._bold else cell for cell in row[1:]))

    def _line(self, row: Row, widths: Sequence[int]) -> str:
        cells = [
            cell.ljust(width) if column in self._left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def limits_table(rates: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    """Tasks a second of jobrunner and of each client without features, by part, and the ratio of their medians."""
    rows = []
    for part, found in rates.items():
        ours = Summary.of(found[OURS])
        for name, values in found.items():
            summary = Summary.of(values)
            ratio = "" if name == OURS else f"{ours.ratio(summary):.2g}"
            rows.append((part, name, summary.text(), summary.spread(), ratio))
    titles = ("part", "who", "tasks/s", "spread", "jobrunner ÷ it")
    return Table(titles, rows, left=(0, 1, 3), groups=True, bold=OURS)


def growth_table(points: Sequence[GrowthPoint], *, clock: bool = False) -> Table:
    """The server's time for a task at each size and its ratio to the smallest size of the series.

    `clock` adds the time that the client measured, which includes the network and whatever else the machine did.
    """
    smallest: dict[str, Summary] = {}
    rows = []
    for point in points:
        summary = Summary.of(point.server_us)
        ratio = summary.ratio(smallest.setdefault(point.series, summary))
        row = (point.series, f"{point.size:,}", summary.text(1), summary.spread(1), f"{ratio:.2f}")
        rows.append((*row, Summary.of(point.wall_us).text(1)) if clock else row)
    titles = ("series", "size", "server, µs a task", "spread", "÷ smallest")
    return Table((*titles, "client, µs a task") if clock else titles, rows, left=(0, 3), groups=True)


def growth_ratio(points: Sequence[GrowthPoint], series: str) -> float:
    """The server's time for a task at the largest size of a series, divided by that at the smallest."""
    ordered = sorted((point for point in points if point.series == series), key=lambda point: point.size)
    return Summary.of(ordered[-1].server_us).ratio(Summary.of(ordered[0].server_us))


def prices_table(rates: Mapping[str, Sequence[float]]) -> Table:
    """The drain with each feature: tasks a second, the share of the plain drain, and the time a task takes more."""
    plain = Summary.of(rates[PLAIN])
    rows = []
    for name, values in rates.items():
        summary = Summary.of(values)
        more_us = 1e6 / summary.median - 1e6 / plain.median
        rows.append((name, summary.text(), summary.spread(), f"{summary.ratio(plain):.2f}", f"{more_us:.1f}"))
    return Table(("with", "tasks/s", "spread", "÷ plain", "µs a task more"), rows, left=(0, 2))


def price_share(rates: Mapping[str, Sequence[float]], case: str) -> float:
    """The drain with these features as a share of the plain drain."""
    return Summary.of(rates[case]).ratio(Summary.of(rates[PLAIN]))


def anatomy_table(
    title: str, who: Sequence[str], found: Mapping[str, Mapping[str, Sequence[float]]], *, least: float = 0.0
) -> Table:
    """Medians of each part by contender, without the parts that stay below `least` at all of them."""
    medians = {name: {one: median(values) for one, values in by_who.items()} for name, by_who in found.items()}
    rows = [
        (name, *(f"{by_who[one]:.1f}" if one in by_who else "" for one in who))
        for name, by_who in medians.items()
        if max(by_who.values()) >= least
    ]
    return Table((title, *who), rows)


def write_json(path: Path, measured: Any) -> None:
    """Writes the measurements of a program for `benchmarks.publish`."""
    path.write_text(json.dumps(measured, indent=1, ensure_ascii=False, default=str) + "\n", "utf-8")
