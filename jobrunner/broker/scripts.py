"""Loads Lua scripts from `lua/` by name, links them with the libraries that they include, and makes errors readable.

A script begins with ``local a, b = unpack(KEYS)`` and ``local now_ms, c, d = unpack(ARGV)``: these names bind keys and
arguments, so no index can drift. (With a tail of any length: ``unpack(ARGV, 1, 3)``, as Lua's stack is limited.) On a
cluster `lua/prelude/cluster.lua` is first. EVALSHA is used rather than Redis Functions: it runs on every server since
Redis 6.2, on Valkey and on the managed services, and a script's digest is its version.

EVALSHA runs a script from its first line on at each call, and each `local function` creates a closure every time. So
`link` builds scripts that create few:

- ``-- include x y`` is replaced by the parts of `lua/lib/x.lua` and `y.lua` that the script reaches; the rest is left
  out. Lines before it can use constants and no functions, so a call that returns there creates none.
- ``-- rarely a b`` names included functions that most calls do not need. They, and the functions that only they reach,
  go into one function, which creates all of them when one is first called: ``a(x)`` becomes ``rarely_1().a(x)``. Each
  such line is a group of its own.
- A name in capitals that stands for a number or a text is replaced by it: a constant of a library, or a default of
  queue_settings.py (`DEFAULT_...`), which no file of `lua/` declares.

So a file of `lua/lib/` has statements `local ...` at its margin, comments, and nothing else; a function that is made
rarely is called by its name and is not passed on, and its name stands for nothing else in the script.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from pkgutil import get_data

import msgspec

_LINE = re.compile(r"^-- (include|rarely) ([\w ]+)\n", re.MULTILINE)
_PIECE = re.compile(r"^local (function )?([\w, ]+).*\n(?:(?:[ }]|end\b).*\n)*", re.MULTILINE)
_CONSTANT = re.compile(r"local ([A-Z_]+(?:, [A-Z_]+)*) = ('[^'\n]*'|[\d /,]+)\n")
_WORD = re.compile(r"'[^'\n]*'|--.*|[.:]?[A-Za-z_]\w*\(?")
_COMMON = 0


class Chunk(msgspec.Struct, frozen=True):
    """A part of a linked script that comes from one file; `lines` are the line numbers in that file."""

    text: str
    file: str
    """The path below lua/, such as lib/limits.lua; empty for lines that the linker writes."""
    lines: Sequence[int]


class _Piece(msgspec.Struct, eq=False):
    """A function or variables of a script; `users` are the groups of the pieces that use it."""

    text: str
    file: str
    lines: Sequence[int]
    words: frozenset[str]
    names: list[str]
    is_function: bool
    users: set[int] = msgspec.field(default_factory=set)
    group: int | None = None


def link(file: str, text: str, read: Callable[[str], str]) -> list[Chunk]:
    """The parts of a script and of the libraries that it includes, in order, each with its file and lines. `read`
    returns the text of a library by its name; `file` is the script's own."""
    first, lines = _LINE.search(text), _LINE.findall(text)
    if first is None:
        return [Chunk(text, file, range(1, text.count("\n") + 2))]
    libs = [_read(lib, read(lib)) for kind, names in lines if kind == "include" for lib in names.split()]
    rarely = [names.split() for kind, names in lines if kind == "rarely"]
    head, body = _head(file, text[: first.start()]), _body(file, text)
    pieces = [msgspec.structs.replace(piece, users=set()) for lib in libs for piece in lib[0]]
    constants = _defaults_in([text, *(piece.text for piece in pieces)])
    constants |= {name: value for lib in libs for name, value in lib[1].items()}
    _share_out(pieces, {name: number for number, names in enumerate(rarely, 1) for name in names}, body)

    groups = range(1, len(rarely) + 1)
    declared = f"local {', '.join(f'rarely_{number}' for number in groups)}\n" if rarely else ""
    common = [piece for piece in pieces if piece.group == _COMMON]
    makers = chain.from_iterable(_maker(number, pieces, constants) for number in groups)
    words = constants | _calls(_COMMON, pieces)
    return [
        *_rewritten([head], constants), _own(declared), *_rewritten(common, words), *makers, *_rewritten([body], words)
    ]  # fmt: skip


def _defaults_in(texts: Sequence[str]) -> dict[str, str]:
    """The defaults of settings, where a text uses one: the lease keeper has no settings otherwise."""
    if not any("DEFAULT_" in text for text in texts):
        return {}
    from jobrunner.queue_settings import lua_defaults

    return lua_defaults()


def _head(file: str, text: str) -> _Piece:
    """The script before its first line about libraries: it can use their constants, and none of their functions."""
    return _piece(text, "", file, range(1, text.count("\n") + 1), is_function=True)


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
    """The pieces of a library, and the values of its constants by name."""
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
    """Sets the group of each piece that is used. Pieces come before the pieces that use them."""
    named = {name: piece for piece in pieces for name in piece.names}
    if unknown := rarely.keys() - named.keys():
        raise ValueError(f"-- rarely: {', '.join(sorted(unknown))} is in no library that is included")
    body.group = _COMMON
    for piece in (body, *reversed(pieces)):
        if piece.users:
            # All users of a variable share it, so it cannot be in two groups.
            is_apart = piece.is_function or len(piece.users) == 1
            piece.group = rarely.get(piece.names[0], min(piece.users) if is_apart else _COMMON)
        if piece.group is not None:
            for name in named.keys() & {word.rstrip("(") for word in piece.words}:
                named[name].users.add(piece.group)


