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
from dataclasses import dataclass, field

_LINE = re.compile(r"^-- (include|rarely) ([\w ]+)\n", re.MULTILINE)
_PIECE = re.compile(r"^local (function )?([\w, ]+).*\n(?:(?:[ }]|end\b).*\n)*", re.MULTILINE)
_CONSTANT = re.compile(r"local ([A-Z_]+(?:, [A-Z_]+)*) = ('[^'\n]*'|[\d /,]+)\n")
_WORD = re.compile(r"--[^\n]*|'[^'\n]*'|(?<![\w.:])([A-Za-z_]\w*)(\(?)")
_COMMON = 0


@dataclass(eq=False, slots=True)
class _Piece:
    """A function, or variables; `users` are the groups of those who use it."""

    text: str
    names: list[str]
    is_function: bool
    users: set[int] = field(default_factory=set)
    group: int | None = None


def compose(text: str, read: Callable[[str], str]) -> str:
    """The text with what it includes; `read` gives a library by its name."""
    first, lines = _LINE.search(text), _LINE.findall(text)
    if first is None:
        return text
    libs = [lib for kind, names in lines if kind == "include" for lib in names.split()]
    rarely = [names.split() for kind, names in lines if kind == "rarely"]
    head, body = text[: first.start()], _LINE.sub("", text[first.start() :])
    pieces, constants = _read("".join(f"{read(lib)}\n" for lib in libs))
    _share_out(pieces, {name: number for number, names in enumerate(rarely, 1) for name in names}, body)

    makers = [_maker(number, pieces) for number in range(1, len(rarely) + 1)]
    common = "".join(piece.text for piece in pieces if piece.group == _COMMON)
    if makers:
        common = f"local {', '.join(f'rarely_{number}' for number in range(1, len(makers) + 1))}\n{common}"
    homes = {piece.names[0]: piece.group for piece in pieces if piece.is_function and piece.group}
    return head + "".join(
        _rewritten(part, {name: home for name, home in homes.items() if home != number}, constants)
        for number, part in [(_COMMON, common), *enumerate(makers, 1), (_COMMON, body)]
    )


def _read(text: str) -> tuple[list[_Piece], dict[str, str]]:
    """Its pieces, and what its constants stand for."""
    pieces: list[_Piece] = []
    constants: dict[str, str] = {}
    for found in _PIECE.finditer(text):
        names = [name.strip() for name in found[2].split(",")]
        if constant := _CONSTANT.fullmatch(found[0]):
            values = [constant[2]] if constant[2][0] == "'" else constant[2].split(",")
            constants.update(zip(names, (value.strip() for value in values), strict=True))
        else:
            pieces.append(_Piece(found[0], names, found[1] is not None))
    return pieces, constants


def _share_out(pieces: list[_Piece], rarely: dict[str, int], body: str) -> None:
    """Gives each piece that is used its group. Who uses a piece stands behind it."""
    named = {name: piece for piece in pieces for name in piece.names}
    if unknown := rarely.keys() - named.keys():
        raise ValueError(f"-- rarely: {', '.join(sorted(unknown))} is in no library that is included")

    def use(text: str, group: int) -> None:
        for word in _WORD.finditer(text):
            if word[1] in named:
                named[word[1]].users.add(group)

    use(body, _COMMON)
    for piece in reversed(pieces):
        if not piece.users:
            continue
        if piece.is_function:
            piece.group = rarely.get(piece.names[0], min(piece.users))
        else:  # its value is one for all
            piece.group = min(piece.users) if len(piece.users) == 1 else _COMMON
        use(piece.text, piece.group)


def _maker(number: int, pieces: list[_Piece]) -> str:
    """The function that makes a group, and from then on returns it."""
    own = [piece for piece in pieces if piece.group == number]
    made = ", ".join(f"{one.names[0]} = {one.names[0]}" for one in own if one.is_function and one.users != {number})
    rest = f"local made = {{{made}}}\nrarely_{number} = function() return made end\nreturn made\nend\n"
    return f"rarely_{number} = function()\n{''.join(piece.text for piece in own)}{rest}"


def _rewritten(text: str, homes: dict[str, int], constants: dict[str, str]) -> str:
    def word(found: re.Match[str]) -> str:
        if found[1] in constants:
            value = constants[found[1]]
            return (f"({value})" if "/" in value else value) + found[2]
        if found[2] and found[1] in homes:
            return f"rarely_{homes[found[1]]}().{found[0]}"
        return found[0]

    return _WORD.sub(word, text)
