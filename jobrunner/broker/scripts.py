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
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from jobrunner.broker.lua_linker import compose

_SIGNATURE = re.compile(r"local ([\w, ]+) = unpack\(KEYS\)\nlocal ([\w, ]+) = unpack\(ARGV(?:, 1, (\d+))?\)\n")


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
    folder = files("jobrunner.broker") / "lua"
    text = (folder / f"{name}.lua").read_text("utf-8")
    signature = _SIGNATURE.match(text)
    if signature is None:
        raise ValueError(f"lua/{name}.lua does not begin with `local ... = unpack(KEYS)` and `... = unpack(ARGV)`")
    text = compose(text, lambda lib: (folder / "lib" / f"{lib}.lua").read_text("utf-8"))
    keys, args = (tuple(names.split(", ")) for names in signature.groups()[:2])
    if args[0] != "now_ms" or signature[3] not in (None, str(len(args))):
        raise ValueError(f"lua/{name}.lua: the first argument is now_ms, and unpack takes as many as are named")
    return _script(name, text.encode(), keys, args)


@cache
def _on_cluster(name: str) -> Script:
    script = load(name)
    away = (files("jobrunner.broker") / "lua" / "prelude" / "cluster.lua").read_bytes()
    return _script(name, away + script.source, script.keys, script.args)


def _script(name: str, source: bytes, keys: tuple[str, ...], args: tuple[str, ...]) -> Script:
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode(), keys, args)
