"""Calls that list a long line page by page."""

from jobrunner.broker.call import Call, Verb
from jobrunner.broker.keys import QueueKeys

Page = tuple[int, list[str]]


def _page(reply: list[int | list[bytes]]) -> Page | None:
    if not reply:
        return None
    first, found = reply
    assert isinstance(first, int)
    assert isinstance(found, list)
    return first, [raw.decode("utf-8", "replace") for raw in found]


_read_page = Verb("page", _page)


def page(keys: QueueKeys, state: str, *, after: str | None, count: int) -> Call[Page | None]:
    """Up to `count` ids of one state behind the id `after` (None: from the first in line).

    Reply: rank of the first, and the ids; None when `after` is not in that state.
    """
    return _read_page.with_keys((getattr(keys, state),), after="" if after is None else after, count=count)
