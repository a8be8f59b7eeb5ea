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


@pytest.mark.parametrize(
    ("patterns", "hidden", "shown"),
    [
        (["(?i)iban", "pin"], ["IBAN", "pin"], ["bin"]),
        (["(?P<a>x)_key", "(?P<a>y)_key"], ["x_key", "y_key"], ["z_key"]),
        (["(card|account)_no", r"(z)\1", "(a|b)"], ["card_no", "zz", "b"], ["zcard", "z"]),
        (["a|b", "(?#why)c"], ["a", "b", "c"], ["ab"]),
    ],
)
def test_patterns_do_not_change_each_other(patterns: list[str], hidden: list[str], shown: list[str]) -> None:
    """Each is valid alone; joined, the second kind stopped every list, every page and every worker."""
    for order in (patterns, patterns[::-1]):
        redaction = Redaction(order)
        assert [name for name in hidden if not redaction.hides(name)] == []
        assert [name for name in shown if redaction.hides(name)] == []


@pytest.mark.parametrize("pattern", ["", "\udcff", "(", "a" * 9 + "{99999999999}"])
def test_a_name_that_no_server_could_keep_or_that_hides_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidOption, match="give names or regular expressions"):
        Redaction(["iban", pattern])


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidOption, match="redact"):
        Redaction(["("])
