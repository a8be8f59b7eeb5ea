"""Redaction of parameters, headers and results."""

import pytest

from jobrunner.errors import InvalidOption
from jobrunner.redaction import ALL_NAMES, HIDDEN, Redaction


@pytest.mark.parametrize("name", ["db_password", "PASSWD", "apikey", "api_key", "X-Authorization", "token_2",
                                  "X-Api-Key", "api-key", "credit-card", "credit_card"])  # fmt: skip
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("401: Authorization: Bearer sk-1", "401: Authorization: *"),
        ("curl -H 'Authorization: Bearer sk-1' u", "curl -H 'Authorization: *' u"),
        ("authorization: Basic sk-1= x", "authorization: * x"),
        ('Authorization: Digest username="ada", response="sk-1"\nnext', "Authorization: *\nnext"),
        ("connect(password=b'sk-1', a=1)", "connect(password=*, a=1)"),
        ("{b'password': b'sk-1'} x", "{b'password': *} x"),
        ('{"tokens": ["sk-1", "sk-2"], "a": 1}', '{"tokens": *, "a": 1}'),
        ('{"password": {"value": "sk-1}", "b": [1]}} x', '{"password": *} x'),
        (r'"{\"tokens\": [\"sk-1]\", \"d\"], \"b\": 1}"', r'"{\"tokens\": *, \"b\": 1}"'),
        ("Settings(password=SecretStr('sk-1'), a=1)", "Settings(password=*, a=1)"),
        ("password=('sk-1', ')') x", "password=* x"),
        ("'password' => 'sk-1' x", "'password' => * x"),
        ("403 for X-Api-Key: sk-1 x", "403 for X-Api-Key: * x"),
        ("credit-card=sk-1, a", "credit-card=*, a"),
        ('{"tokens": ["sk-1", "sk', '{"tokens": *'),
        ("token= x", "token= *"),
        ("token=", "token="),
        ("no token (a) is here", "no token (a) is here"),
    ],
)
def test_in_a_text_the_whole_value_behind_a_name_is_hidden(text: str, shown: str) -> None:
    assert Redaction().text(text) == shown.replace("*", HIDDEN)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("used tokens=120, max_tokens: 4096", "used tokens=120, max_tokens: 4096"),
        ("promptTokens=12. TOKEN_COUNT=-3", "promptTokens=12. TOKEN_COUNT=-3"),
        ("{'usage': {'total_tokens': 17.5}, 'token': 17}", "{'usage': {'total_tokens': 17.5}, 'token': *}"),
        ("tokens=sk-1 api_tokens=120sk", "tokens=* api_tokens=*"),
        ("tokens='120' tokens=[120] tokens=(1, 2)", "tokens=* tokens=* tokens=*"),
        ("tokens=0042 credit_cards=4111111111111111", "tokens=* credit_cards=*"),
        ("tokens=999999999999 tokens=1000000000000", "tokens=999999999999 tokens=*"),
        ("secret_of_tokens=12 tokensused=1 token_number=5", "secret_of_tokens=* tokensused=* token_number=*"),
    ],
)
def test_of_what_is_counted_a_plain_number_is_shown_and_nothing_else(text: str, shown: str) -> None:
    assert Redaction().text(text) == shown.replace("*", HIDDEN)


@pytest.mark.parametrize("value", ["120", True, None, [120], {"used": 120}, 10**12, float("nan"), float("inf")])
def test_a_field_of_what_is_counted_is_shown_as_a_number_only(value: object) -> None:
    counts = {"tokens": 120, "max_tokens": 4.5, "token_count": 0, "token_limit": 10**12 - 1}
    assert Redaction().shown(counts) == counts
    assert Redaction().shown({"tokens": value}) == {"tokens": HIDDEN}
    assert Redaction().hides("tokens"), "a text is hidden there"


def test_a_name_that_is_given_hides_numbers_too() -> None:
    redaction = Redaction(["tokens", "max_.*"])

    assert redaction.shown({"tokens": 1, "max_tokens": 1, "n_tokens": 1}) == {
        "tokens": HIDDEN, "max_tokens": HIDDEN, "n_tokens": 1,
    }  # fmt: skip
    assert redaction.text("tokens=1 n_tokens=1") == f"tokens={HIDDEN} n_tokens=1"


@pytest.mark.parametrize("name", ["my_ſecret", "Iban", "IBAN", "my-Api_KEY", "PASSWORD"])
@pytest.mark.parametrize("given", [["iban"], ["iba[n]"]])
def test_a_name_is_found_in_any_case_whether_or_not_texts_can_be_passed_over(name: str, given: list[str]) -> None:
    assert Redaction(given).text(f"a: 1, {name}=sk-1") == f"a: 1, {name}={HIDDEN}"


def test_a_value_in_many_brackets_is_hidden_whole() -> None:
    value = "[" * 6_000 + "'sk-1'" + "]" * 6_000

    assert Redaction().text(f"token={value} x") == f"token={HIDDEN} x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ValueError: iban='DE1', city=Bern", "ValueError: ••••••, city=••••••"),
        ("Error: order.iban='DE1' is wrong", "Error: •••••• is wrong"),
        ("Error: (iban='DE1', n=1), no", "Error: ••••••, no"),
        ("a: b: c: 'DE1'", "a: •••••• •••••• ••••••"),
        ("no name is here", "no name is here"),
    ],
)
def test_a_value_is_hidden_when_all_names_are_though_it_is_a_part_of_the_value_of_another(
    text: str, shown: str
) -> None:
    """`ValueError: iban=` was taken for a name with its value, and 'DE1' behind it stayed."""
    assert ALL_NAMES.text(text) == shown
