"""Tables for people, JSON for programs."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobrunner.cli import output
from jobrunner.cli.output import answer_json, facts, plain_json, readable, table, when
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


ROWS = [
    ("01a1fe85769b0000c6650a2fcc89-mail", "Mail", "mail", "12 s ago", "to=ada " * 20),
    (
        "01a1fe85769b0000c6650a2fcc89-mail",
        "SendQuarterlyInvoiceToEuropeanCustomers",
        "mail",
        "12 s ago",
        "to=eve " * 20,
    ),
    ("own", "Mail", "billing-invoices-of-western-and-southern-europe/checked", "12 s ago", "no " * 40),
]


@pytest.mark.parametrize("columns", [120, 100, 80, 60])
def test_names_stay_whole_however_narrow_the_terminal_is(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(output, "screen_width", lambda: columns)

    lines = table(("ID", "JOB", "QUEUE", "WHEN", "PAYLOAD"), ROWS, names=("JOB", "QUEUE"), tail=True).splitlines()

    words = " ".join(lines).split()
    assert max(map(len, lines)) <= columns
    for name in {cell for row in ROWS for cell in row[:3]}:
        assert words.count(name) == sum(row[:3].count(name) for row in ROWS), name
    assert words.count("ago") == len(ROWS)


def test_only_the_row_with_the_long_name_has_a_line_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "screen_width", lambda: 80)

    lines = table(("ID", "JOB", "WHEN", "PAYLOAD"), [(i, j, w, p) for i, j, _, w, p in ROWS[:2]], names=("JOB",),
                  tail=True).splitlines()  # fmt: skip

    assert [line.split()[0] for line in lines] == ["ID", "PAYLOAD", ROWS[0][0], "to=ada", ROWS[1][0], "12", "to=eve"]
    assert lines[5].index("12") == lines[2].index("12"), "what follows stays below its heading"


def test_columns_that_find_no_place_go_on_below_their_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "screen_width", lambda: 40)
    columns = ("QUEUE", "WAITING", "SCHEDULED", "PENDING", "DEAD", "HISTORY")

    lines = table(columns, [("mail", 1, 2, 3, 4, 5), ("orders", 6, 7, 8, 9, 10)]).splitlines()

    assert lines == [
        "QUEUE   WAITING  SCHEDULED  PENDING",
        "    DEAD  HISTORY",
        "mail          1          2        3",
        "       4        5",
        "orders        6          7        8",
        "       9       10",
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
def test_an_instant_is_told_by_its_distance(away: timedelta, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = utc_now()
    monkeypatch.setattr(output, "utc_now", lambda: now)
    assert when(now + away) == words


def test_what_json_has_no_number_for_is_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A payload may have it: Python reads and writes it, and other programs could not read the answer."""
    value = {"x": [float("nan"), float("inf"), -float("inf"), 1.5, "ü"]}

    answer_json(value)

    def refused(word: str) -> None:
        raise AssertionError(word)

    told = {"x": ["NaN", "Infinity", "-Infinity", 1.5, "ü"]}
    assert json.loads(capsys.readouterr().out, parse_constant=refused) == told == plain_json(value)


def test_no_instant_is_a_dash() -> None:
    assert when(None) == "-"


def test_a_payload_is_shown_as_json_as_text_or_in_base64() -> None:
    assert [readable(raw) for raw in (b'{"a": 1}', b"plain", b"\xff")] == [{"a": 1}, "plain", {"base64": "/w=="}]


def test_json_holds_dataclasses_and_instants(capsys: pytest.CaptureFixture[str]) -> None:
    answer_json({"check": ok("python", "3.11"), "at": datetime(2030, 1, 1, tzinfo=UTC)})

    assert json.loads(capsys.readouterr().out) == {
        "check": {"what": "python", "verdict": "ok", "found": "3.11", "advice": "", "queue": "", "job": "",
                  "task": ""},
        "at": "2030-01-01T00:00:00+00:00",
    }
