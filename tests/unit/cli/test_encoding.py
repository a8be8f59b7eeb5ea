"""Output to a terminal, pipe or file whose encoding lacks characters that jobrunner prints."""

import io
import json
import sys
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from jobrunner.__main__ import main
from jobrunner.client.client import Client

Prints = Callable[..., bytes]


@pytest.fixture
def printed(cli: object, monkeypatch: pytest.MonkeyPatch) -> Prints:
    """What a command writes to a stdout in Latin-1, on the server that `cli` has named."""

    def run(*words: str) -> bytes:
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
        monkeypatch.setattr(sys, "argv", ["jobrunner", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        sys.stdout.flush()
        return raw.getvalue()

    return run


def test_a_character_that_the_encoding_lacks_is_escaped(printed: Prints) -> None:
    assert rb"redis://\u2026" in printed("--help")


def test_an_interruption_before_the_command_is_loaded_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobrunner.__main__._escape_what_cannot_be_encoded", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(SystemExit, match="130"):
        main()


def test_json_stays_json(printed: Prints, client: Client) -> None:
    client.queue("mail").push({"to": "\u2026 \U0001f600"})

    (task,) = json.loads(printed("tasks", "list", "--json"))

    assert task["payload"] == {"to": "\u2026 \U0001f600"}
