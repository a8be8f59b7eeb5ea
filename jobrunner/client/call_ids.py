"""Names of calls that no other call has: of a reserve, from which lease tokens are made; of a push under an id of the
user's own."""

import itertools
import os
from collections.abc import Iterable

from jobrunner.task import Task


class _CallIds:
    def __init__(self) -> None:
        self._process = os.urandom(6).hex()
        self._count = itertools.count(1)

    def renew(self) -> None:
        """Takes a new process part; a forked child must not share its parent's."""
        self._process = os.urandom(6).hex()

    def next(self) -> str:
        return f"{self._process}{next(self._count):x}"


_source = _CallIds()
os.register_at_fork(after_in_child=_source.renew)


def new_token() -> str:
    """A name for one call that no other call of any process has."""
    return _source.next()


_REMEMBERED = 1000
_unknown: dict[tuple[str, str], str] = {}


def sending_of(queue: str, task_id: str) -> str:
    """Distinguishes one enqueue of a task under a user-chosen id from other enqueues of that id.

    When it is not known what became of the sending before, it is that one again: applied, it adds nothing now.
    """
    return (_unknown.pop((queue, task_id), None) if _unknown else None) or new_token()


def remember_unknown(tasks: Iterable[Task]) -> None:
    """It is not known whether these were added."""
    for task in tasks:
        if task.sending:
            _unknown[task.queue, task.id] = task.sending
    while len(_unknown) > _REMEMBERED:
        _unknown.pop(next(iter(_unknown)), None)
