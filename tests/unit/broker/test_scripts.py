"""The loader: a script's signature is its first two statements, its includes are put where they are named."""

import hashlib
from functools import cache

import pytest

from jobrunner.broker import scripts

HEAD = "local a = unpack(KEYS)\nlocal now_ms = unpack(ARGV)\n"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Loads a script written by the test."""
    (tmp_path / "lua" / "lib").mkdir(parents=True)
    monkeypatch.setattr(scripts, "_text", lambda file: (tmp_path / "lua" / file).read_text())
    monkeypatch.setattr(scripts, "load", cache(scripts.load.__wrapped__))  # callers hold the scripts in it

    def load(text, **libs):
        (tmp_path / "lua" / "it.lua").write_text(text)
        for name, lib in libs.items():
            (tmp_path / "lua" / "lib" / f"{name}.lua").write_text(lib)
        return scripts.load("it")

    return load


def test_names_come_from_the_signature(written):
    script = written("local a, b = unpack(KEYS)\nlocal now_ms, c = unpack(ARGV)\nreturn 1\n")

    assert (script.name, script.keys, script.args) == ("it", ("a", "b"), ("now_ms", "c"))
    assert script.sha == hashlib.sha1(script.source).hexdigest().encode()


def test_a_tail_of_any_length_is_not_named(written):
    script = written("local a = unpack(KEYS)\nlocal now_ms, c = unpack(ARGV, 1, 2)\nreturn 1\n")

    assert script.args == ("now_ms", "c")


def test_includes_are_put_in_their_order_in_place_of_the_line(written):
    script = written(f"{HEAD}-- include x y\nreturn x + y\n", x="-- About x.\nlocal x = a\n", y="local y = x\n")

    assert script.source.decode() == f"{HEAD}local x = a\nlocal y = x\nreturn x + y\n"


def test_what_is_not_reached_is_left_out(written):
    lib = "local function f()\n  return 1\nend\n\nlocal function g() return 'f(' end  -- f()\n\nlocal z = f()\n"
    script = written(f"{HEAD}-- include x\nreturn g(a.f)\n", x=lib)

    assert script.source.decode() == f"{HEAD}local function g() return 'f(' end  -- f()\nreturn g(a.f)\n"


def test_a_constant_is_replaced_by_what_it_stands_for(written):
    lib = "local ONE, TWO = 1, 2\nlocal HALF = 1 / 2\nlocal WORD = 'ONE, TWO'\nlocal TABLE = {ONE}\n"
    script = written(f"{HEAD}-- include x\nreturn {{ONE, TWO - HALF, WORD, 'WORD', a.ONE, TABLE}}\n", x=lib)

    said = "local TABLE = {1}\nreturn {1, 2 - (1 / 2), 'ONE, TWO', 'WORD', a.ONE, TABLE}\n"
    assert script.source.decode() == f"{HEAD}{said}"


def test_what_comes_before_the_libraries_knows_their_constants_and_makes_none_of_their_functions(written):
    early = "if a == ONE then return f(ONE) end\n"
    script = written(
        f"{HEAD}{early}-- include x\nreturn f(ONE)\n", x="local ONE = 1\nlocal function f(n) return n end\n"
    )

    made = "local function f(n) return n end\nreturn f(1)\n"
    assert script.source.decode() == f"{HEAD}{early.replace('ONE', '1')}{made}"


LIBS = {
    "x": "local base = a .. ':'\nlocal count = 0\n\nlocal function often() return count end\n",
    "y": "local function deep()\n  count = count + 1\n  return base .. often()\nend\n\n"
    "local function seldom(n)\n  if n == 0 then return deep() end\n  return seldom(n - 1)\nend\n",
    "z": "local function other() return {seldom(2), deep()} end\n",
}


def test_rare_functions_are_made_when_one_is_called_with_what_only_they_need(written):
    body = "if a then return seldom(1) end\nreturn often()\n"
    script = written(f"{HEAD}-- include x y\n-- rarely seldom\n{body}", **LIBS)

    maker = f"rarely_1 = function()\nlocal base = a .. ':'\n{LIBS['y']}".replace("end\n\n", "end\n")
    assert script.source.decode() == (
        f"{HEAD}local rarely_1\nlocal count = 0\nlocal function often() return count end\n{maker}"
        "local made = {seldom = seldom}\nrarely_1 = function() return made end\nreturn made\nend\n"
        "if a then return rarely_1().seldom(1) end\nreturn often()\n"
    )


@pytest.mark.parametrize("rarely", ["", "-- rarely often\n", "-- rarely seldom\n-- rarely other\n", "-- rarely deep\n"])
def test_however_rarely_functions_are_made_a_script_does_the_same(written, raw, rarely):
    body = "local first = other()\nreturn {first[1], first[2], often(), #other()}\n"
    script = written(f"{HEAD}-- include x y z\n{rarely}{body}", **LIBS)

    assert raw.eval(script.source, 1, "k", "") == [b"k:1", b"k:2", 2, 2]
    assert raw.eval(script.source, 1, "k", "") == [b"k:1", b"k:2", 2, 2]


def test_what_is_made_rarely_must_be_included(written):
    with pytest.raises(ValueError, match="g, h"):
        written(f"{HEAD}-- include x\n-- rarely often g h\nreturn 1\n", **LIBS)


@pytest.mark.parametrize(
    "text",
    [
        "return 1\n",
        "-- first\nlocal a = unpack(KEYS)\nlocal now_ms = unpack(ARGV)\n",
        "local a = unpack(KEYS)\nlocal b = unpack(ARGV)\n",
        "local a = unpack(KEYS)\nlocal now_ms, b = unpack(ARGV, 1, 3)\n",
        "local a = KEYS[1]\nlocal now_ms = unpack(ARGV)\n",
    ],
)
def test_any_other_beginning_is_refused(written, text):
    with pytest.raises(ValueError, match=r"it\.lua"):
        written(text)


def test_a_script_is_read_once():
    assert scripts.load("reserve") is scripts.load("reserve")
