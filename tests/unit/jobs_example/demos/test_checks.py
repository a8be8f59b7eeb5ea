"""Checks, and the table of them."""

import io

import pytest

from jobs_example.demos import checks
from jobs_example.demos.checks import Check, at_least, same, same_names

CHECKS = [
    Check(what="flights", expected="336776", found="336776", agrees=True),
    Check(what="latest carriers", expected="F9 FL", found="FL F9", agrees=False),
]
TABLE = [
    "check            expected  found",
    "flights          336776    336776  agrees",
    "latest carriers  F9 FL     FL F9   DIFFERS",
]


class Terminal(io.StringIO):
    """A stream that says a person is looking at it."""

    def isatty(self) -> bool:
        return True


def test_a_figure_must_be_the_same() -> None:
    assert same("dead", 36, 36).agrees
    assert not same("dead", 36, 35).agrees


def test_some_things_must_be_there_at_least() -> None:
    assert at_least("killed", 1, 2) == Check(what="killed", expected="at least 1", found="2", agrees=True)
    assert not at_least("killed", 1, 0).agrees


def test_names_that_are_missing_or_too_many_are_told() -> None:
    assert same_names("dead", {"a", "b"}, {"a", "b"}).agrees
    differs = same_names("dead", {"a", "b"}, {"b", "c"})
    assert (differs.agrees, differs.expected, differs.found) == (False, "2", "2, without a, with c")


def test_of_many_names_a_few_are_told() -> None:
    assert same_names("dead", set("abcdefgh"), set()).found.endswith(", without e and 3 more")


def test_checks_are_a_table_that_aligns() -> None:
    stream = io.StringIO()
    checks.write_checks(CHECKS, stream)

    assert stream.getvalue().splitlines() == TABLE


def test_checks_on_a_terminal_say_the_same() -> None:
    terminal = Terminal()
    checks.write_checks(CHECKS, terminal)

    for word in ("336776", "agrees", "DIFFERS"):
        assert word in terminal.getvalue()


def test_without_rich_a_terminal_gets_the_plain_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    terminal = Terminal()
    checks.write_checks(CHECKS, terminal)

    assert terminal.getvalue().splitlines() == TABLE
