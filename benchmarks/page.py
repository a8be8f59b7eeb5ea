"""The tables of docs/performance.md. Each replaces the text between two marks, which stay in the page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.board import Board, Judgement, Series
from benchmarks.growth_points import GrowthPoint
from benchmarks.measures import (
    EVERYTHING,
    GROWTH_TARGET,
    MEASURES,
    OUR_THREADS,
    OURS,
    PEERS,
    PRICE_TARGET,
    SAMPLED,
)  # fmt: skip
from benchmarks.results import Table, growth_ratio, growth_table, limits_table, price_share, prices_table

_COLUMNS = {
    "throughput": {
        "drain": "drain", "drain2": "by two processes", "waits": "5 ms waits", "cpu": "10 ms of CPU",
        "enqueue": "enqueue", "bulk": "in bulk",
    },
    "delays": {
        "start": "idle, median", "start_p95": "p95", "start_p99": "p99", "open1": "1 000/s, median", "open1_p99": "p99",
        "open5": "5 000/s, median", "open5_p99": "p99", "import": "import", "ready": "worker ready",
    },
    "costs": {
        "round_trips": "round trips", "commands": "commands", "bytes_in": "bytes in", "bytes_out": "bytes out",
        "command_us": "commands, µs", "cpu_us": "server CPU, µs", "client_us": "worker CPU, µs",
        "idle": "idle, commands/s", "idle_cpu": "idle, % of a core", "idle_mb": "idle, MB",
    },
}  # fmt: skip
_WHO = (OURS, OUR_THREADS, *PEERS)
_MARK = "<!-- {}: written by benchmarks.publish -->"
_END = "<!-- end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The measurements of all programs."""

    board: Board
    about: str
    growth: Sequence[GrowthPoint]
    prices: Mapping[str, Sequence[float]]
    limits: Mapping[str, Mapping[str, Sequence[float]]]
    anatomy: Mapping[str, Sequence[str]]
    """The Markdown lines of its tables, by part."""


def with_tables(page: str, figures: Figures) -> str:
    """The page with the tables of these figures. Raises SystemExit when the marks of a table are missing."""
    for name, lines in sections(figures).items():
        mark = _MARK.format(name)
        between = re.compile(f"({re.escape(mark)}\n).*?(?={re.escape(_END)})", re.DOTALL)
        if not between.search(page):
            raise SystemExit(f"the page has no place for {name}: add a line {mark}, and {_END} after it")
        text = "\n".join(lines)
        page = between.sub(lambda found, text=text: f"{found[1]}{text}\n", page, count=1)
    return page


def sections(figures: Figures) -> dict[str, list[str]]:
    """The lines of each table by its mark."""
    return {
        "targets": list(_targets(figures).markdown()),
        **{name: list(_side_by_side(figures.board, columns).markdown()) for name, columns in _COLUMNS.items()},
        "voids": [f"- {line}" for line in (*(f"VOID: {one}" for one in figures.board.voids), *figures.board.absences)],
        "limits": list(limits_table(figures.limits).markdown()),
        "growth": list(growth_table(figures.growth).markdown()),
        "prices": list(prices_table(figures.prices).markdown()),
        **{f"anatomy of {name}": list(lines) for name, lines in figures.anatomy.items()},
        "about": [figures.about],
    }


def _targets(figures: Figures) -> Table:
    rows = []
    for one in figures.board.judgements():
        if one.reached is not None:
            against = f" {one.row}" if one.target.against else ""
            rows.append((_title(one), f"{one.target}{against}", _figure(one.reached), one.verdict))
    grown = growth_ratio(figures.growth, "waiting")
    rows.append(("cost of a task from the smallest to the largest queue", f"{GROWTH_TARGET} ×", f"{grown:.2f}",
                 GROWTH_TARGET.verdict(grown)))  # fmt: skip
    for case, traced in ((EVERYTHING, "tracing"), (SAMPLED, "tracing of 1 in 100")):
        share = price_share(figures.prices, case)
        rows.append((f"the drain with limits, history, hooks, metrics and {traced}", f"{PRICE_TARGET} × plain",
                     f"{share:.2f}", PRICE_TARGET.verdict(share)))  # fmt: skip
    return Table(("measure", "target", "reached", ""), rows)


def _title(one: Judgement) -> str:
    title = MEASURES[one.measure].title.strip()
    return title if one.target.who == OURS else f"{title} ({one.target.who})"


def _side_by_side(board: Board, columns: Mapping[str, str]) -> Table:
    found = {who for name in columns for who in board.figures(name)}
    rows = []
    for who in (*(one for one in _WHO if one in found), *sorted(found - set(_WHO))):
        cells = (_cell(name, board.figures(name).get(who)) for name in columns)
        rows.append((f"**{who}**" if who in (OURS, OUR_THREADS) else who, *cells))
    return Table(("", *columns.values()), rows)


def _cell(measure: str, series: Series | None) -> str:
    if series is None:
        return ""
    if series.void:
        return "void"
    digits, summary = MEASURES[measure].digits, series.summary
    least, most = MEASURES[measure].format(summary.least), MEASURES[measure].format(summary.most)
    return summary.text(digits) + (f"<br><small>{summary.spread(digits)}</small>" if least != most else "")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
