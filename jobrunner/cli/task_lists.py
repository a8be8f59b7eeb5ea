"""Lists tasks in commands: filter options, the search with its progress, rows and JSON values."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from itertools import islice
from typing import Any

import click

from jobrunner.broker.call import in_slices
from jobrunner.broker.keys import tag_of_id
from jobrunner.cli.options import CommonOptions, not_empty
from jobrunner.cli.output import answer_json, echo, plain_json, prints_all_columns, readable, rising, table, talk, when
from jobrunner.cli.status import tell_unread, workers_or_warning
from jobrunner.cli.suggestions import job_names, queue_names
from jobrunner.client.client import Client
from jobrunner.clock import instant_of
from jobrunner.errors import InvalidOption
from jobrunner.formatting import cut
from jobrunner.inspector.attempts import with_begun_attempts
from jobrunner.inspector.search import EXAMINED_AT_ONCE, latest, matching, search, total_of
from jobrunner.inspector.search_filter import Filter
from jobrunner.inspector.task_rows import LATEST_FIRST, STATES, TaskPosition, TaskRow, read_tasks
from jobrunner.redaction import TOO_DEEP, Redaction
from jobrunner.task import ENCRYPTED, TaskState
from jobrunner.task_record import TaskRecord

SHOWN = ("retry_count", "attempts", "priority")
_OWN = frozenset(
    {"id", "type", "queue", "enqueue_time", "payload", "result", "error", "headers", "progress", "failures", *SHOWN}
)
_LONGEST = 60
_AT_ONCE = 100
"""Records read at once: few enough that their payloads, up to 1 MiB each, fit into memory."""
_ROWS_AT_ONCE = 2000
"""Rows of one page of a search, which begins with the counts of all queues."""
_BUDGET_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConditions:
    """The filter conditions of a command: case-insensitive substrings, and a span of time."""

    job: str | None
    error: str | None
    param: str | None
    since: datetime | None
    until: datetime | None

    @property
    def are_none(self) -> bool:
        """Whether there are no conditions, so that every task matches."""
        return self == TaskConditions(job=None, error=None, param=None, since=None, until=None)

    def filter(self, queue: str | None, state: str | None) -> Filter:
        """The filter of a search."""
        return Filter(
            queue=queue or "", state=state or "", job=self.job or "", error=self.error or "", param=self.param or "",
            since=self.since, until=self.until,
        )  # fmt: skip

    def __str__(self) -> str:
        """The conditions as the end of a sentence: ` of job 'Mail' with 'refused' in their errors`."""
        parts = [
            ("" if self.job is None else f" of job {self.job!r}"),
            ("" if self.error is None else f" with {self.error!r} in their errors"),
            ("" if self.param is None else f" with {self.param!r} in their parameters"),
            ("" if self.since is None else f" since {self.since.isoformat(timespec='seconds')}"),
            ("" if self.until is None else f" before {self.until.isoformat(timespec='seconds')}"),
        ]
        return "".join(parts)


def with_conditions(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of `TaskConditions`, passed to the command as `conditions`."""

    @click.option("--job", metavar="TEXT", callback=not_empty, shell_complete=job_names,
                  help="Only jobs whose name contains this text.")  # fmt: skip
    @click.option("--error", metavar="TEXT", callback=not_empty,
                  help="Only tasks whose last error contains this text.")  # fmt: skip
    @click.option("--param", metavar="TEXT", callback=not_empty,
                  help="Only tasks whose parameters contain this text; name=value: with this whole value.")  # fmt: skip
    @click.option("--since", type=_instant, metavar="WHEN",
                  help="Only from this time on: 2h, 2026-11-20T20:00+01:00, or UTC without an offset. Dead tasks by "
                       "death, scheduled ones by due time, others by enqueueing.")  # fmt: skip
    @click.option("--until", type=_instant, metavar="WHEN", help="Only before this time.")
    @wraps(command)
    def conditional(
        *args: Any, job: str | None, error: str | None, param: str | None, since: datetime | None,
        until: datetime | None, **rest: Any,
    ) -> Any:  # fmt: skip
        found = TaskConditions(job=job, error=error, param=param, since=since, until=until)
        return command(*args, conditions=found, **rest)

    return conditional


def _instant(text: str) -> datetime:
    try:
        found = instant_of(text, option="it")
    except InvalidOption as error:
        raise click.BadParameter(str(error).removeprefix("it=")) from error
    if found is None:
        raise click.BadParameter(f"{text!r} is empty: give an instant such as 2026-03-01T12:30Z, or leave it out")
    return found


@dataclass(frozen=True, slots=True)
class FoundTasks:
    """The tasks of a list; `are_cut` says that more match. `problems`: queues that were not searched, and why."""

    records: list[TaskRecord]
    are_cut: bool
    problems: dict[str, str]


def find_tasks(client: Client, wanted: Filter, limit: int, hides: Redaction) -> FoundTasks:
    """The first `limit` tasks that match, found by a search of all states; a terminal shows the progress."""
    problems: dict[str, str] = {}
    with searching(client, wanted) as tell:
        if wanted.state in LATEST_FIRST:
            found = _latest(client, wanted, hides, tell, problems)
        else:
            found = _in_line(client, wanted, limit + 1, hides, tell, problems)
        rows = list(islice(found, limit + 1))
    return FoundTasks(_records(client, rows[:limit]), are_cut=len(rows) > limit, problems=problems)


