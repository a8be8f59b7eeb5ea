"""Groups failed attempts with the same job, class of the error, message and place in the code.

The message is compared without parts that differ between attempts: numbers, ids, hexadecimal digits and quoted values.
"""

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

_LONGEST_MESSAGE = 200
_ID_DIGITS = 10
_QUOTED = re.compile(r"""(?<!\w)(["'`])(?:(?!\1).)*\1(?!\w)""")
_IDS = re.compile(
    r"\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b"
    r"|\b(?:0x)?[0-9A-Fa-f]{8,}\b|\b(?=[A-Za-z_]*\d)\w{8,}\b|\d+"
)
_RUNS = re.compile(r"#(?:[-#.,:/+TZ]*#)+Z?")
_CLASS = re.compile(r"([A-Za-z_][\w.]*)(?:: |:?$)")


class ErrorGroup(NamedTuple):
    """The group of a failed attempt, in the form that is sent to the server."""

    id: str
    definition: str
    """Five lines: job, class of the error, message, place in the code, and the release that reports it."""


class ErrorKind(NamedTuple):
    """The common properties of the attempts of a group."""

    job: str
    error_type: str
    message: str
    place: str
    """File and function of the innermost frame of the user's code; empty where no exception was raised."""


@lru_cache(maxsize=1000)
def group_of(job: str, error: str, *, error_type: str = "", place: str = "", release: str = "") -> ErrorGroup:
    """The group of an error. `error` is its telling line: the class, a colon and the message, or any text."""
    found = _CLASS.match(error)
    message = error[found.end() :] if found else error
    kind = ErrorKind(job, error_type or (found[1] if found else ""), normalized(message), place)
    lines = "\n".join(" ".join(line.split()) for line in kind)
    digest = hashlib.sha1(lines.encode(), usedforsecurity=False).hexdigest()[:_ID_DIGITS]
    return ErrorGroup(digest, f"{lines}\n{' '.join(release.split())}")


def telling_line(error: str) -> str:
    """The line of an error that names it: the last line of a traceback, else the first line."""
    lines = error.strip().splitlines()
    return (lines[-1] if lines[0].startswith("Traceback") else lines[0]).strip() if lines else ""


def normalized(message: str) -> str:
    """The message with `#` for numbers, ids and hexadecimal digits, and empty quotes for quoted values; cut."""
    text = _QUOTED.sub(r"\1…\1", message[: 2 * _LONGEST_MESSAGE])
    text = _RUNS.sub("#", _IDS.sub("#", text))
    return " ".join(text.split())[:_LONGEST_MESSAGE]
