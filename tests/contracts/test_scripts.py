"""The rules of lua/: headers that cannot drift, includes that are needed and enough, names that are all known."""

import re
import struct
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import pytest

from jobrunner.broker.calls import rights
from jobrunner.broker.scripts import load
from jobrunner.jobs.options import JobOptions
from jobrunner.queue_settings import DEFAULT_HISTORY_S, QueueSettings, lua_defaults

FOLDER = files("jobrunner.broker") / "lua"
SCRIPTS = sorted(path.name.removesuffix(".lua") for path in FOLDER.iterdir() if path.name.endswith(".lua"))
LIBRARY = sorted(path.name.removesuffix(".lua") for path in (FOLDER / "lib").iterdir())
LONGEST = {"script": 70, "library": 160}
"""Lines: a script fits a screen; a library is one subject, and the linker takes single functions of it."""
KEYWORDS = frozenset(
    re.findall(r"\w+", "and break do else elseif end false for function if in local nil not or repeat return then true")
) | {"until", "while"}
# Of Lua's own and the server's names only these: the rest is not everywhere.
GLOBALS = {"redis", "KEYS", "ARGV", "tonumber", "math", "string", "table", "unpack", "ipairs", "pairs", "pcall"}
# cjson damages [] and large numbers: it reads the options of a batch row, and writes headers, which hold strings only.
READERS_OF_JSON = {"cjson"}
WORDS_OF_COMMANDS = {"CH", "GT", "LIMIT", "NX", "PX", "WITHSCORES", "XX"}


@cache
def source(name: str) -> str:
    return (FOLDER / f"{name}.lua").read_text("utf-8")


@cache
def library(name: str) -> str:
    return (FOLDER / "lib" / f"{name}.lua").read_text("utf-8")


def included(name: str) -> list[str]:
    return [one for line in re.findall(r"^-- include (.+)$", source(name), re.MULTILINE) for one in line.split()]


def linked(name: str) -> str:
    """The script as it is sent, without its signature."""
    return load(name).source.decode().split("\n", 2)[2]


def code(text: str) -> str:
    """Without comments and strings."""
    return re.sub(r"--[^\n]*|'[^'\n]*'", " ", text)


def tokens(text: str) -> list[str]:
    return re.findall(r"[A-Za-z_]\w*|\d[\w.]*|==|~=|<=|>=|\.\.|[^\s\w]", code(text))


@cache
def names_used(text: str) -> frozenset[str]:
    """Names that are looked up: no keywords, no fields, no keys of a table in braces."""
    return frozenset(_lookups(text))


def _lookups(text: str) -> Iterator[str]:
    found = ["", *tokens(text), ""]
    depth = 0
    for before, token, after in zip(found, found[1:], found[2:], strict=False):
        depth += (token == "{") - (token == "}")
        is_key = depth > 0 and after == "=" and before in ("{", ",")
        if re.match(r"[A-Za-z_]", token) and token not in KEYWORDS and before not in (".", ":") and not is_key:
            yield token


@cache
def names_declared(text: str) -> set[str]:
    bare = code(text)
    declared = set(re.findall(r"\blocal function (\w+)", bare))
    for pattern in (r"\blocal ([\w, ]+?)\s*(?:=|$)", r"\bfor ([\w, ]+?) (?:=|in) ", r"\bfunction \w*\s*\(([\w, ]*)\)"):
        for names in re.findall(pattern, bare, re.MULTILINE):
            declared.update(name.strip() for name in names.split(",") if name.strip())
    return declared


def names_offered(lib: str) -> set[str]:
    """The names that a library file declares at its outermost level."""
    return set(re.findall(r"^local (?:function )?(\w+)", library(lib), re.MULTILINE))


def header(name: str) -> list[str]:
    """The comment behind the signature, without the dashes."""
    lines = source(name).splitlines()[2:]
    end = next(n for n, line in enumerate(lines) if not line.startswith("--"))
    return [line[2:] for line in lines[:end]]


def section(name: str, title: str) -> str:
    """The part of the header that begins with `title`: its lines up to the next that begins at the margin."""
    lines = header(name)
    start = next((n for n, line in enumerate(lines) if line.startswith(f" {title} ")), None)
    assert start is not None, f"the header of lua/{name}.lua has no line that begins with `-- {title}`"
    end = next((n for n in range(start + 1, len(lines)) if not lines[n].startswith("   ")), len(lines))
    return "\n".join([lines[start].removeprefix(f" {title} "), *lines[start + 1 : end]])