def _maker(number: int, pieces: list[_Piece], constants: dict[str, str]) -> list[Chunk]:
    """The Lua function that creates the functions of a group at its first call, and returns them at each."""
    own = [piece for piece in pieces if piece.group == number]
    made = ", ".join(f"{one.names[0]} = {one.names[0]}" for one in own if one.is_function and one.users != {number})
    rest = f"local made = {{{made}}}\nrarely_{number} = function() return made end\nreturn made\nend\n"
    written = _rewritten(own, constants | _calls(number, pieces))
    return [_own(f"rarely_{number} = function()\n"), *written, _own(rest)]


def _calls(number: int, pieces: list[_Piece]) -> dict[str, str]:
    """Replacements for calls from this group to functions of other groups."""
    away = ((one.names[0], one.group) for one in pieces if one.is_function and one.group and one.group != number)
    return {f"{name}(": f"rarely_{group}().{name}(" for name, group in away}


def _rewritten(pieces: list[_Piece], words: dict[str, str]) -> list[Chunk]:
    """The pieces with their words replaced. No replacement has a line end, so lines keep their numbers."""
    return [Chunk(_replaced(piece, words), piece.file, piece.lines) for piece in pieces]


def _replaced(piece: _Piece, words: dict[str, str]) -> str:
    if piece.words.isdisjoint(words):
        return piece.text
    return _WORD.sub(lambda word: words.get(word[0], word[0]), piece.text)


_SIGNATURE = re.compile(r"local ([\w, ]+) = unpack\(KEYS\)\nlocal ([\w, ]+) = unpack\(ARGV(?:, 1, (\d+))?\)\n")

_PRELUDE = "prelude/cluster.lua"
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")
_PLACE = re.compile(r"@?user_script:(\d+)")
_FRAME = re.compile(
    r"Error running script \(call to f_\w+\): |^(?:ERR )?(?:@?user_script:\d+: )+|(?<=: )(?:@?user_script:\d+: )+|"
    r",? script: (?:[0-9a-f]{40}, )?on @user_script:\d+\.?"  # Redis 7.0 leaves the digest out for an ACL and memory
)
"""The text that servers put around the message; it differs by version."""


class Script(msgspec.Struct, frozen=True):
    """One atomic transition: its source, digest, and the names of its keys and fixed arguments."""

    name: str
    source: bytes
    sha: bytes
    keys: tuple[str, ...]
    args: tuple[str, ...]

    @property
    def on_cluster(self) -> "Script":
        """The script as it is sent to a node of a cluster."""
        return _on_cluster(self.name)


@cache
def load(name: str) -> Script:
    """Reads `lua/<name>.lua` with its includes. Raises ValueError when the file has no signature."""
    text = _text(f"{name}.lua")
    signature = _SIGNATURE.match(text)
    if signature is None:
        raise ValueError(f"lua/{name}.lua does not begin with `local ... = unpack(KEYS)` and `... = unpack(ARGV)`")
    text = "".join(chunk.text for chunk in _linked(name))
    keys, args = (tuple(names.split(", ")) for names in signature.groups()[:2])
    if args[0] != "now_ms" or signature[3] not in (None, str(len(args))):
        raise ValueError(f"lua/{name}.lua: the first argument is now_ms, and unpack takes as many as are named")
    return _script(name, text.encode(), keys, args)


def readable_error(script: Script, text: str) -> str:
    """The text of an error reply to a script, with the script and the line of the file in which it happened.

    The server reports lines of the linked text: `user_script:722`. The map of lines is made here, as errors are rare.
    """
    found, digest = _PLACE.search(text), _DIGEST.search(text)
    if found is None:
        return text
    if digest is not None and digest[0].encode() == script.on_cluster.sha:
        script = script.on_cluster
    places = _places(script.name, script.source)
    what = _PLACE.sub(lambda place: _place(places, place), _FRAME.sub("", text)).strip(" .")
    return f"{script.name}.lua failed at {_place(places, found)}: {what}"


def _place(places: Sequence[str], found: re.Match[str]) -> str:
    number = int(found[1])
    return places[number - 1] if 0 < number <= len(places) else found[0]


@cache
def _places(name: str, source: bytes) -> tuple[str, ...]:
    """file:line of each line of a script as it is sent; empty when the sent text differs from the files."""
    chunks, prelude = _linked(name), _text(_PRELUDE)
    text = "".join(chunk.text for chunk in chunks)
    places: list[str] = []
    for chunk in chunks:
        written_by_linker = [f"{name}.lua (linked)"] * chunk.text.count("\n")
        places += [f"{chunk.file}:{line}" for line in chunk.lines] if chunk.file else written_by_linker
    if source == text.encode():
        return tuple(places)
    if source == (prelude + text).encode():
        return (*(f"{_PRELUDE}:{line}" for line in range(1, prelude.count("\n") + 1)), *places)
    return ()


def _linked(name: str) -> list[Chunk]:
    return link(f"{name}.lua", _text(f"{name}.lua"), lambda lib: _text(f"lib/{lib}.lua"))


def _text(file: str) -> str:
    found = get_data("jobrunner.broker", f"lua/{file}")  # the package may be in an archive
    assert found is not None, "a loader that has the module has its files"
    return found.decode()


@cache
def _on_cluster(name: str) -> Script:
    script = load(name)
    return _script(name, _text(_PRELUDE).encode() + script.source, script.keys, script.args)


def _script(name: str, source: bytes, keys: tuple[str, ...], args: tuple[str, ...]) -> Script:
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode(), keys, args)
