"""The progress bar appears on a terminal, for long operations."""

import sys

import pytest

from jobrunner.cli.output import rising, watched


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


def test_what_is_done_so_far_and_each_second_is_shown_to_a_person(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    with rising(5000, "Archiving", "rows") as tell:
        assert tell is not None
        for done in (0, 1200, 1200, 6000):
            tell(done)

    heard = capsys.readouterr()
    assert "Archiving" in heard.err
    assert "1200/5000" in heard.err
    assert "rows/s" in heard.err
    assert "5000/5000" in heard.err
    assert heard.out == ""


def test_without_a_terminal_nobody_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with rising(5000, "Archiving", "rows") as tell:
        assert tell is None
    assert capsys.readouterr() == ("", "")
