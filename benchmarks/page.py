"""What docs/performance.md shows of the figures: its tables, each between two marks that stay."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.beds import Bed
from benchmarks.board import Board, Judgement, Series
from benchmarks.measures import MEASURES, OUR_THREADS, OURS, PEERS, at_least, at_most
from benchmarks.prices import EVERYTHING, PLAIN, SAMPLED, TARGET

GROWTH = at_most(1.5)
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
    """Of all programs."""

    board: Board
    about: str
    growth: Sequence[Bed]
    prices: Mapping[str, Sequence[float]]
    limits: Mapping[str, Mapping[str, Sequence[float]]]
    anatomy: Mapping[str, Sequence[str]]
    """The lines of its tables."""


def with_tables(page: str, figures: Figures) -> str:
    """The page with the figures of this run. Raises SystemExit when it lacks a place for them."""
    for name, lines in sections(figures).items():
        mark = _MARK.format(name)
        between = re.compile(f"({re.escape(mark)}\n).*?(?={re.escape(_END)})", re.DOTALL)
        if not between.search(page):
            raise SystemExit(f"the page has no place for {name}: a line {mark}, and {_END} behind it")
        text = "\n".join(lines)
        page = between.sub(lambda found, text=text: f"{found[1]}{text}\n", page, count=1)
    return page


def sections(figures: Figures) -> dict[str, list[str]]:
    """The lines of each table by its mark."""
    return {
        "targets": list(_targets(figures)),
        **{name: list(_side_by_side(figures.board, columns)) for name, columns in _COLUMNS.items()},
        "voids": [f"- {line}" for line in (*(f"VOID: {one}" for one in figures.board.voids), *figures.board.absences)],
        "limits": list(_limits(figures.limits)),
        "growth": list(_growth(figures.growth)),
        "prices": list(_prices(figures.prices)),
        **{f"anatomy of {name}": list(lines) for name, lines in figures.anatomy.items()},
        "about": [figures.about],
    }


def _targets(figures: Figures) -> Iterator[str]:
    yield from _head("measure", "target", "reached", "")
    for one in figures.board.judgements():
        if one.reached is not None:
            against = f" {one.row}" if one.target.against else ""
            shown = _figure(one.reached)
            yield _row(_named(one), f"{one.target}{against}", shown, one.word)
    grown = growth_of(figures.growth, "waiting")
    yield _row("cost of a task from the smallest to the largest queue", f"{GROWTH} ×", f"{grown:.2f}",
               GROWTH.word(grown))  # fmt: skip
    price = at_least(TARGET)
    for case, traced in ((EVERYTHING, "tracing"), (SAMPLED, "tracing of 1 in 100")):
        share = median(figures.prices[case]) / median(figures.prices[PLAIN])
        yield _row(f"the drain with limits, history, hooks, metrics and {traced}", f"{price} × plain", f"{share:.2f}",
                   price.word(share))  # fmt: skip


def _named(one: Judgement) -> str:
    title = MEASURES[one.measure].title.strip()
    return title if one.target.who == OURS else f"{title} ({one.target.who})"


def growth_of(beds: Sequence[Bed], series: str) -> float:
    """What a task costs in the largest of a series, divided by what it costs in the smallest."""
    some = sorted((bed for bed in beds if bed.series == series), key=lambda bed: bed.size)
    return median(some[-1].server_us) / median(some[0].server_us)


def _side_by_side(board: Board, columns: Mapping[str, str]) -> Iterator[str]:
    yield from _head("", *columns.values())
    found = {who for name in columns for who in board.figures(name)}
    for who in (*(one for one in _WHO if one in found), *sorted(found - set(_WHO))):
        cells = [_cell(name, board.figures(name).get(who)) for name in columns]
        yield _row(f"**{who}**" if who in (OURS, OUR_THREADS) else who, *cells)


def _cell(measure: str, series: Series | None) -> str:
    if series is None:
        return ""
    if series.void:
        return "void"
    shown = MEASURES[measure].shown
    least, most = shown(min(series.values)), shown(max(series.values))
    return shown(median(series.values)) + (f"<br><small>{least}–{most}</small>" if least != most else "")


def _limits(rates: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    yield from _head("", "who", "tasks/s", "spread", "jobrunner ÷ it")
    for part, found in rates.items():
        for name, values in found.items():
            ratio = "" if name == OURS else f"{median(found[OURS]) / median(values):.2g}"
            yield _row(part, f"**{name}**" if name == OURS else name, *_rate(values), ratio)
            part = ""


def _growth(beds: Sequence[Bed]) -> Iterator[str]:
    yield from _head("", "size", "server, µs a task", "spread", "÷ smallest")
    first: dict[str, float] = {}
    for bed in beds:
        middle = median(bed.server_us)
        title = "" if bed.series in first else bed.series
        ratio = middle / first.setdefault(bed.series, middle)
        spread = f"{min(bed.server_us):.1f}–{max(bed.server_us):.1f}"
        yield _row(title, f"{bed.size:,}", f"{middle:.1f}", spread, f"{ratio:.2f}")


def _prices(rates: Mapping[str, Sequence[float]]) -> Iterator[str]:
    yield from _head("with", "tasks/s", "spread", "÷ plain", "µs a task more")
    plain = median(rates[PLAIN])
    for name, values in rates.items():
        middle = median(values)
        yield _row(name, *_rate(values), f"{middle / plain:.2f}", f"{1e6 / middle - 1e6 / plain:.1f}")


def _rate(values: Sequence[float]) -> tuple[str, str]:
    return f"{median(values):,.0f}", f"{min(values):,.0f}–{max(values):,.0f}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _head(*titles: str) -> Iterator[str]:
    yield _row(*titles)
    yield "|---|" + "---|" * (len(titles) - 1)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
