"""The operations on a whole queue, once for Queue and AsyncQueue: what they ask of the server, and what comes of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jobrunner.broker.call import Call
from jobrunner.broker.calls import events, leases, pages, queues, tasks
from jobrunner.broker.keys import check_id
from jobrunner.client import room
from jobrunner.client.events import who
from jobrunner.client.item import Item, Popped, check_verdict, milliseconds, read_headers, read_payload
from jobrunner.client.line import Line
from jobrunner.client.queue_settings import read_settings, write_settings
from jobrunner.client.relay import relaying
from jobrunner.client.steps import Steps, ask
from jobrunner.errors import InvalidOption, SealError, TaskGone
from jobrunner.seal import Bound, open_payload
from jobrunner.settings import Duration, QueueSettings, check_whole
from jobrunner.shown import shown
from jobrunner.task import Task, TaskRecord, TaskState

STATES = ("waiting", "scheduled", "pending", "dead", "done")
"""The states a queue is counted and listed by: each is the name of a sorted set, and of a field of QueueCounts."""
_PURGEABLE = ("waiting", "scheduled", "dead", "done")
_READ_AT_ONCE = 1000


def tasks_of(line: Line, payloads: Iterable[Any]) -> list[Task]:
    """What is pushed, checked."""
    return [line.task(item if isinstance(item, Item) else Item(item)) for item in payloads]


def push_many(line: Line, pushed: Sequence[Task], wait: Duration) -> Steps[list[str]]:
    """Returns the ids."""
    if pushed:
        before = [] if line.is_registered else queues.register(line.all_keys, [line.name])
        yield from room.write(before, [(line.keys, tasks.enqueue(line.keys, pushed))], wait)
        line.is_registered = True
    return [task.id for task in pushed]


def pop(line: Line, n: int) -> Steps[list[Popped]]:
    """Returns what was taken out."""
    check_whole(n, "n", minimum=1, maximum=1000)
    taken = yield from ask(leases.pop(line.keys, n))
    return [_popped(line, *raw) for raw in taken]


def _popped(
    line: Line, raw_id: bytes, type_: bytes | None, raw: bytes | None, headers: bytes | None, encoding: bytes | None
) -> Popped:
    found: Any
    try:
        bound = Bound(raw_id.decode("utf-8", "replace"), (type_ or b"").decode("utf-8", "replace"), line.keys.tag)
        opened = (raw, encoding) if line.keys.seal is None and not encoding else open_payload(
            line.keys.seal, raw or b"", encoding, bound
        )
        found = read_payload(*opened)
    except SealError as error:
        found = error
    return Popped(raw_id.decode("utf-8", "replace"), read_headers(headers), raw or b"", found)


def delete(line: Line, task_id: str) -> Steps[bool]:
    """Returns whether there was such an item. Raises NotReserved."""
    word = yield from ask(tasks.delete(line.keys, check_id(task_id)))
    return check_verdict(word, task_id) != "gone"


def counts(line: Line) -> Steps[dict[str, int]]:
    """Returns how many items are in each state."""
    found = yield from ask(queues.counts(line.keys))
    return {state: getattr(found, state) for state in STATES}


def totals(line: Line) -> Steps[dict[str, int]]:
    """Returns the totals by name."""
    return (yield from ask(queues.counts(line.keys))).totals


def is_paused(line: Line) -> Steps[bool]:
    """Returns whether it is."""
    return (yield from ask(queues.counts(line.keys))).paused


def pause(line: Line, for_: Duration | None) -> Steps[None]:
    """Sets the pause switch, for a while or until it is cleared."""
    length_ms = milliseconds(for_, "for_")
    event = events.note(line.all_keys, "queue_paused", queue=line.name, by=who(), for_ms=length_ms or "")
    yield from _switched(
        line, queues.configure(line.keys, {"paused": 1 if length_ms is None else f"+{length_ms}"}), event
    )


def resume(line: Line) -> Steps[None]:
    """Clears the pause switch."""
    event = events.note(line.all_keys, "queue_resumed", queue=line.name, by=who())
    yield from _switched(line, queues.configure(line.keys, {"paused": ""}), event)


def configure(line: Line, options: Mapping[str, Any]) -> Steps[None]:
    """Changes the settings named."""
    wanted = queues.configure(line.keys, write_settings(options, line.name))
    said = {f"set_{name}": str(value) for name, value in options.items()}
    event = events.note(line.all_keys, "queue_configured", queue=line.name, by=who(), **said)
    yield from _switched(line, wanted, event)


def settings(line: Line) -> Steps[QueueSettings]:
    """Returns the settings in force."""
    return read_settings((yield from ask(queues.settings(line.keys))))


def ids(line: Line, state: str, limit: int, start: int) -> Steps[list[str]]:
    """Returns ids by their place in line."""
    _check_state(state)
    check_whole(limit, "limit", minimum=1, maximum=10_000)
    check_whole(start, "start", minimum=0)
    return (yield from ask(queues.ids(line.keys, state, start=start, count=limit)))


def list_tasks(line: Line, state: str, limit: int, after: str | None) -> Steps[list[TaskRecord]]:
    """Returns one page of records; an empty one only at the end."""
    _check_state(state)
    check_whole(limit, "limit", minimum=1, maximum=_READ_AT_ONCE)
    page = yield from ask(pages.page(line.keys, state, after=None if after is None else check_id(after), count=limit))
    if page is None:
        raise TaskGone(f"task {after} is not {state} any more, so no page comes after it; begin again without after=")
    first, found = page
    while found:
        shown = yield [tasks.show(line.all_keys, task_id, queue=line.name) for task_id in found]
        if records := [record for record in shown if record is not None and _is_still(record, state)]:
            return records
        first += len(found)
        found = yield from ask(queues.ids(line.keys, state, start=first, count=limit))
    return []


def purge(line: Line, state: str, progress: Callable[[int], None] | None = None) -> Steps[int]:
    """Returns how many were deleted."""
    if state not in _PURGEABLE:
        raise InvalidOption(f"state {shown(state)} cannot be purged: choose one of {', '.join(_PURGEABLE)}")
    total = 0
    while gone := (yield from ask(queues.purge(line.keys, state))):
        total += gone
        if progress is not None:
            progress(total)
    if total:
        yield from ask(events.note(line.all_keys, "queue_purged", queue=line.name, by=who(), state=state, count=total))
        yield from relaying(line.all_keys, tags=[line.keys.tag])
    return total


def _switched(line: Line, *wanted: Call[Any]) -> Steps[None]:
    """Calls that may be the first on their queue, and that work on a server that is full."""
    yield [*queues.register_if_room(line.all_keys, [line.name]), *wanted]


def _is_still(record: TaskRecord, state: str) -> bool:
    """Whether the task has not left since its id was listed; sets that are no TaskState hold what is finished."""
    return record.state == state or state not in TaskState.__members__.values()


def _check_state(state: str) -> None:
    if state not in STATES:
        raise InvalidOption(f"state {shown(state)}: choose one of {', '.join(STATES)}")
