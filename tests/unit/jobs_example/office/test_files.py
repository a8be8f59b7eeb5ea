"""Files that are whole or not there."""

from pathlib import Path

import pytest

from jobs_example.office.files import write_whole


def test_a_file_is_written_with_its_folder(tmp_path: Path) -> None:
    write_whole(tmp_path / "new" / "a.txt", "flüge")

    assert (tmp_path / "new" / "a.txt").read_text(encoding="utf-8") == "flüge"


def test_a_second_writing_replaces_the_first_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.txt", "one")
    write_whole(tmp_path / "a.txt", "two")

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "two")]


def test_a_failed_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a.txt", "old")

    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "a.txt", "\udcff")

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "old")]
