"""The Lua scripts: read from `lua/` by name, their signature taken from their first two statements.

A script begins with ``local a, b = unpack(KEYS)`` and ``local now_ms, c, d = unpack(ARGV)``: these names bind keys and
arguments, so no index can drift. (With a tail of any length: ``unpack(ARGV, 1, 3)``, as Lua's stack is limited.) A line
``-- include x y`` is replaced by the shared functions in `lua/lib/`; ``-- rarely a b`` says which of these are made
only when a call needs them (see lua_linker.py). On a cluster `lua/prelude/cluster.lua` is first.
EVALSHA is used rather than Redis Functions: it runs on every server since Redis 6.2, on Valkey and on the managed
services, and a script's digest is its version.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from jobrunner.broker.lua_linker import Chunk, link

_SIGNATURE = re.compile(r"local ([\w, ]+) = unpack\(KEYS\)\nlocal ([\w, ]+) = unpack\(ARGV(?:, 1, (\d+))?\)\n")

_PRELUDE = "prelude/cluster.lua"
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")
_PLACE = re.compile(r"@?user_script:(\d+)")
_FRAME = re.compile(
    r"Error running script \(call to f_\w+\): |^(?:ERR )?(?:@?user_script:\d+: )+|(?<=: )(?:@?user_script:\d+: )+|"
    r",? script: [0-9a-f]{40}, on @user_script:\d+\.?"
)
"""The text that servers put around the message; it differs by version."""


@dataclass(frozen=True, slots=True)
class Script:
    """One atomic transition: its source, digest, and the names of its keys and fixed arguments."""

    name: str
    source: bytes
    sha: bytes
    keys: tuple[str, ...]
    args: tuple[str, ...]

    @property
    def on_cluster(self) -> "Script":
        """The script as a node of a cluster is given it."""
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

    The server knows the linked text only: `user_script:722`. Called for errors alone, so their map of lines is made
    then.
    """
    found, digest = _PLACE.search(text), _DIGEST.search(text)
    if found is None:
        return text
    if digest is not None and digest[0].encode() == script.on_cluster.sha:
        script = script.on_cluster
    places = _places(script.name, script.source)
    what = _PLACE.sub(lambda place: _place(places, place), _FRAME.sub("", text)).strip()
    return f"{script.name}.lua failed at {_place(places, found)}: {what}"


def _place(places: Sequence[str], found: re.Match[str]) -> str:
    number = int(found[1])
    return places[number - 1] if 0 < number <= len(places) else found[0]


@cache
def _places(name: str, source: bytes) -> tuple[str, ...]:
    """file:line of each line of a script as it is sent; none when it is not that of the files."""
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
    return (files("jobrunner.broker") / "lua" / file).read_text("utf-8")


@cache
def _on_cluster(name: str) -> Script:
    script = load(name)
    return _script(name, _text(_PRELUDE).encode() + script.source, script.keys, script.args)


def _script(name: str, source: bytes, keys: tuple[str, ...], args: tuple[str, ...]) -> Script:
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode(), keys, args)
