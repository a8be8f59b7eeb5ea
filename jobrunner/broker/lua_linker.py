"""Puts a script together of its own text and what it includes, so that a call makes few functions.

EVALSHA runs a script from its first line on at each call, and each `local function` makes a function, every time. So:

- What a script does not reach is left out.
- ``-- rarely a b`` names included functions that most calls do not need. What only they reach goes with them into one
  function, which makes all of these when one is first called: ``a(x)`` becomes ``rarely_1().a(x)``. Each such line is a
  group of its own.
- A name in capitals that stands for a number or a text is replaced by it: a constant of a library, or a default of
  queue_settings.py (`DEFAULT_...`), which no file of `lua/` declares.

So a file of `lua/lib/` has statements `local ...` at its margin, comments, and nothing else; a function that is made
rarely is called by its name and is not passed on, and its name stands for nothing else in the script.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain

from jobrunner.queue_settings import lua_defaults

_LINE = re.compile(r"^-- (include|rarely) ([\w ]+)\n", re.MULTILINE)
_PIECE = re.compile(r"^local (function )?([\w, ]+).*\n(?:(?:[ }]|end\b).*\n)*", re.MULTILINE)
_CONSTANT = re.compile(r"local ([A-Z_]+(?:, [A-Z_]+)*) = ('[^'\n]*'|[\d /,]+)\n")
_WORD = re.compile(r"'[^'\n]*'|--.*|[.:]?[A-Za-z_]\w*\(?")
_COMMON = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a linked script that comes from one file; `lines` are the numbers that its lines have there."""

    text: str
    file: str
    """As in lua/: reserve.lua or lib/limits.lua; empty for lines that the linker writes."""
    lines: Sequence[int]


@dataclass(eq=False, slots=True)
class _Piece:
    """A function, or variables; `users` are the groups of those who use it."""

    text: str
    file: str
    lines: Sequence[int]
    words: frozenset[str]
    names: list[str]
    is_function: bool
    users: set[int] = field(default_factory=set)
    group: int | None = None


def link(file: str, text: str, read: Callable[[str], str]) -> list[Chunk]:
    """A script with what it includes, as parts in order that each name their file and lines. `read` gives a library by
    its name; `file` is the script's own."""
    first, lines = _LINE.search(text), _LINE.findall(text)
    if first is None:
        return [Chunk(text, file, range(1, text.count("\n") + 2))]
    libs = [_read(lib, read(lib)) for kind, names in lines if kind == "include" for lib in names.split()]
    rarely = [names.split() for kind, names in lines if kind == "rarely"]
    head, body = Chunk(text[: first.start()], file, range(1, text.count("\n", 0, first.start()) + 1)), _body(file, text)
    pieces = [replace(piece, users=set()) for lib in libs for piece in lib[0]]
    constants = lua_defaults() | {name: value for lib in libs for name, value in lib[1].items()}
    _share_out(pieces, {name: number for number, names in enumerate(rarely, 1) for name in names}, body)

    groups = range(1, len(rarely) + 1)
    declared = f"local {', '.join(f'rarely_{number}' for number in groups)}\n" if rarely else ""
    common = [piece for piece in pieces if piece.group == _COMMON]
    makers = chain.from_iterable(_maker(number, pieces, constants) for number in groups)
    words = constants | _calls(_COMMON, pieces)
    return [head, _own(declared), *_rewritten(common, words), *makers, *_rewritten([body], words)]


def _body(file: str, text: str) -> _Piece:
    """The script from its first line about libraries on, without these lines."""
    first = _LINE.search(text)
    assert first is not None
    before = text.count("\n", 0, first.start())
    kept = [
        (number, line)
        for number, line in enumerate(text[first.start() :].splitlines(keepends=True), before + 1)
        if not _LINE.fullmatch(line)
    ]
    return _piece("".join(line for _, line in kept), "", file, [number for number, _ in kept], is_function=True)


def _own(text: str) -> Chunk:
    return Chunk(text, "", ())


def _piece(text: str, names: str, file: str, lines: Sequence[int], *, is_function: bool) -> _Piece:
    named = [name.strip() for name in names.split(",")]
    return _Piece(text, file, lines, frozenset(_WORD.findall(text)), named, is_function)


@cache
def _read(name: str, lib: str) -> tuple[list[_Piece], dict[str, str]]:
    """Its pieces, and what its constants stand for."""
    pieces: list[_Piece] = []
    constants: dict[str, str] = {}
    for found in _PIECE.finditer(lib):
        line = lib.count("\n", 0, found.start()) + 1
        lines = range(line, line + found[0].count("\n"))
        piece = _piece(found[0], found[2], f"lib/{name}.lua", lines, is_function=found[1] is not None)
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


def _maker(number: int, pieces: list[_Piece], constants: dict[str, str]) -> list[Chunk]:
    """The function that makes a group, and from then on returns it."""
    own = [piece for piece in pieces if piece.group == number]
    made = ", ".join(f"{one.names[0]} = {one.names[0]}" for one in own if one.is_function and one.users != {number})
    rest = f"local made = {{{made}}}\nrarely_{number} = function() return made end\nreturn made\nend\n"
    written = _rewritten(own, constants | _calls(number, pieces))
    return [_own(f"rarely_{number} = function()\n"), *written, _own(rest)]


def _calls(number: int, pieces: list[_Piece]) -> dict[str, str]:
    """How the functions of other groups are called from this one."""
    away = ((one.names[0], one.group) for one in pieces if one.is_function and one.group and one.group != number)
    return {f"{name}(": f"rarely_{group}().{name}(" for name, group in away}


def _rewritten(pieces: list[_Piece], words: dict[str, str]) -> list[Chunk]:
    """The pieces with what words of theirs stand for. No word has an end of line, so lines keep their numbers."""
    return [Chunk(_replaced(piece, words), piece.file, piece.lines) for piece in pieces]


def _replaced(piece: _Piece, words: dict[str, str]) -> str:
    if piece.words.isdisjoint(words):
        return piece.text
    return _WORD.sub(lambda word: words.get(word[0], word[0]), piece.text)
