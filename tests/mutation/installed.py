"""Puts changed Lua texts in place of the package's own, in this process and without a change on disk.

A script is looked up by its text, and every caller holds the `Script` that `load` made once. So a change is written
into these objects. The linker reads the changed text as well: error messages name the lines of the file.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from msgspec.structs import force_setattr

from jobrunner.broker import scripts
from jobrunner.broker.scripts import Script
from tests.mutation.lua_syntax import parse

_FOLDER = files("jobrunner.broker") / "lua"
_own_text = scripts._text
_texts: dict[str, str] = {}
"""What stands in for files; `_own` reads them when they are not in it."""
_TRACED = "local jr_seen = {{}} local function jr_trace(n) if not jr_seen[n] then jr_seen[n] = true \
redis.log(3, 'jr_trace ' .. n) end end {}"


def lua_files() -> list[str]:
    """Scripts and libraries. The prelude is left out: it is in no script but on a cluster."""
    return sorted(
        [path.name for path in _FOLDER.iterdir() if path.name.endswith(".lua")]
        + [f"lib/{path.name}" for path in (_FOLDER / "lib").iterdir()]
    )


def own_text(file: str) -> str:
    """The text of a file of lua/ as it is on disk."""
    return _own_text(file)


@cache
def users_of(file: str) -> tuple[str, ...]:
    """The names of the scripts that a file is part of."""
    names = [name.removesuffix(".lua") for name in lua_files() if not name.startswith("lib/")]
    if not file.startswith("lib/"):
        return (file.removesuffix(".lua"),)
    lib = file.removeprefix("lib/").removesuffix(".lua")
    included = {
        name: " ".join(line for line in _own_text(f"{name}.lua").splitlines() if line.startswith("-- include"))
        for name in names
    }
    return tuple(name for name in names if lib in included[name].split())


def install(texts: Mapping[str, str], *, is_traced: bool = False) -> list[Script]:
    """Has the scripts use these texts, by file, and all other files as on disk. Returns the scripts that changed.

    `is_traced`: the scripts declare the function that `traced` texts call.
    """
    _load_all()
    before = set(_texts)
    _texts.clear()
    _texts.update(texts)
    scripts._text = _text
    changed = []
    for name in {name for file in before | set(texts) for name in users_of(file)}:
        script = scripts.load(name)
        source = "".join(chunk.text for chunk in scripts._linked(name))
        if is_traced:
            source = _TRACED.format(source)
        if source.encode() != script.source:
            made = scripts._script(name, source.encode(), script.keys, script.args)
            force_setattr(script, "source", made.source)
            force_setattr(script, "sha", made.sha)
            changed.append(script)
    scripts._on_cluster.cache_clear()
    return changed


@cache
def _load_all() -> None:
    """What is loaded later would be the changed text without a sign that it is."""
    for file in lua_files():
        if not file.startswith("lib/"):
            scripts.load(file.removesuffix(".lua"))


def _text(file: str) -> str:
    return _texts[file] if file in _texts else _own_text(file)


@cache
def statement_numbers() -> dict[str, int]:
    """The number of the first statement of each file; the statements of a file follow each other."""
    numbers, count = {}, 0
    for file in lua_files():
        numbers[file] = count
        count += len(parse(_own_text(file)).statements)
    return numbers


def traced(file: str) -> str:
    """The text of a file in which each statement first reports its number."""
    text, first = _own_text(file), statement_numbers()[file]
    behind_signature = 0 if file.startswith("lib/") else text.index("\n", text.index("\n") + 1)
    parts, at = [], 0
    for number, statement in enumerate(parse(text).statements, first):
        is_declared_by_library = file.startswith("lib/") and text[statement.start - 1 : statement.start] in ("", "\n")
        if statement.start > behind_signature and not is_declared_by_library:
            parts += [text[at : statement.start], f"jr_trace({number}); "]
            at = statement.start
    return "".join([*parts, text[at:]])