def names_described(text: str) -> list[str]:
    """Reads a, b and c out of `a, b: text · c · then for each: …`."""
    fixed = re.split(r"\bthen\b", text)[0]
    return [name for item in fixed.split("·") for name in re.split(r", ", item.split(":")[0].strip()) if name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_names_exactly_the_keys_and_arguments(name):
    script = load(name)

    assert names_described(section(name, "KEYS")) == list(script.keys)
    assert names_described(section(name, "ARGV")) == list(script.args)
    assert section(name, "reply")


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_says_what_the_file_is_for(name):
    assert header(name)[0].startswith(f" {name}: ")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_key_and_argument_is_used_or_said_to_be_unused(name):
    script = load(name)
    used = names_used(linked(name))
    unused = {one for one in (*script.keys, *script.args) if one not in used}
    said = {one for one in unused if re.search(rf"\b{one}: unused", section(name, "ARGV"))}

    assert unused == said


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_name_is_declared(name):
    """That it is declared before it is used, the bytecode shows: it would be a global name."""
    assert set(included(name)) <= set(LIBRARY)
    text = load(name).source.decode()
    unknown = names_used(text) - GLOBALS - READERS_OF_JSON - names_declared(text)
    assert not unknown, f"lua/{name}.lua, or a function it reaches, uses {sorted(unknown)}: include what declares it"


@pytest.mark.parametrize("name", SCRIPTS)
def test_only_rows_of_batches_are_read_as_json(name):
    assert "batch_rows" in included(name) or not names_used(load(name).source.decode()) & READERS_OF_JSON


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_name_of_a_rare_function_stands_for_nothing_else(name):
    script = load(name).source.decode()
    for made in re.findall(r"rarely_\d\(\)\.(\w+)", script):
        assert len(re.findall(rf"\b(?:function|local) {made}\b", script)) == 1
        assert not re.search(rf"(?:function \w*\(|for |local )[\w, ]*, ?{made}\b|function \w*\({made}\b", script)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_as_it_is_sent_knows_only_the_names_of_the_server(name, raw):
    for script in (load(name), load(name).on_cluster):
        compiled = raw.eval("return string.dump(loadstring(ARGV[1]))", 0, script.source)
        read, written = globals_of(compiled)

        assert read <= GLOBALS | READERS_OF_JSON | {"type", "error", "setmetatable"}
        assert not written


def globals_of(compiled: bytes) -> tuple[set[str], set[str]]:
    """The global names that a chunk of Lua 5.1 (64 bits, little-endian) reads, and those it writes."""
    read, written, at = set[str](), set[str](), 12

    def take(form: str) -> tuple[Any, ...]:
        nonlocal at
        found = struct.unpack_from(form, compiled, at)
        at += struct.calcsize(form)
        return found

    def text() -> str:
        return take(f"<{take('<Q')[0]}s")[0][:-1].decode()

    def constant() -> object:
        kind = take("B")[0]
        return text() if kind == 4 else take({0: "<0s", 1: "B", 3: "<d"}[kind])[0]

    def function() -> None:
        text()
        take("<ii4B")
        code = take(f"<{take('<i')[0]}I")
        constants = [constant() for _ in range(take("<i")[0])]
        for names, opcode in ((read, 5), (written, 7)):
            names.update(str(constants[one >> 14]) for one in code if one & 63 == opcode)
        for _ in range(take("<i")[0]):
            function()
        take(f"<{take('<i')[0]}i")  # lines
        for _ in range(take("<i")[0]):  # locals
            text()
            take("<ii")
        for _ in range(take("<i")[0]):  # upvalues
            text()

    function()
    assert at == len(compiled)
    return read, written


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_include_is_used(name):
    libs = included(name)
    assert len(libs) == len(set(libs))
    for lib in libs:
        others = [source(name), *(library(other) for other in libs if other != lib)]
        assert names_offered(lib) & {used for text in others for used in names_used(text)}, f"include {lib} is not used"


@pytest.mark.parametrize("lib", LIBRARY)
def test_every_file_of_the_library_is_included_somewhere(lib):
    assert any(lib in included(name) for name in SCRIPTS)


@pytest.mark.parametrize("text", [*(f"{name}.lua" for name in SCRIPTS), *(f"lib/{lib}.lua" for lib in LIBRARY)])
def test_a_file_is_short(text):
    lines = (FOLDER / text).read_text("utf-8").splitlines()

    assert len(lines) <= LONGEST["library" if text.startswith("lib/") else "script"]
    assert max(map(len, lines[1:])) <= 120, "only a signature may be longer: it is one statement in one line"
    assert not [line for line in lines if line != line.rstrip()]


def test_defaults_are_declared_in_python_alone():
    text = "".join(code(text) for text in (*map(source, SCRIPTS), *map(library, LIBRARY)))
    used = set(re.findall(r"\bDEFAULT_\w+", text))

    assert used == lua_defaults().keys(), "each of these words stands for a value, and each value is used"
    assert not re.search(r"local [^\n=]*DEFAULT_", text), "queue_settings.py declares it"


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_default_is_left_to_be_looked_up(name):
    assert "DEFAULT_" not in code(linked(name))


def test_scripts_get_the_defaults_of_the_settings():
    defaults = QueueSettings()
    config = next(text for text in linked("reserve").split("local function ") if text.startswith("read_config"))

    for said in (
        f"keepalive = {defaults.keepalive * 1000:.0f}",
        f"max_attempts = {defaults.max_attempts}",
        f"dead_ttl = {defaults.dead_ttl * 1000:.0f}",
        f"dead_max = {defaults.dead_max}",
    ):
        assert re.search(rf"{said}\b", config), said
    assert f"age or {DEFAULT_HISTORY_S * 1000:.0f}" in linked("commit")
    assert f"tonumber(keep_ms) == {JobOptions().result_ttl * 1000:.0f}" in linked("commit")


def test_every_script_is_the_verb_of_one_call():
    calls = files("jobrunner.broker") / "calls"
    text = "".join(path.read_text("utf-8") for path in calls.iterdir() if path.name.endswith(".py"))
    verbs = re.findall(r'\bScriptCommand\("(\w+)"', text)

    assert sorted(verbs) == SCRIPTS


def test_a_script_loads_on_the_server_and_its_digest_is_ours(raw):
    for name in SCRIPTS:
        script = load(name)
        assert raw.script_load(script.source) == script.sha.decode()


def test_a_worker_asks_for_the_right_to_every_command_of_a_script():
    """A script that is denied one of them ends there, with half of its work done."""
    texts = [re.sub(r"--.*", "", text) for text in (*map(source, SCRIPTS), *map(library, LIBRARY))]
    words = {word for text in texts for word in re.findall(r"'([A-Z]{2,})'", text)}
    not_of_scripts = {"BZPOPMIN"}

    assert words - WORDS_OF_COMMANDS == {*rights.READS, *rights.WRITES, *rights.OTHERS} - not_of_scripts
