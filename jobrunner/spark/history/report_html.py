"""A report as one HTML page with plots.

The page is self-contained and sends no request, so it can be mailed or kept. It follows the light or dark theme of the
reader's system. Charts come from `jobrunner.charts.axes`, two in a row on a wide screen, with the tables below them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path

from jobrunner.charts import ChartSeries
from jobrunner.charts.axes import columns, legend, lines, spans, stacked_bars
from jobrunner.spark.history.report import Report, Table
from jobrunner.spark.history.report_output import instant_text, length_unit, presented, shown

_MOST_LABELS = 20
_FEW_ROWS, _FEW_TASKS = 3, 10
_RANKS = (("p50", "s1"), ("p95", "s2"), ("p99", "s3"))
_SHARES = (("dead", "bad"), ("retried", "re"))
_STYLE = "report.css"


def write_page(report: Report, file: Path) -> Path:
    """Writes the page with plots."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(report), "utf-8")
    return file


def page(report: Report) -> str:
    """The page, as text in UTF-8."""
    style = (files("jobrunner.spark") / _STYLE).read_text("utf-8")
    parts = [_head(report), _over_time(report)]
    sections = {"jobs": _group, "queues": _group, "hours": _hours, "errors": _section, "parameters": _section,
                "change": _change}  # fmt: skip
    tables = {table.name: table for table in presented(report)}
    parts += [section(tables[name]) for name, section in sections.items() if name in tables]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Report on {escape(report.source)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _head(report: Report) -> str:
    summary, names = report.table("summary"), report.selected
    first, last = summary.rows[0][:2]
    period = f"{instant_text(first)} to {instant_text(last)} UTC"
    chosen = "".join(f", {escape(name)} {escape(value)}" for name, value in names.items())
    note = f'<p class="note">{escape(summary.note)}</p>' if summary.note else ""
    cards = f'<div class="facts">{"".join(_cards(summary))}</div>'
    return f'<h1>Finished tasks</h1><p class="soft">{escape(report.source)} · {period}{chosen}</p>{cards}{note}'


def _cards(summary: Table) -> Iterator[str]:
    """Six cards, a number that fills rows of six, three or two."""
    headings, (cells,) = shown(summary)
    facts = {
        column.name: (heading, cell) for column, heading, cell in zip(summary.columns, headings, cells, strict=True)
    }
    for name in ("tasks", "per_s", "dead", "retried"):
        yield _card(*facts[name])
    for what in ("wait", "run"):
        heading, median = facts[f"{what}_p50"]
        yield _card(heading, median, " · ".join(f"{rank} {facts[f'{what}_{rank}'][1]}" for rank in ("p95", "p99")))


def _card(name: str, value: str, more: str = "") -> str:
    return (
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span>{f'<span>{escape(more)}</span>' if more else ''}</div>"
    )


def _over_time(report: Report) -> str:
    table, bucket_s, split = report.table("throughput"), report.bucket_s, report.split_at
    starts = table.column("from")
    looks = (("succeeded", "ok"), ("cancelled", "off"), ("dead", "bad"))
    ended = [
        ChartSeries(name=name, values=[n / bucket_s for n in table.column(name)], look=look)
        for name, look in looks
        if any(table.column(name))
    ]
    plots = [_plot("Throughput", ended, stacked_bars(starts, bucket_s, ended, "tasks/s", split))]
    table = _without_scraps(table)
    starts = table.column("from")
    totals = [sum(row) for row in zip(*(table.column(name) for name, _ in looks), strict=True)]
    shares = [
        ChartSeries(
            name=name, values=[100 * n / of for n, of in zip(table.column(name), totals, strict=True)], look=look
        )
        for name, look in _SHARES
    ]
    failures = lines(starts, bucket_s, shares, "% of tasks", split, is_linear=True)
    plots.append(_plot("Failures and retries", shares, failures))
    for what, title in (("wait", "Waits"), ("run", "Runs")):
        series, unit = _percentiles(table, what)
        if series:
            plots.append(_plot(title, series, lines(starts, bucket_s, series, f"{what}, {unit}", split)))
    return _pairs(plots) + _folded(report.table("throughput"))


def _plot(title: str, series: Sequence[ChartSeries], drawn: str, level: int = 2) -> str:
    return f"<section><h{level}>{title}</h{level}>{legend(series)}{drawn}</section>"


def _pairs(plots: Sequence[str]) -> str:
    return f'<div class="pairs">{"".join(plots)}</div>'


def _without_scraps(table: Table) -> Table:
    """Drops a first or last row with few tasks: its bucket was cut short, so its percentiles are chance."""
    rows = table.rows
    if len(rows) > _FEW_ROWS:
        sizes = [sum(row[2:5]) for row in rows]
        rows = rows[sizes[0] < _FEW_TASKS : len(rows) - (sizes[-1] < _FEW_TASKS)]
    return replace(table, rows=rows)


def _group(table: Table) -> str:
    labels = [str(row[0]) for row in table.rows[:_MOST_LABELS]]
    plots = []
    for what, title in (("wait", "Waits"), ("run", "Runs")):
        series, unit = _percentiles(table, what, _MOST_LABELS)
        if series:
            plots.append(_plot(title, series, spans(labels, series, f"{what}, {unit}"), 3))
    return f"<h2>{escape(table.title)}</h2>{_note(table)}{_pairs(plots)}{_table(table)}"


def _hours(table: Table) -> str:
    shares = [ChartSeries(name=name, values=[100 * v for v in table.column(name)], look=look) for name, look in _SHARES]
    plots = [_plot("Failures and retries", shares, columns(table.column("hour"), shares, "hour, UTC", "% of tasks"), 3)]
    series, unit = _percentiles(table, "run")
    if series:
        plots.append(_plot("Runs", series, columns(table.column("hour"), series, "hour, UTC", f"run, {unit}"), 3))
    return f"<h2>{escape(table.title)}</h2>{_pairs(plots)}{_folded(table)}"


def _percentiles(table: Table, what: str, most: int | None = None) -> tuple[list[ChartSeries], str]:
    found = {rank: table.column(f"{what}_{rank}")[:most] for rank, _ in _RANKS}
    longest = max((value for values in found.values() for value in values if value is not None), default=None)
    if longest is None:
        return [], ""
    unit, factor = length_unit(longest)
    return [
        ChartSeries(name=rank, values=[None if v is None else v * factor for v in found[rank]], look=look)
        for rank, look in _RANKS
    ], unit


def _change(table: Table) -> str:
    """The change of all jobs together and of jobs that changed clearly; other jobs are folded."""
    verdicts = table.column("verdict")
    rows = [
        row
        for row, verdict in zip(table.rows, verdicts, strict=True)
        if row[0] == "all jobs" or verdict not in ("", "no clear change")
    ]
    brief = _section(replace(table, rows=tuple(rows)))
    return brief if len(rows) == len(table.rows) else brief + _folded(table, "All figures of all jobs")


def _section(table: Table) -> str:
    body = _table(table) if table.rows else '<p class="soft">none</p>'
    return f"<h2>{escape(table.title)}</h2>{_note(table)}{body}"


def _note(table: Table) -> str:
    return f'<p class="note">{escape(table.note)}</p>' if table.note else ""


def _folded(table: Table, title: str = "") -> str:
    label = title or f"{table.title}, as a table"
    return f"<details><summary>{escape(label)}</summary>{_table(table)}</details>"


def _table(table: Table) -> str:
    headings, rows = shown(table)
    looks = ["" if column.kind in ("text", "instant") else ' class="n"' for column in table.columns]
    head = _cells("th", headings, looks)
    body = "".join(f"<tr>{_cells('td', row, looks)}</tr>" for row in rows)
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
    return f"{scroll}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cells(tag: str, texts: Sequence[str], looks: Sequence[str]) -> str:
    return "".join(f"<{tag}{look}>{escape(text)}</{tag}>" for text, look in zip(texts, looks, strict=True))
