"""Formats large values as JSON for a page: copies and encodes only the part that the page shows.

Python's json writes lines with an indent a piece at a time, which takes a second for half a megabyte of small objects.
"""

import json
from typing import Any

_IN_LINES = json.JSONEncoder(indent=2, ensure_ascii=False, default=repr)


def json_text(value: Any, longest: int) -> tuple[str, bool]:
    """A value as indented JSON of at most `longest` characters, and whether that is the whole value."""
    pieces: list[str] = []
    length = 0
    for piece in _IN_LINES.iterencode(value):
        pieces.append(piece)
        length += len(piece)
        if length > longest:
            return "".join(pieces)[:longest], False
    return "".join(pieces), True


def first_parts(value: Any, most: int, deepest: int) -> tuple[Any, bool]:
    """A value with its first `most` parts, counted over all levels, and whether these are all. Parts deeper than
    `deepest` are unchanged."""
    left = most

    def taken(part: Any, deepest: int) -> Any:
        nonlocal left
        left -= 1
        if deepest > 0 and isinstance(part, dict):
            return {name: taken(one, deepest - 1) for name, one in part.items() if left > 0}
        if deepest > 0 and isinstance(part, list | tuple):
            return [taken(one, deepest - 1) for one in part if left > 0]
        return part

    found = taken(value, deepest)
    return found, left > 0
