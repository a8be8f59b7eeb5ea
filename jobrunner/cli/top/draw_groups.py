"""Groups of errors: the section of the first page, and the page of the dead tasks of a queue. Pure."""

from datetime import datetime

from rich.text import Text

from jobrunner.cli.top.terminal import Cell, line, titled
from jobrunner.formatting import counted, number, short_duration
from jobrunner.inspector.error_groups import ErrorGroups, ErrorGroupView

_RECENT = 2
"""Half hours, the present one among them."""
_WIDE = 120
_COLUMNS, _WIDE_COLUMNS = (14, 10, 7), (28, 20, 14)
"""Of the job, the queue and the release."""


def failing_section(found: ErrorGroups | None, now: datetime, width: int) -> list[Text]:
    """The groups of all queues, first those with most failed attempts in this half hour and the one before."""
    if found is None:
        return []
    groups = sorted(found.groups, key=lambda one: (-sum(one.trend[-_RECENT:]), -one.dead, -one.last.timestamp()))
    releases = any(group.release for group in groups)
    lines = [_failing_row(group, now, width, releases=releases) for group in groups]
    if found.ungrouped:
        told = f"{counted(found.ungrouped, 'dead task')} in no group: they died before groups were counted"
        lines.append(line([Cell(f"        {told}", "dim")], width))
    lines += [line([Cell(f"  {name}: {problem}", "red")], width) for name, problem in found.problems]
    title = f"FAILING MOST  (attempts failed, dead now, last{', release' if releases else ''}, error)"
    return [titled(title, width), *lines] if lines else []


def _failing_row(group: ErrorGroupView, now: datetime, width: int, *, releases: bool) -> Text:
    job, queue, release = _WIDE_COLUMNS if width >= _WIDE else _COLUMNS
    cells = [
        *group_counts(group, now),
        *(Cell(group.job or "(item)", "", job), Cell(" "), Cell(group.queue, "cyan", queue), Cell(" ")),
        *((Cell(group.release, "magenta", release), Cell(" ")) if releases else ()),
        Cell(group.title, "red" if group.dead else ""),
    ]
    return line(cells, width)


def group_counts(group: ErrorGroupView, now: datetime) -> list[Cell]:
    """How many attempts failed, how many tasks are dead now, and how long ago the last attempt failed."""
    ago = short_duration(max((now - group.last).total_seconds(), 0.0))
    return [
        Cell(f"{number(group.count):>6} ", "bold yellow"),
        Cell(f"{number(group.dead):>5} dead ", "bold red" if group.dead else "dim"),
        Cell(f"{ago:>5} ", "dim"),
    ]
