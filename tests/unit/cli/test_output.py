"""Tables for people, JSON for programs."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobrunner.cli.output import answer_json, facts, readable, table, when
from jobrunner.clock import utc_now
from jobrunner.inspector.doctor import ok


def test_columns_are_as_wide_as_they_must_be_with_numbers_to_the_right() -> None:
    shown = table(("QUEUE", "WAITING"), [("mail", 3), ("a-long-name", 12)])

    assert shown.splitlines() == ["QUEUE        WAITING", "mail               3", "a-long-name       12"]


def test_a_cell_keeps_to_its_line() -> None:
    assert table(("A", "B"), [("two\nlines", ("x", "y")), ("", 0)]).splitlines()[1:] == [
        "two lines  x, y",
        "-          0",
    ]


def test_facts_stand_below_each_other() -> None:
    assert facts([("id", 1), ("state", "dead")]) == "id     1\nstate  dead"


@pytest.mark.parametrize(
    ("away", "words"),
    [
        (timedelta(seconds=-12), "12 s ago"),
        (timedelta(minutes=5, seconds=1), "in 5 min"),
        (timedelta(hours=3, seconds=1), "in 3 h"),
        (timedelta(days=-2), "2 d ago"),
    ],
)
def test_an_instant_is_told_by_its_distance(away: timedelta, words: str) -> None:
    assert when(utc_now() + away) == words


def test_no_instant_is_a_dash() -> None:
    assert when(None) == "-"


def test_a_payload_is_shown_as_json_as_text_or_in_base64() -> None:
    assert [readable(raw) for raw in (b'{"a": 1}', b"plain", b"\xff")] == [{"a": 1}, "plain", {"base64": "/w=="}]


def test_json_holds_dataclasses_and_instants(capsys: pytest.CaptureFixture[str]) -> None:
    answer_json({"check": ok("python", "3.11"), "at": datetime(2030, 1, 1, tzinfo=UTC)})

    assert json.loads(capsys.readouterr().out) == {
        "check": {"what": "python", "verdict": "ok", "found": "3.11", "advice": ""},
        "at": "2030-01-01T00:00:00+00:00",
    }
