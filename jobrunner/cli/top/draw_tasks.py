"""Draws the pages of one queue's tasks and of one task. Pure functions."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from rich.text import Text

from jobrunner.cli.output import readable
from jobrunner.cli.top.draw_groups import group_lines
from jobrunner.cli.top.state import Screen, entered_queue, groups_of_queue, lists_groups, shown_tasks
from jobrunner.cli.top.terminal import Cell, line, plain, titled
from jobrunner.formatting import number, short_duration
from jobrunner.inspector.attempts import TimelineEvent, timeline
from jobrunner.inspector.task_rows import STATES, TaskRow
from jobrunner.redaction import Redaction
from jobrunner.task import ENCRYPTED
from jobrunner.task_record import TaskRecord
from jobrunner.tracebacks import short_traceback

_STYLES = {"pending": "green", "waiting": "cyan", "scheduled": "blue", "dead": "red"}
_WHEN = {"pending": "LEASE", "waiting": "", "scheduled": "DUE", "dead": "DIED"}


def tasks_lines(screen: Screen, width: int, height: int) -> list[Text]:
    """The tasks of the queue in one state, around the task under the cursor."""
    head = [_tabs(screen, width), titled(_columns(screen.state, width), width, bare=True)]
    if lists_groups(screen) and (queue := entered_queue(screen)) is not None:
        return [head[0], *group_lines(screen, queue.dead, width, max(height - 1, 2))]
    if screen.tasks is None:
        return [*head, line([Cell("  looking …", "dim")], width)]
    rows = shown_tasks(screen)
    if not rows:
        note = f"none of the first {len(screen.tasks)} has {screen.task_filter!r}" if screen.tasks else "none"
        return [*head, line([Cell(f"  {note}", "dim")], width)]
    room = max(height - len(head), 1)
    at = next((at for at, row in enumerate(rows) if row.id == screen.task), 0)
    first = max(min(at - room // 2, len(rows) - room), 0)
    return [*head, *(_row(screen, row, width) for row in rows[first : first + room])]


def task_lines(screen: Screen, width: int, height: int) -> list[Text]:
    """Everything about one task, scrolled."""
    title = titled(f"TASK {screen.task} of {screen.queue}", width)
    if screen.record is None:
        note = "it finished and is no longer kept, or was deleted" if screen.gone else "looking …"
        return [title, line([Cell(f"  {note}", "dim")], width)]
    lines = list(_all_of(screen.record, screen.redaction, width))
    first = min(screen.scroll, max(len(lines) - (height - 1), 0))
    return [title, *lines[first : first + height - 1]]


def _tabs(screen: Screen, width: int) -> Text:
    queue = entered_queue(screen)
    cells = [Cell(f"  {screen.queue}  ", "bold cyan")]
    for state in STATES:
        count = number(getattr(queue, state)) if queue else "?"
        chosen = f"bold reverse {_STYLES[state]}"
        cells += [Cell(f" {state} {count} ", chosen if state == screen.state else _STYLES[state]), Cell(" ")]
    if queue is not None and queue.paused:
        cells.append(Cell(" ‖ paused", "bold yellow"))
    if screen.state == "dead" and screen.group:
        title = next((one.title for one in groups_of_queue(screen) if one.id == screen.group), screen.group)
        cells.append(Cell(f" {title} {screen.note}", "bold"))
    if screen.task_filter:
        cells.append(Cell(f" /{screen.task_filter}", "bold"))
    return line(cells, width)


def _columns(state: str, width: int) -> str:
    job = _job_width(width)
    return f"  {'JOB':<{job}} {_WHEN[state]:>8} {'TRY':>4} {'ENQUEUED':>9}  {'ERROR, OR ID':<20}"


def _job_width(width: int) -> int:
    return max(min(width // 3, 40), 12)


def _row(screen: Screen, row: TaskRow, width: int) -> Text:
    assert screen.look is not None
    now = screen.look.now
    chosen = row.id == screen.task
    return line(
        [
            Cell("▸ " if chosen else "  ", "bold cyan"), Cell(row.type or "(item)", "bold" if chosen else "",
            _job_width(width)), Cell(f" {_away(row.when, now):>8}", _STYLES[row.state]),
            Cell(f" {row.attempt or '–':>4}", "yellow" if (row.attempt or 0) > 1 else "dim"),
            Cell(f" {_away(row.enqueued, now):>9}  "), Cell(row.error or row.id, "red" if row.error else "dim"),
        ],
        width,
        selected=chosen,
    )  # fmt: skip


def _away(instant: datetime | None, now: datetime) -> str:
    if instant is None:
        return ""
    away_s = (instant - now).total_seconds()
    return f"in {short_duration(away_s)}" if away_s > 0 else f"{short_duration(-away_s)} ago"


def _all_of(record: TaskRecord, redaction: Redaction, width: int) -> Iterator[Text]:
    for name, value in _facts(record, redaction):
        yield line([Cell(f"  {name:<12}", "dim"), Cell(value)], width)
    yield titled("TIMELINE", width)
    moments = (replace(moment, text=redaction.text(moment.text)) for moment in timeline(record))
    yield from (_moment(moment, width) for moment in moments)
    for title, raw, placeholder in (
        ("PAYLOAD", record.payload, record.placeholder),
        ("RESULT", record.result, ENCRYPTED if record.has_encrypted_result else ""),
    ):
        if raw is not None:
            yield titled(title, width)
            yield from _block(placeholder or _pretty(redaction.shown(readable(raw))), width)
    if record.error:
        yield titled("LAST ERROR", width)
        yield from _block(short_traceback(redaction.text(record.error.rstrip())), width, "red")


def _facts(record: TaskRecord, redaction: Redaction) -> Iterator[tuple[str, str]]:
    yield "job", record.type or "(an item of a bare queue)"
    yield "state", str(record.state)
    yield "attempts", f"{record.attempts}, {record.retry_count} of them failed"
    yield "priority", str(record.priority)
    headers = redaction.shown(readable(record.fields.get("headers", b"{}")))
    if headers:
        yield "headers", json.dumps(headers, ensure_ascii=False)
    progress = redaction.shown(readable(record.fields.get("progress", b"null")))
    if progress:
        yield "progress", json.dumps(progress, ensure_ascii=False)


def _moment(moment: TimelineEvent, width: int) -> Text:
    style = "red" if moment.kind in ("failed", "crashed", "expired", "died") else "blue" if moment.ahead else ""
    attempt = f"attempt {moment.attempt}" if moment.attempt else ""
    word = _AHEAD.get(moment.kind, moment.kind)
    return line(
        [Cell(f"  {_exactly(moment.at)}  "), Cell(word, style, 12), Cell(attempt, "dim", 12), Cell(moment.text)], width
    )


_AHEAD = {"retry": "next try", "due": "due", "lease": "lease ends"}


def _exactly(instant: datetime) -> str:
    return instant.astimezone().isoformat(sep=" ", timespec="seconds")


def _pretty(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _block(text: str, width: int, style: str = "") -> Iterator[Text]:
    """The lines of a text; long lines are wrapped."""
    room = max(width - 2, 10)
    for one in text.splitlines():
        clean = plain(one.expandtabs(4))
        for at in range(0, max(len(clean), 1), room):
            yield line([Cell("  "), Cell(clean[at : at + room], style)], width)
