"""The server of the simulation: the product's own Lua scripts on a small Redis, in this process.

The data model is in Lua as well (keyspace.lua, collections.lua, sorted_sets.lua), in the interpreter that runs the
scripts, so a command of a script costs a call of a function. Requests and replies are in the server's protocol, as on a
connection. One `SimulatedServer` is used for many runs, one after the other: `reset` empties it.
"""

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import hiredis
from lupa import luajit21

import jobrunner.broker
from jobrunner.broker.redis_errors import NoScriptError, ResponseError
from jobrunner.broker.scripts import load

FOLDER = Path(__file__).parent
_SCRIPTS = Path(jobrunner.broker.__file__).parent / "lua"
_DATA = ("keyspace", "collections", "sorted_sets")


def error_reply(message: str) -> ResponseError:
    """The error of a reply, as a driver reads it."""
    if message.startswith("NOSCRIPT"):
        return NoScriptError(message)
    return ResponseError(message.removeprefix("ERR "))


class SimulatedServer:
    """One server without a network. Time is what the caller says: Unix ms, with each command.

    `patch` changes the text of scripts, which clients call by the digest of what they are: a seeded bug.
    """

    def __init__(self, patch: Callable[[str], str] | None = None) -> None:
        # Scripts make their functions anew at each call, which the compiler of LuaJIT cannot do: it slows them down.
        self._lua = luajit21.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        self._lua.execute(b"jit.off()")
        run = self._lua.eval(b"function(text, name, ...) return assert(loadstring(text, name))(...) end")
        keyspace, commands = run(_source("keyspace"), b"@keyspace.lua")
        for name in _DATA[1:]:
            run(_source(name), f"@{name}.lua".encode(), keyspace, commands)
        server = run(_source("server"), b"@server.lua", keyspace, commands, self._host())
        self.carry_out: Callable[..., bytes] = server[b"execute"]
        """Carries out one command at an instant: now_ms, word, word, ... Returns the reply as it goes to the wire."""
        self._holds: Callable[..., bool] = server[b"holds"]
        self._dump: Callable[[float, bool], bytes] = server[b"dump"]
        self._reset: Callable[[float, int], None] = server[b"reset"]
        for path in sorted(_SCRIPTS.glob("*.lua")):
            source = load(path.stem).source
            server[b"learn"](source, None if patch is None else patch(source.decode()).encode())
        self.replies = hiredis.Reader(replyError=error_reply)
        """Reads what `carry_out` returned."""

    def reset(self, now_ms: float, seed: int = 0) -> None:
        """Deletes all keys. `seed` is of what the server chooses at random (SPOP, HRANDFIELD)."""
        self._reset(now_ms, seed)

    def ask(self, *words: bytes | str | float, now_ms: float) -> Any:
        """The value of a reply; an error reply is returned as an exception."""
        said = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.replies.feed(self.carry_out(now_ms, *said))
        return self.replies.gets()

    def log(self, message: bytes) -> None:
        """What a script writes to the server's log is dropped."""

    def holds(self, now_ms: float, *keys: bytes) -> bool:
        """Whether any of these keys exists."""
        return self._holds(now_ms, *keys)

    def contents(self, now_ms: float, *, is_brief: bool = False) -> dict[bytes, Any]:
        """Every key: its type, the ms it has to live (-1: no end), and what it holds, as HGETALL and ZRANGE write
        it. `is_brief`: what others than sorted sets and counters hold is left out, which is most of it."""
        self.replies.feed(self._dump(now_ms, is_brief))
        found = self.replies.gets()
        return dict(zip(found[::2], found[1::2], strict=True))

    def _host(self) -> Any:
        """What scripts find in a server that is not written in Lua here."""
        return self._lua.table_from(
            {
                b"log": lambda message: self.log(message),
                b"sha1hex": lambda text: hashlib.sha1(text, usedforsecurity=False).hexdigest().encode(),
                b"encode_json": self._encoded,
                b"decode_json": self._decoded,
            }
        )

    def _encoded(self, table: Any) -> bytes:
        """As lua-cjson does it, for an object of texts: other values are an error."""
        words = {name.decode(): value.decode() for name, value in table.items()}
        return json.dumps(words, ensure_ascii=False, separators=(",", ":")).replace("/", "\\/").encode()

    def _decoded(self, text: bytes) -> Any:
        found = {name.encode(): _plain(value) for name, value in json.loads(text).items()}
        return self._lua.table_from(found)


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bool, int, float)):
        return value
    raise TypeError(f"the simulated server decodes JSON objects of texts and numbers, not {value!r}")


@cache
def _source(name: str) -> bytes:
    return (FOLDER / f"{name}.lua").read_bytes()
