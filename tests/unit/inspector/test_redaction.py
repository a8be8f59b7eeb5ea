"""Redaction of parameters, headers and results."""

import pytest

from jobrunner.errors import InvalidOption
from jobrunner.redaction import HIDDEN, Redaction


@pytest.mark.parametrize("name", ["db_password", "PASSWD", "apikey", "api_key", "X-Authorization", "token_2"])
def test_the_usual_names_are_hidden_wherever_they_stand_in_a_name(name: str) -> None:
    assert Redaction().hides(name)


def test_a_name_that_is_given_is_the_whole_name() -> None:
    hides = Redaction(["iban", "card.*"]).hides

    assert [hides(name) for name in ("iban", "IBAN", "iban_of", "card_number", "discard")] == [
        True, True, False, True, False,
    ]  # fmt: skip


def test_what_is_hidden_is_hidden_however_deep_and_the_rest_is_as_it_was() -> None:
    value = {"user": "ada", "deep": [{"secret": {"a": 1}}, 7, None]}

    assert Redaction().shown(value) == {"user": "ada", "deep": [{"secret": HIDDEN}, 7, None]}
    assert value["deep"] == [{"secret": {"a": 1}}, 7, None]


def test_what_is_too_deep_is_cut() -> None:
    value: object = {"password": "hunter2"}
    for _ in range(50):
        value = [value]

    assert "hunter2" not in repr(Redaction().shown(value))


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidOption, match="redact"):
        Redaction(["("])
