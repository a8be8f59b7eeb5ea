"""From the bytes that a terminal sends to the names of keys. Pure."""

import re
from collections.abc import Iterator

_NAMED = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[5~": "pageup", "\x1b[6~": "pagedown", "\x1b[H": "home", "\x1b[F": "end", "\x1b[1~": "home",
    "\x1b[4~": "end", "\x1bOH": "home", "\x1bOF": "end", "\x1b[Z": "backtab",
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape",
    "\x0c": "redraw", "\x04": "pagedown", "\x15": "pageup",
}  # fmt: skip
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[A-Za-z])|.", re.DOTALL)


def names_of(text: str) -> Iterator[str]:
    """The name of each key: `up`, `enter`, `escape`, ..., or the character itself; sequences unknown are left out."""
    for found in _SEQUENCE.finditer(text):
        word = found.group()
        if word in _NAMED:
            yield _NAMED[word]
        elif len(word) == 1 and word.isprintable():
            yield word


def is_cut(text: str) -> bool:
    """Whether the text ends within a sequence, of which the rest is still to come."""
    return re.search(r"\x1b(?:\[[0-9;?]*|O)?$", text) is not None
