"""The state of the screen. Pure: a key maps a screen to the next one, and possibly a request to the server."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from jobrunner.formatting import counted
from jobrunner.inspector.error_groups import ErrorGroups, ErrorGroupView
from jobrunner.inspector.live_rates import Rates
from jobrunner.inspector.live_snapshot import LiveSnapshot
from jobrunner.inspector.snapshot import QueueView
from jobrunner.inspector.task_rows import STATES, TaskRow
from jobrunner.redaction import Redaction
from jobrunner.task_record import TaskRecord

SORTS = ("name", "open", "rate", "dead")
_PAGE = 10
_LONGEST_FILTER = 60

Page = Literal["queues", "tasks", "task"]
Act = Literal["quit", "read", "pause", "resume", "requeue all", "requeue group", "requeue", "cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest:
    """A request to the server; `read`: refresh the page at once."""

    act: Act
    queue: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A yes/no question, with the request that a yes sends."""

    text: str
    wish: ServerRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The state from which a frame is drawn. Rows are identified by name, so that the cursor stays on its row when rows
    move."""

    look: LiveSnapshot | None = None
    rates: Mapping[str, Rates] = field(default_factory=dict)
    total: Rates = field(default_factory=Rates)
    groups: ErrorGroups | None = None
    """The groups of errors of all queues, some seconds old; None before they were read."""
    ends: frozenset[str] = frozenset()
    """Queues of pipelines that need no worker."""
    page: Page = "queues"
    queue: str | None = None
    """The queue under the cursor, or the entered queue."""
    sort: str = "name"
    queue_filter: str = ""
    state: str = "pending"
    tasks: tuple[TaskRow, ...] | None = None
    """Tasks of the page; None while they are being read."""
    note: str = ""
    """The number of dead tasks examined to find those of the group; empty when all were examined."""
    group: str | None = None
    """The group whose dead tasks are listed, "" for all dead tasks of the queue; None while groups are listed."""
    group_at: str = ""
    """The group under the cursor; "" is the line of all dead tasks."""
    task: str | None = None
    task_filter: str = ""
    record: TaskRecord | None = None
    gone: bool = False
    scroll: int = 0
    typing: bool = False
    helping: bool = False
    question: Question | None = None
    message: str = ""
    redaction: Redaction = field(default_factory=Redaction)
    """Redaction for the displayed task."""
    trouble: str = ""
    """The error of the last read; empty when it succeeded."""

    @property
    def filter(self) -> str:
        """The filter of this page."""
        return self.queue_filter if self.page == "queues" else self.task_filter


def shown_queues(screen: Screen) -> list[QueueView]:
    """Queues that pass the filter, sorted."""
    found = [queue for queue in screen.look.queues if _has(queue.name, screen.queue_filter)] if screen.look else []
    return sorted(found, key=lambda queue: (-_weight(screen, queue), queue.name))


def _weight(screen: Screen, queue: QueueView) -> float:
    if screen.sort == "open":
        return queue.open
    if screen.sort == "rate":
        return screen.rates.get(queue.name, Rates()).out or 0.0
    return queue.dead if screen.sort == "dead" else 0.0


def shown_tasks(screen: Screen) -> list[TaskRow]:
    """Tasks of the page that pass the filter: by job, id, or error."""
    return [line for line in screen.tasks or () if _has(f"{line.type}\0{line.id}\0{line.error}", screen.task_filter)]


def groups_of_queue(screen: Screen) -> list[ErrorGroupView]:
    """The groups with dead tasks of the queue, with most first."""
    return [one for one in screen.groups.groups if one.queue == screen.queue and one.dead] if screen.groups else []


def lists_groups(screen: Screen) -> bool:
    """Whether the page of tasks lists groups of dead tasks instead; it opens so where there are groups."""
    return screen.state == "dead" and screen.group is None and bool(groups_of_queue(screen))


def shown_groups(screen: Screen) -> list[ErrorGroupView]:
    """Groups of the page that pass the filter: by job or error."""
    return [one for one in groups_of_queue(screen) if _has(f"{one.job}\0{one.title}", screen.task_filter)]


def press(screen: Screen, key: str) -> tuple[Screen, ServerRequest | None]:
    """The screen after a key, and the request to the server, if any."""
    screen = replace(screen, message="")
    if screen.question is not None:
        return replace(screen, question=None), screen.question.wish if key in ("y", "Y") else None
    if screen.typing:
        return _type(screen, key), None
    if screen.helping:
        return replace(screen, helping=False), ServerRequest(act="quit") if key == "q" else None
    if key == "q":
        return screen, ServerRequest(act="quit")
    if key == "?":
        return replace(screen, helping=True), None
    return {"queues": _on_queues, "tasks": _on_tasks, "task": _on_task}[screen.page](screen, key)


def settled(screen: Screen) -> Screen:
    """The screen with the cursor on an existing row."""
    names = [queue.name for queue in shown_queues(screen)]
    if screen.page == "queues" and screen.queue not in names:
        screen = replace(screen, queue=names[0] if names else None)
    if screen.group_at not in [one.id for one in shown_groups(screen)]:
        screen = replace(screen, group_at="")
    ids = [line.id for line in shown_tasks(screen)]
    if screen.page == "tasks" and screen.task not in ids:
        screen = replace(screen, task=ids[0] if ids else None)
    return screen


def _on_queues(screen: Screen, key: str) -> tuple[Screen, ServerRequest | None]:
    names = [queue.name for queue in shown_queues(screen)]
    if (moved := _moved(names, screen.queue, key)) is not None:
        return replace(screen, queue=moved), None
    if key == "s":
        sort = SORTS[(SORTS.index(screen.sort) + 1) % len(SORTS)]
        return replace(screen, sort=sort, message=f"sorted by {sort}"), None
    if key == "/":
        return replace(screen, typing=True), None
    if key == "escape":
        return replace(screen, queue_filter=""), None
    found = next((queue for queue in shown_queues(screen) if queue.name == screen.queue), None)
    return (screen, None) if found is None else _on_queue(screen, key, found)


def _on_queue(screen: Screen, key: str, queue: QueueView) -> tuple[Screen, ServerRequest | None]:
    if key in ("enter", "right", "l"):
        fullest = max(STATES, key=lambda state: getattr(queue, state))
        opened = replace(screen, page="tasks", task_filter="", group=None, group_at="", state=fullest)
        return _entering(opened), ServerRequest(act="read")
    if key == "p":
        return screen, ServerRequest(act="resume" if queue.paused else "pause", queue=queue.name)
    if key == "r":
        return _ask_requeue(screen, queue), None
    return screen, None


def _ask_requeue(screen: Screen, queue: QueueView) -> Screen:
    if not queue.dead:
        return replace(screen, message=f"queue {queue.name} has no dead tasks")
    noun = "task" if queue.dead == 1 else "tasks"
    text = f"Requeue {queue.dead:,} dead {noun} of queue {queue.name}?"
    return replace(screen, question=Question(text=text, wish=ServerRequest(act="requeue all", queue=queue.name)))


def _on_tasks(screen: Screen, key: str) -> tuple[Screen, ServerRequest | None]:
    is_of_groups = lists_groups(screen)
    ids = ["", *(one.id for one in shown_groups(screen))] if is_of_groups else [one.id for one in shown_tasks(screen)]
    if (moved := _moved(ids, screen.group_at if is_of_groups else screen.task, key)) is not None:
        return (replace(screen, group_at=moved) if is_of_groups else replace(screen, task=moved)), None
    if key in ("tab", "right", "l", "backtab", "left", "h"):
        step = -1 if key in ("backtab", "left", "h") else 1
        state = STATES[(STATES.index(screen.state) + step) % len(STATES)]
        return _entering(replace(screen, state=state, group=None)), ServerRequest(act="read")
    if key == "/":
        return replace(screen, typing=True), None
    if key == "escape":
        return _back(screen)
    if key == "p" and (queue := entered_queue(screen)) is not None:
        return screen, ServerRequest(act="resume" if queue.paused else "pause", queue=queue.name)
    if is_of_groups:
        return _on_group(screen, key)
    if screen.task is None:
        return screen, None
    if key == "enter":
        return replace(screen, page="task", record=None, gone=False, scroll=0), ServerRequest(act="read")
    return _ask_about_task(screen, key, screen.state)


def _back(screen: Screen) -> tuple[Screen, ServerRequest | None]:
    """Goes back: from a filter to all rows, from a list of dead tasks to their groups, from there to the queues."""
    if screen.task_filter:
        return replace(screen, task_filter=""), None
    if screen.group is not None and lists_groups(replace(screen, group=None)):
        return _entering(replace(screen, group=None)), ServerRequest(act="read")
    return replace(screen, page="queues", group=None), None


def _on_group(screen: Screen, key: str) -> tuple[Screen, ServerRequest | None]:
    if key == "enter":
        chosen = replace(screen, group=screen.group_at, task_filter="")
        return _entering(chosen), ServerRequest(act="read")
    if key != "r":
        return screen, None
    found = next((one for one in shown_groups(screen) if one.id == screen.group_at), None)
    if found is None:
        queue = entered_queue(screen)
        return (screen if queue is None else _ask_requeue(screen, queue)), None
    text = f"Requeue {counted(found.dead, 'dead task')} of queue {found.queue} with {found.title!r}?"
    wish = ServerRequest(act="requeue group", queue=found.queue, id=found.id)
    return replace(screen, question=Question(text=text, wish=wish)), None


def _on_task(screen: Screen, key: str) -> tuple[Screen, ServerRequest | None]:
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -_PAGE, "pagedown": _PAGE, "home": -(10**6), "g": -(10**6)}
    if key in steps:
        return replace(screen, scroll=max(screen.scroll + steps[key], 0)), None
    if key in ("escape", "left", "h"):
        return replace(screen, page="tasks"), ServerRequest(act="read")
    return _ask_about_task(screen, key, "" if screen.record is None else str(screen.record.state))


def _ask_about_task(screen: Screen, key: str, state: str) -> tuple[Screen, ServerRequest | None]:
    queue, task_id = screen.queue or "", screen.task or ""
    if key == "r":
        if state != "dead":
            return replace(screen, message="only a dead task can be requeued"), None
        wish = ServerRequest(act="requeue", queue=queue, id=task_id)
        return replace(screen, question=Question(text=f"Requeue task {task_id}?", wish=wish)), None
    if key == "x":
        if state not in ("waiting", "scheduled", "pending"):
            return replace(screen, message="this task is over"), None
        wish = ServerRequest(act="cancel", queue=queue, id=task_id)
        return replace(screen, question=Question(text=f"Cancel task {task_id}?", wish=wish)), None
    return screen, None


def entered_queue(screen: Screen) -> QueueView | None:
    """The present view of the entered queue."""
    queues = screen.look.queues if screen.look else ()
    return next((queue for queue in queues if queue.name == screen.queue), None)


def _entering(screen: Screen) -> Screen:
    return replace(screen, tasks=None, task=None, note="")


def _type(screen: Screen, key: str) -> Screen:
    text = screen.filter
    if key == "enter":
        return replace(screen, typing=False)
    if key == "escape":
        return _filtered(replace(screen, typing=False), "")
    if key == "backspace":
        return _filtered(screen, text[:-1])
    return _filtered(screen, text + key) if len(key) == 1 and len(text) < _LONGEST_FILTER else screen


def _filtered(screen: Screen, text: str) -> Screen:
    changed = replace(screen, queue_filter=text) if screen.page == "queues" else replace(screen, task_filter=text)
    return settled(changed)


def _moved(rows: list[str], at: str | None, key: str) -> str | None:
    """The row that a key moves to; None when it is no key to move with, or there is no row."""
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -_PAGE, "pagedown": _PAGE}
    ends = {"home": 0, "g": 0, "end": len(rows) - 1, "G": len(rows) - 1}
    if not rows or key not in steps | ends:
        return None
    here = rows.index(at) if at in rows else 0
    there = ends[key] if key in ends else here + steps[key]
    return rows[min(max(there, 0), len(rows) - 1)]


def _has(text: str, wanted: str) -> bool:
    return re.search(re.escape(wanted), text, re.IGNORECASE) is not None
