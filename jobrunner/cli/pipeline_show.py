"""`jobrunner pipeline show`: the counts of every station, with rates and the time left; once or repeatedly."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from jobrunner.cli.options import CommonOptions, connected, modules_or_configured, seconds_of, with_shared_options
from jobrunner.cli.output import answer_json, draws_over, echo, plain_json, table
from jobrunner.cli.suggestions import pipeline_names
from jobrunner.clock import sleep
from jobrunner.errors import PipelineError
from jobrunner.etl.pipeline import Pipeline, all_pipelines, find_pipeline
from jobrunner.etl.progress import UNDECLARED, PipelineView, Progress, Rate, StationView, undeclared
from jobrunner.formatting import cut, duration, number
from jobrunner.jobs.registry import load_modules

_EXAMPLES = """\b
Examples:
  jobrunner pipeline show orders myapp.orders
  jobrunner pipeline show orders myapp.orders --watch
  jobrunner pipeline show orders --json | jq '.stations[].waiting'
"""

_FIXED = 68
"""Width of the narrow table without the column of names."""


@click.command(epilog=_EXAMPLES)
@click.argument("name", shell_complete=pipeline_names)
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option("--over", type=seconds_of, default="1", show_default=True, metavar="S",
              help="Seconds over which rates are measured; 0: no rates.")  # fmt: skip
@click.option("--watch", is_flag=True, help="Refreshes until Ctrl-C.")
@click.option("--until-empty", is_flag=True, help="Refreshes until no item is open.")
@with_shared_options
def show(
    shared: CommonOptions, name: str, modules: tuple[str, ...], over: float, watch: bool, until_empty: bool
) -> None:
    """Show counts, rates and the time left of the pipeline NAME.

    LEFT: open items divided by the rate at which their number falls; - while it does not fall. STATE: stopped, with the
    error below the table, while a station on Spark waits and tries again because no item is to blame; not declared: a
    queue that still holds items of a station that was renamed or removed.
    """
    found = loaded_pipeline(name, modules)
    found.check()
    with connected(shared, like=found.own_client) as client:
        progress = Progress(client, found.graph, undeclared(client, found.graph))
        if watch or until_empty:
            _watch(progress, shared, max(over, 0.1), until_empty=until_empty)
            return
        seen = progress.look()
        if over:
            sleep(over)
            seen = progress.look()
    if shared.as_json:
        answer_json(seen)
    else:
        echo(station_table(seen))


def station_table(seen: PipelineView, *, wide: bool = False) -> str:
    """The table with a line for each station, in the order of the pipeline, and a line of totals. `wide`: ignores the
    terminal's width."""
    columns = ("STATION", "TO", "WAITING", "SCHEDULED", "PENDING", "DEAD", "IN/S", "OUT/S", "LEFT", "STATE")
    rows: list[tuple[object, ...]] = [
        (
            *(station.queue, _ways(station), station.waiting, station.scheduled, station.pending, station.dead),
            *_rate_texts(station.rate),
            _state(station),
        )
        for station in seen.stations
    ]
    counts = (sum(getattr(one, state) for one in seen.stations) for state in ("waiting", "scheduled", "pending"))
    rows.append((seen.name, "", *counts, seen.dead, *_rate_texts(seen.rate), _ended(seen)))
    return "\n".join([table(columns, rows, wide=wide), *_stopped(seen)])


def narrow_table(seen: PipelineView, width: int) -> str:
    """The table for a narrow terminal: without targets, with short numbers, and ended items on a line below."""
    columns = ("STATION", "WAIT", "SCHED", "PEND", "DEAD", "IN/S", "OUT/S", "LEFT", "STATE")
    rows = [
        (
            cut(one.queue, max(width - _FIXED, 10)),
            *(number(count) for count in (one.waiting, one.scheduled, one.pending, one.dead)),
            *("-" if per_s is None else number(per_s) for per_s in (one.rate.in_per_s, one.rate.out_per_s)),
            *(_rate_texts(one.rate)[2], _state(one)),
        )
        for one in seen.stations
    ]
    whole = f"{seen.name}: {seen.open} open, {seen.dead} dead, {_ended(seen)}, left {_rate_texts(seen.rate)[2]}"
    return "\n".join([table(columns, rows), cut(whole, width), *(cut(line, width) for line in _stopped(seen))])


def fitting_table(seen: PipelineView, width: int) -> str:
    """The full table where it fits, else the narrow one."""
    stopped = _stopped(seen)
    lines = station_table(seen, wide=True).splitlines()[: -len(stopped) or None]
    if max(map(len, lines)) > width:
        return narrow_table(seen, width)
    return "\n".join([*lines, *(cut(line, width) for line in stopped)])


def _ways(station: StationView) -> tuple[str, ...]:
    """The targets of a station, marked as in the diagram when a chain leads to them."""
    return tuple(f"⇒ {to}" for to in station.targets) if station.is_chained else station.targets


def _ended(seen: PipelineView) -> str:
    return f"{seen.succeeded} finished, {seen.dropped} dropped"


def _state(station: StationView) -> str:
    if station.paused or station.stopped:
        return "paused" if station.paused else "stopped"
    return {"queue": "not served", UNDECLARED: "not declared"}.get(station.kind, station.kind)


def _stopped(seen: PipelineView) -> list[str]:
    return [f"{one.queue} stopped, as the error is no item's: {one.stopped}" for one in seen.stations if one.stopped]


def _rate_texts(rate: Rate) -> tuple[str, str, str]:
    left = "-" if rate.left_s is None else duration(rate.left_s)
    return _rate(rate.in_per_s), _rate(rate.out_per_s), left


def _rate(per_s: float | None) -> str:
    if per_s is None:
        return "-"
    return f"{per_s:.0f}" if per_s == 0 or per_s >= 10 else f"{per_s:.1f}"


def _watch(progress: Progress, shared: CommonOptions, every_s: float, *, until_empty: bool) -> None:
    with _screen(shared) as draw:
        while True:
            seen = progress.look()
            draw(seen)
            if until_empty and not any(one.open for one in seen.stations if one.kind != UNDECLARED):
                return
            sleep(every_s)


@contextmanager
def _screen(shared: CommonOptions) -> Iterator[Callable[[PipelineView], None]]:
    """The function that prints a snapshot: as a JSON line for programs, in place on a terminal, else below the previous
    one."""
    if shared.as_json:
        yield lambda seen: echo(json.dumps(plain_json(seen)))
        return
    if not draws_over(sys.stdout):
        yield lambda seen: echo(station_table(seen) + "\n")
        return
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        yield _draw_plainly
        return
    with Live(auto_refresh=False, vertical_overflow="visible") as live:
        yield lambda seen: live.update(
            Text(fitting_table(seen, live.console.width), no_wrap=True, overflow="crop"), refresh=True
        )


def _draw_plainly(seen: PipelineView) -> None:
    click.clear()
    echo(fitting_table(seen, shutil.get_terminal_size().columns))


def loaded_pipeline(name: str, modules: tuple[str, ...]) -> Pipeline:
    """The pipeline of that name in these modules, else in those of [tool.jobrunner]. Raises PipelineError."""
    chosen = modules_or_configured(modules)
    if not chosen and not all_pipelines():
        raise PipelineError(
            f"no module that declares pipeline {name!r} is named; write it behind the name, or modules = [...] in "
            "[tool.jobrunner]"
        )
    load_modules(chosen)
    return find_pipeline(name)