def _latest(
    client: Client, wanted: Filter, hides: Redaction, tell: Callable[[int], None], problems: dict[str, str]
) -> Iterator[TaskRow]:
    searched = 0

    def examined(count: int) -> None:
        nonlocal searched
        searched += count
        tell(searched)

    return latest(client, wanted, redaction=hides, examined=examined, unread=problems.update)


def _in_line(
    client: Client, wanted: Filter, limit: int, hides: Redaction, tell: Callable[[int], None],
    problems: dict[str, str],
) -> Iterator[TaskRow]:  # fmt: skip
    found, onward = 0, ""
    while found < limit:
        count = min(limit - found, _ROWS_AT_ONCE)
        page = search(client, wanted, after=onward, limit=count, budget_s=_BUDGET_S, redaction=hides)
        found += len(page.tasks)
        problems.update(page.problems)
        yield from page.tasks
        onward = page.onward
        tell(page.searched)
        if not onward:
            break


def matching_tasks(client: Client, wanted: Filter) -> list[TaskPosition]:
    """All tasks that match; a terminal shows the progress of the search."""
    found, searched = list[TaskPosition](), 0
    with searching(client, wanted) as tell:
        for some in matching(client, wanted, client.redaction()):
            found += some
            searched += EXAMINED_AT_ONCE
            tell(searched)
    return found


@contextmanager
def searching(client: Client, wanted: Filter) -> Iterator[Callable[[int], None]]:
    """A callback that takes the number of searched tasks, which a bar shows if there is a condition to search for."""
    if not wanted.is_narrow:
        yield lambda _: None
        return
    with rising(total_of(client, wanted), "searching", "tasks") as progress:
        yield progress or (lambda _: None)


def _records(client: Client, rows: list[TaskRow]) -> list[TaskRecord]:
    places = [(row.queue, row.id) for row in rows]
    records = [record for some in in_slices(places, _AT_ONCE) for record in read_tasks(client, some)]
    if not any(record.state is TaskState.PENDING for record in records):
        return records
    return with_begun_attempts(records, workers_or_warning(client))


def show_list(
    shared: CommonOptions, hides: Redaction, found: FoundTasks, nothing: str, *, wide: bool = False
) -> None:
    """Prints the tasks, a row each, or that there are none."""
    records = found.records
    tell_unread(found.problems)
    if shared.as_json:
        answer_json([task_value(record, hides) for record in records])
    elif records:
        is_wide = prints_all_columns(wide=wide)
        names_queue = is_wide or any(tag_of_id(record.id) != record.queue for record in records)
        more = ("ATTEMPTS", "ENQUEUED") if is_wide else ()
        columns = ("ID", "JOB", *(("QUEUE",) if names_queue else ()), "STATE", "WHEN", *more, "ERROR OR PAYLOAD")
        rows = [_row(record, hides, names_queue=names_queue, is_wide=is_wide) for record in records]
        echo(table(columns, rows, names=("JOB", "QUEUE"), tail=True, wide=wide))
        if found.are_cut:
            talk("there are more: give --limit")
    else:
        talk(nothing)


def nothing_found(queue: str | None, state: str | None, conditions: TaskConditions) -> str:
    """The text for a search without matches."""
    what = f"{state + ' ' if state else ''}tasks{conditions}"
    return f"queue {queue} has no {what}" if queue else f"there are no {what}"


def task_value(record: TaskRecord, hides: Redaction) -> dict[str, Any]:
    """A task as JSON: its record, and the other fields of its hash as text, redacted."""
    shown = hides.shown
    known = {name: getattr(record, name) for name in ("id", "type", "queue", "state", "when", "enqueue_time", *SHOWN)}
    return {
        **known,
        "error": hides.text(record.error),
        "payload": record.placeholder or shown(readable(record.payload)),
        "result": _result(record, shown),
        "headers": shown(readable(record.fields.get("headers", b"{}"))),
        "progress": shown(readable(record.fields.get("progress", b"null"))),
        "fields": {name: _field(value, hides) for name, value in record.fields.items() if name not in _OWN},
    }


def short(value: Any) -> str:
    """A payload on one line."""
    if isinstance(value, dict):
        return " ".join(f"{name}={part}" for name, part in value.items())
    return str(value)


def _result(record: TaskRecord, shown: Callable[[Any], Any]) -> Any:
    if record.result is None:
        return None
    return ENCRYPTED if record.has_encrypted_result else shown(readable(record.result))


def _field(raw: bytes, hides: Redaction) -> str:
    value = readable(raw)
    if isinstance(value, str) and value is TOO_DEEP:
        return TOO_DEEP
    if isinstance(value, dict | list):
        return json.dumps(plain_json(hides.shown(value)))
    return hides.text(raw.decode("utf-8", "replace"))


def _row(record: TaskRecord, hides: Redaction, *, names_queue: bool, is_wide: bool) -> tuple[object, ...]:
    text = hides.text(record.error.partition("\n")[0])
    if not text:
        text = record.placeholder or short(hides.shown(readable(record.payload)))
    return (
        *(record.id, record.type),
        *((record.queue,) if names_queue else ()),
        *(record.state, when(record.when)),
        *((record.attempts, when(record.enqueue_time)) if is_wide else ()),
        text if is_wide else cut(text, _LONGEST),
    )


LIMIT = click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Most tasks to print."
)
STATE = click.option("--state", type=click.Choice(STATES), help="Only tasks in this state; default: all four.")
QUEUE = click.argument("queue", required=False, shell_complete=queue_names)
