"""What makes two errors the same: job, class, message without its variables, place."""

import pytest

from jobrunner.error_groups import group_of, normalized


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("card 4711 was declined", "card # was declined"),
        ("no answer in 2.5 s", "no answer in # s"),
        ("HTTP 503", "HTTP #"),
        ("task 01a1fe85769b0000c6650a2fcc89-mail", "task #-mail"),
        ("id 7f9c24e8-3b12-4f0a-9d3e-0c1b2a3d4e5f is taken", "id # is taken"),
        ("at 0xDEADBEEF and 0x7f94973f1650", "at # and #"),
        ("order ord_9XaB77kQ is paid", "order # is paid"),
        ("2026-11-25T16:02:06Z is past", "# is past"),
        ("10.0.0.7:6379 refused", "# refused"),
        ("no key 'user:17' in \"cache\"", "no key '…' in \"…\""),
        ("can't open 'a b.txt', won't retry", "can't open '…', won't retry"),
        ("", ""),
        ("line\tand   blanks", "line and blanks"),
        ("'" * 400, "'…'" * 66 + "'…"),
    ],
)
def test_what_differs_is_blanked(message, expected):
    assert normalized(message)[:200] == normalized(message)
    if not message.startswith("''"):
        assert normalized(message) == expected


def test_errors_that_differ_in_their_variables_are_one_group():
    one = group_of("Charge", "CardDeclined: card 4711", place="a.py:f")

    assert one == group_of("Charge", "CardDeclined: card 12", place="a.py:f")
    assert one.definition.split("\n") == ["Charge", "CardDeclined", "card #", "a.py:f", ""]


@pytest.mark.parametrize(
    "other",
    [
        group_of("Refund", "CardDeclined: card 4711", place="a.py:f"),
        group_of("Charge", "Timeout: card 4711", place="a.py:f"),
        group_of("Charge", "CardDeclined: cards 4711", place="a.py:f"),
        group_of("Charge", "CardDeclined: card 4711", place="a.py:g"),
    ],
)
def test_job_class_message_and_place_distinguish(other):
    assert other.id != group_of("Charge", "CardDeclined: card 4711", place="a.py:f").id


def test_a_release_is_no_part_of_the_group():
    one, two = (group_of("Charge", "E: x", release=name) for name in ("v1", "v2\nx"))

    assert one.id == two.id
    assert two.definition.split("\n")[4] == "v2 x"


def test_a_class_with_its_module_wins_over_the_text():
    assert group_of("", "CardDeclined: x", error_type="bank.CardDeclined").definition.split("\n")[1] == (
        "bank.CardDeclined"
    )


@pytest.mark.parametrize("text", ["boom", "the bank is away", "KeyError: 'x'", "ValueError", ": x", "a b: c"])
def test_any_text_has_a_group(text):
    assert len(group_of("", text).definition.split("\n")) == 5
