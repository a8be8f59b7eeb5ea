"""The loader: a script's signature is its first two statements, its includes are put where they are named."""

import hashlib

import pytest

from jobrunner.broker import scripts


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Loads a script written by the test."""
    (tmp_path / "lua" / "lib").mkdir(parents=True)
    monkeypatch.setattr(scripts, "files", lambda _: tmp_path)
    scripts.load.cache_clear()

    def load(text, **libs):
        (tmp_path / "lua" / "it.lua").write_text(text)
        for name, lib in libs.items():
            (tmp_path / "lua" / "lib" / f"{name}.lua").write_text(lib)
        return scripts.load("it")

    yield load
    scripts.load.cache_clear()


def test_names_come_from_the_signature(written):
    script = written("local a, b = unpack(KEYS)\nlocal now_ms, c = unpack(ARGV)\nreturn 1\n")

    assert (script.name, script.keys, script.args) == ("it", ("a", "b"), ("now_ms", "c"))
    assert script.sha == hashlib.sha1(script.source).hexdigest().encode()


def test_a_tail_of_any_length_is_not_named(written):
    script = written("local a = unpack(KEYS)\nlocal now_ms, c = unpack(ARGV, 1, 2)\nreturn 1\n")

    assert script.args == ("now_ms", "c")


def test_includes_are_put_in_their_order_in_place_of_the_line(written):
    script = written(
        "local a = unpack(KEYS)\nlocal now_ms = unpack(ARGV)\n-- include x y\nreturn 1\n", x="local x\n", y="local y\n"
    )

    assert script.source.endswith(b"unpack(ARGV)\nlocal x\n\nlocal y\n\nreturn 1\n")


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
