"""Puts a script together of its own text and what it includes, so that a call makes few functions.

EVALSHA runs a script from its first line on at each call, and each `local function` makes a function, every time. So:

- What a script does not reach is left out.
- ``-- rarely a b`` names included functions that most calls do not need. What only they reach goes with them into one
  function, which makes all of these when one is first called: ``a(x)`` becomes ``rarely_1().a(x)``. Each such line is a
  group of its own.
- A name in capitals that stands for a number or a text is replaced by it.

So a file of `lua/lib/` has statements `local ...` at its margin, comments, and nothing else; a function that is made
rarely is called by its name and is not passed on, and its name stands for nothing else in the script.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

_LINE = re.compile(r"^-- (include|rarely) ([\w ]+)\n", re.MULTILINE)
_PIECE = re.compile(r"^local (function )?([\w, ]+).*\n(?:(?:[ }]|end\b).*\n)*", re.MULTILINE)
_CONSTANT = re.compile(r"local ([A-Z_]+(?:, [A-Z_]+)*) = ('[^'\n]*'|[\d /,]+)\n")
_WORD = re.compile(r"'[^'\n]*'|--.*|[.:]?[A-Za-z_]\w*\(?")
_COMMON = 0


@dataclass(eq=False, slots=True)
class _Piece:
    """A function, or variables; `users` are the groups of those who use it."""

    text: str
    words: frozenset[str]
    names: list[str]
    is_function: bool
    users: set[int] = field(default_factory=set)
    group: int | None = None


def compose(text: str, read: Callable[[str], str]) -> str:
    """The text with what it includes; `read` gives a library by its name."""
    first, lines = _LINE.search(text), _LINE.findall(text)
    if first is None:
        return text
    libs = [_read(read(lib)) for kind, names in lines if kind == "include" for lib in names.split()]
    rarely = [names.split() for kind, names in lines if kind == "rarely"]
    head, body = text[: first.start()], _piece(_LINE.sub("", text[first.start() :]), "", is_function=True)
    pieces = [replace(piece, users=set()) for lib in libs for piece in lib[0]]
    constants = {name: value for lib in libs for name, value in lib[1].items()}
    _share_out(pieces, {name: number for number, names in enumerate(rarely, 1) for name in names}, body)

    groups = range(1, len(rarely) + 1)
    declared = f"local {', '.join(f'rarely_{number}' for number in groups)}\n" if rarely else ""
    common = [piece for piece in pieces if piece.group == _COMMON]
    makers = "".join(_maker(number, pieces, constants) for number in groups)
    words = constants | _calls(_COMMON, pieces)
    return f"{head}{declared}{_rewritten(common, words)}{makers}{_rewritten([body], words)}"


def _piece(text: str, names: str, is_function: bool) -> _Piece:
    return _Piece(text, frozenset(_WORD.findall(text)), [name.strip() for name in names.split(",")], is_function)


@cache
def _read(lib: str) -> tuple[list[_Piece], dict[str, str]]:
    """Its pieces, and what its constants stand for."""
    pieces: list[_Piece] = []
    constants: dict[str, str] = {}
    for found in _PIECE.finditer(lib):
        piece = _piece(found[0], found[2], found[1] is not None)
        if constant := _CONSTANT.fullmatch(found[0]):
            values = [constant[2]] if constant[2][0] == "'" else constant[2].split(",")
            values = [f"({value.strip()})" if "/" in value else value.strip() for value in values]
            constants.update(zip(piece.names, values, strict=True))
        else:
            pieces.append(piece)
    return pieces, constants


def _share_out(pieces: list[_Piece], rarely: dict[str, int], body: _Piece) -> None:
    """Gives each piece that is used its group. The users of a piece come after it."""
    named = {name: piece for piece in pieces for name in piece.names}
    if unknown := rarely.keys() - named.keys():
        raise ValueError(f"-- rarely: {', '.join(sorted(unknown))} is in no library that is included")
    body.group = _COMMON
    for piece in (body, *reversed(pieces)):
        if piece.users:
            # A variable is one for all who use it.
            is_apart = piece.is_function or len(piece.users) == 1
            piece.group = rarely.get(piece.names[0], min(piece.users) if is_apart else _COMMON)
        if piece.group is not None:
            for name in named.keys() & {word.rstrip("(") for word in piece.words}:
                named[name].users.add(piece.group)


def _maker(number: int, pieces: list[_Piece], constants: dict[str, str]) -> str:
    """The function that makes a group, and from then on returns it."""
    own = [piece for piece in pieces if piece.group == number]
    made = ", ".join(f"{one.names[0]} = {one.names[0]}" for one in own if one.is_function and one.users != {number})
    rest = f"local made = {{{made}}}\nrarely_{number} = function() return made end\nreturn made\nend\n"
    return f"rarely_{number} = function()\n{_rewritten(own, constants | _calls(number, pieces))}{rest}"


def _calls(number: int, pieces: list[_Piece]) -> dict[str, str]:
    """How the functions of other groups are called from this one."""
    away = ((one.names[0], one.group) for one in pieces if one.is_function and one.group and one.group != number)
    return {f"{name}(": f"rarely_{group}().{name}(" for name, group in away}


def _rewritten(pieces: list[_Piece], words: dict[str, str]) -> str:
    return "".join(
        piece.text if piece.words.isdisjoint(words) else _WORD.sub(lambda word: words.get(word[0], word[0]), piece.text)
        for piece in pieces
    )
