"""`jobrunner redact`: names that the server keeps, and that no command shows the values of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client
from jobrunner.inspector.audit import entries


@pytest.fixture
def show_output(cli: Callable[..., Any], client: Client, raw: redis.Redis, keys: Keys) -> Callable[[], str]:
    """The output of `tasks show` for a task with an IBAN in its parameters and in its progress."""
    client.queue("mail").push({"iban": "DE-1"}, id="a")
    raw.hset(keys.queue("mail").task("a"), "progress", '{"done": 1, "total": 2, "note": "iban=DE-2", "iban": "DE-3"}')
    words = ("tasks", "show", "a", "--queue", "mail")
    return lambda: cli(*words).out + cli(*words, "--json").out


def test_what_is_added_is_hidden_until_it_is_removed(cli: Callable[..., Any], show_output: Callable[[], str]) -> None:
    assert all(f"DE-{n}" in show_output() for n in (1, 2, 3))

    assert cli("redact", "add", "iban", "card.*").code == 0
    assert not any(f"DE-{n}" in show_output() for n in (1, 2, 3))
    assert cli("redact", "list", "--json").value["server"] == ["card.*", "iban"]

    assert cli("redact", "remove", "iban").code == 0
    assert all(f"DE-{n}" in show_output() for n in (1, 2, 3))
    assert cli("redact", "list", "--json").value["server"] == ["card.*"]


def test_the_list_says_where_each_name_is_from(cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.jobrunner]\nredact = ["pin"]\n')
    cli("redact", "add", "iban")
    found = cli("redact", "list", "--json").value
    assert "password" in found["usual"]
    assert (found["here"], found["server"]) == (["pin"], ["iban"])
    lines = [line.split() for line in cli("redact", "list").out.splitlines()]
    assert ["iban", "server"] in lines
    assert ["pin", "here"] in lines


@pytest.mark.parametrize("words", [("add", "("), ("add", "iban", "[")])
def test_what_is_no_pattern_is_refused_and_nothing_is_kept(cli: Callable[..., Any], words: tuple[str, ...]) -> None:
    refused = cli("redact", *words)
    assert refused.code == 2
    assert "regular expressions" in refused.line
    assert cli("redact", "list", "--json").value["server"] == []


def test_a_name_that_is_not_kept_is_not_removed(cli: Callable[..., Any]) -> None:
    cli("redact", "add", "iban")
    refused = cli("redact", "remove", "iban", "ibna")
    assert refused.code == 1
    assert "'ibna'" in refused.line
    assert "iban" in refused.line
    assert cli("redact", "list", "--json").value["server"] == ["iban"], "all or none"


def test_changes_are_in_the_audit_log(cli: Callable[..., Any], client: Client) -> None:
    cli("redact", "add", "iban")
    cli("redact", "remove", "iban")
    assert {(one.action, one.what) for one in entries(client)} == {("redact.add", "iban"), ("redact.remove", "iban")}
