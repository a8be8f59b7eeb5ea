"""The call that enqueues one plain task, made of the last one of its kind.

Most programs enqueue few kinds of tasks, one task at a time. To make and pack the same words for each took a third of
the client's time.
"""

from msgspec.structs import replace

from jobrunner.broker.call import Call, resp_args
from jobrunner.broker.calls import tasks
from jobrunner.broker.keys import QueueKeys
from jobrunner.broker.resp import packed_head
from jobrunner.task import Task

_TAIL = 3
"""Words of a task that has none of its own: id, payload, no wishes."""
_MOST = 1000
_last: dict[tuple[object, ...], Call[list[bool]]] = {}
"""By queue and kind of task."""


def is_plain(task: Task) -> bool:
    """Whether it is due at once, of the default priority, and has nothing that only few tasks have in common."""
    return (
        task.kept_s > 0 and task.delay_ms is None and task.at_ms is None and task.priority is None and task.key is None
        and task.headers is None and task.then is None
    )  # fmt: skip


def enqueue_plain(keys: QueueKeys, task: Task) -> Call[list[bool]]:
    """As `tasks.enqueue` for this task alone, which is plain and has no lock."""
    kind = keys.waiting, task.kept_s, tasks.traits_of(task)
    like = _last.get(kind)
    if like is None:
        if len(_last) >= _MOST:
            _last.clear()
        call = tasks.enqueue(keys, [task])
        like = _last[kind] = replace(call, head=packed_head(resp_args(call, b""), _TAIL))
    return replace(like, words=[*like.words[:-_TAIL], task.id, task.payload, ""])
