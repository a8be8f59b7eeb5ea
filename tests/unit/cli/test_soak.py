"""`jobrunner soak` refuses wrong options before anything starts. tests/acceptance/test_soak.py runs it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--faults kill", "choose from kills"),
        ("--faults kills --no-faults", "exclude each other"),
        ("--url redis://127.0.0.1:1 --faults restarts", "only a private server is killed"),
        ("--url rediss://127.0.0.1:1 --faults cuts", "the proxy leads to"),
        ("--workers 1", "2<=x"),
        ("--duration soon", "no length of time"),
    ],
)
def test_misuse_is_told_in_one_line_and_starts_nothing(cli: Callable[..., Any], words: str, told: str) -> None:
    result = cli("soak", *words.split())

    assert result.code == 2
    assert told in result.err


def test_a_history_needs_a_new_folder(cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "old").touch()

    result = cli("soak", "--history", str(tmp_path))

    assert result.code == 2
    assert "the folder is not empty; name a new one" in result.err


def test_a_server_that_is_away_is_told(cli: Callable[..., Any]) -> None:
    result = cli("soak", "--url", "redis://127.0.0.1:1", "--duration", "1m")

    assert result.code == 1
    assert "127.0.0.1:1" in result.err
