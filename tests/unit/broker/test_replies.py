"""Replies become text, whatever bytes they hold."""

import pytest

from jobrunner.broker.call import fields, text, text_fields, texts


def test_replies_become_text() -> None:
    assert text("é".encode()) == "é"
    assert texts([b"a", b"b"]) == ["a", "b"]
    assert fields([b"a", b"1", b"b", b"\xff"]) == {"a": b"1", "b": b"\xff"}
    assert text_fields([b"a", b"1", b"b", b"2"]) == {"a": "1", "b": "2"}


def test_damaged_bytes_are_marked_and_hide_nothing_beside_them() -> None:
    assert text(b"a\xff") == "a�"
    assert texts([b"\xff", b"b"]) == ["�", "b"]
    assert text_fields([b"a", b"\xff", b"b", b"2"]) == {"a": "�", "b": "2"}
    assert fields([b"\xff", b"1", b"b", b"2"]) == {"�": b"1", "b": b"2"}


def test_half_a_hash_is_no_hash() -> None:
    with pytest.raises(ValueError, match="shorter"):
        fields([b"a"])
    with pytest.raises(ValueError, match="shorter"):
        text_fields([b"a", b"1", b"b"])
