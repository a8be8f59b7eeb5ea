"""The byte sequences that terminals send for keys."""

import pytest

from jobrunner.cli.top.terminal import is_cut, names_of


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ("j", ["j"]),
        ("\x1b[A\x1bOB", ["up", "down"]),
        ("\r", ["enter"]),
        ("\x1b", ["escape"]),
        ("ab\x7f", ["a", "b", "backspace"]),
        ("\x1b[5~q", ["pageup", "q"]),
        ("é日", ["é", "日"]),
        ("\x1b[200~x", ["x"]),
        ("\x00\x01", []),
    ],
)
def test_bytes_become_names_and_unknown_sequences_nothing(sent: str, names: list[str]) -> None:
    assert list(names_of(sent)) == names


@pytest.mark.parametrize(
    ("sent", "cut"), [("\x1b", True), ("\x1b[", True), ("\x1b[5", True), ("\x1b[A", False), ("q", False)]
)
def test_a_sequence_without_its_end_is_known(sent: str, cut: bool) -> None:
    assert is_cut(sent) is cut
