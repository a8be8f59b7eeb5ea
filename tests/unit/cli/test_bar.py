"""The progress bar is for people who wait for much."""

import sys

import pytest

from jobrunner.cli.bar import watched


def taken(number: int) -> int:
    with watched(list(range(number)), "requeueing") as items:
        return len(list(items))


def test_a_bar_is_drawn_on_stderr_when_a_person_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    assert taken(5000) == 5000

    heard = capsys.readouterr()
    assert "requeueing" in heard.err
    assert "100%" in heard.err
    assert heard.out == ""


@pytest.mark.parametrize(("is_terminal", "number"), [(False, 5000), (True, 10), (True, 0)])
def test_without_a_person_or_much_to_do_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool, number: int
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)

    assert taken(number) == number

    assert capsys.readouterr() == ("", "")
