"""Names of reserve calls, from which lease tokens are made."""

import itertools
import os


class _Source:
    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Takes a new process part; a forked child must not share its parent's."""
        self._process = os.urandom(6).hex()
        self._count = itertools.count(1)

    def next(self) -> str:
        return f"{self._process}{next(self._count):x}"


_source = _Source()
os.register_at_fork(after_in_child=_source.renew)


def new_token() -> str:
    """A name for one reserve call that no other call of any process has."""
    return _source.next()
