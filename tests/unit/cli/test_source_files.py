"""Which files make `work --reload` start again."""

import os
from pathlib import Path

import pytest

from jobrunner.cli import source_files
from jobrunner.cli.source_files import SourceFiles

_LONGEST_PATH = os.pathconf("/", "PC_PATH_MAX")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("jobs.py", "deep/er/more.py", ".hidden/x.py", "env/lib/y.py", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    return tmp_path


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def test_a_file_that_is_written_added_or_removed_is_a_change(folder: Path) -> None:
    files = SourceFiles(folder)
    assert files.changed() == []

    touch(folder / "deep/er/more.py")
    (folder / "new.py").write_text("")
    (folder / "jobs.py").unlink()

    assert files.changed() == sorted(str(folder / name) for name in ("deep/er/more.py", "jobs.py", "new.py"))
    assert files.changed() == []


@pytest.mark.parametrize("name", [".hidden/x.py", "env/lib/y.py", "notes.txt"])
def test_hidden_folders_environments_and_other_files_do_not_count(folder: Path, name: str) -> None:
    files = SourceFiles(folder)

    touch(folder / name)

    assert files.changed() == []


def test_a_dangling_link_is_no_error(folder: Path) -> None:
    (folder / "link.py").symlink_to(folder / "nowhere.py")

    assert SourceFiles(folder).changed() == []


def test_a_folder_that_the_system_does_not_look_into_is_no_error(folder: Path) -> None:
    """As one of another user; here by a path that is too long with a file name after it."""
    deep = folder
    while len(str(deep)) < _LONGEST_PATH - 220:
        deep /= "x" * 200
    deep /= "x" * (_LONGEST_PATH - len(str(deep)) - 4)
    deep.mkdir(parents=True)

    assert SourceFiles(folder).changed() == []


def test_one_save_that_is_several_writes_is_one_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([[], ["a.py"], ["b.py"], ["a.py", "c.py"], [], [], ["d.py"], []])
    monkeypatch.setattr(source_files, "sleep", lambda _: None)
    monkeypatch.setattr(SourceFiles, "changed", lambda _: next(looks))
    files = SourceFiles(folder)

    assert files.await_changes() == ["a.py", "b.py", "c.py"]
    assert files.await_changes() == ["d.py"]
    assert next(looks, None) is None
