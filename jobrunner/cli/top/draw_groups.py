"""Draws error groups: the section of the first page, and the page of a queue's dead tasks. Pure functions."""

from datetime import datetime

from rich.text import Text

from jobrunner.cli.top.state import Screen, shown_groups
from jobrunner.cli.top.terminal import Cell, line, titled
from jobrunner.formatting import counted, number, short_duration
from jobrunner.inspector.error_groups import ErrorGroups, ErrorGroupView

_RECENT = 2
"""Half hours that count as recent, including the present one."""
_WIDE = 120
_COLUMNS, _WIDE_COLUMNS = (14, 10, 7), (28, 20, 14)
"""Column widths of the job, the queue and the release, for narrow and wide terminals."""


def failing_section(found: ErrorGroups | None, now: datetime, width: int) -> list[Text]:
    """The groups of all queues; groups with most failed attempts in this half hour and the one before come first."""
    if found is None:
        return []
    groups = sorted(found.groups, key=lambda one: (-sum(one.trend[-_RECENT:]), -one.dead, -one.last.timestamp()))
    releases = any(group.release for group in groups)
    lines = [line(_cells(group, now, width, releases=releases, queue=True), width) for group in groups]
    if found.ungrouped:
        note = f"{counted(found.ungrouped, 'dead task')} in no group: they died before groups were counted"
        lines.append(line([Cell(f"        {note}", "dim")], width))
    lines += [line([Cell(f"  {name}: {problem}", "red")], width) for name, problem in found.problems]
    title = f"FAILING MOST  (attempts failed, dead now, last{', release' if releases else ''}, error)"
    return [titled(title, width), *lines] if lines else []


def group_lines(screen: Screen, queue_dead: int, width: int, height: int) -> list[Text]:
    """A line for all dead tasks of the queue, then one for each group; the visible part includes the line under the
    cursor."""
    assert screen.look is not None
    groups = shown_groups(screen)
    at = next((at for at, one in enumerate(groups, start=1) if one.id == screen.group_at), 0)
    room = max(height - 1, 1)
    first = max(min(at - room // 2, len(groups) + 1 - room), 0)
    releases = any(one.release for one in groups)
    lines = [_all_line(queue_dead, width, selected=at == 0)]
    for n, one in enumerate(groups, start=1):
        cells = _cells(one, screen.look.now, width, releases=releases, queue=False)
        lines.append(line([_mark(selected=at == n), *cells], width, selected=at == n))
    job, _, release = _WIDE_COLUMNS if width >= _WIDE else _COLUMNS
    names = f"{'JOB':<{job}} {'RELEASE ':<{release + 1}}" if releases else f"{'JOB':<{job}} "
    title = f"{'FAILED':>8}{'DEAD':>11}{'LAST':>6} {names}ERROR"
    return [titled(title, width, bare=True), *lines[first : first + room]]


def _all_line(dead: int, width: int, *, selected: bool) -> Text:
    cells = [_mark(selected=selected), Cell(f"{'':7}{number(dead):>5} dead ", "bold red")]
    return line([*cells, Cell("      all dead tasks of the queue")], width, selected=selected)


def _mark(*, selected: bool) -> Cell:
    return Cell("▸ " if selected else "  ", "bold cyan")


def _cells(group: ErrorGroupView, now: datetime, width: int, *, releases: bool, queue: bool) -> list[Cell]:
    job_width, queue_width, release_width = _WIDE_COLUMNS if width >= _WIDE else _COLUMNS
    place = f", at {group.place}" if group.place and width >= _WIDE else ""
    ago = short_duration(max((now - group.last).total_seconds(), 0.0))
    return [
        Cell(f"{number(group.count):>6} ", "bold yellow"),
        Cell(f"{number(group.dead):>5} dead ", "bold red" if group.dead else "dim"),
        *(Cell(f"{ago:>5} ", "dim"), Cell(group.job or "(item)", "", job_width), Cell(" ")),
        *((Cell(group.queue, "cyan", queue_width), Cell(" ")) if queue else ()),
        *((Cell(group.release, "magenta", release_width), Cell(" ")) if releases else ()),
        *(Cell(group.title, "red" if group.dead else ""), Cell(place, "dim")),
    ]
