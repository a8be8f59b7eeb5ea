"""Which files make `work --reload` start again."""

import os
import threading
from pathlib import Path

import pytest

from jobrunner.cli import supervisor
from jobrunner.cli.supervisor import SourceFiles

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


def test_one_save_that_is_several_writes_starts_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([[], ["a.py"], ["b.py"], ["a.py", "c.py"], [], [], ["d.py"], []])
    started: list[list[str]] = []
    over = threading.Event()

    class Files:
        def changed(self) -> list[str]:
            if (found := next(looks, None)) is None:
                over.set()
                threading.Event().wait()  # the thread ends with the process
            return found or []

    reloaded = supervisor.Supervisor([])
    monkeypatch.setattr(supervisor, "sleep", lambda _: None)
    monkeypatch.setattr(reloaded, "_begin_again", started.append)
    threading.Thread(target=reloaded._watch, args=(Files(),), daemon=True).start()
    assert over.wait(30)
    while not reloaded._events.empty():
        reloaded._events.get()()

    assert started == [["a.py", "b.py", "c.py"], ["d.py"]]
