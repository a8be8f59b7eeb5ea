"""A test leaves nothing declared behind, and takes nothing from those after it."""

import signal
import sys
from pathlib import Path

import pytest

from jobrunner.cli import signals
from jobrunner.errors import ModuleNotLoadable
from jobrunner.etl.pipeline import Pipeline, all_pipelines
from jobrunner.jobs import registry
from jobrunner.jobs.decorator import job
from tests.support import registries
from tests.support.registries import as_before, station_of

MODULE = """
from jobrunner import job
from jobrunner.etl import Pipeline

line = Pipeline("imported-line")

@line.sink("step")
def step(item):
    return item

@job(name="imported.job", every=60)
def beat():
    pass
"""


@job(name="declared.at-import")
def at_import() -> None:
    pass


def names() -> set[str]:
    return {found.name for found in registry.all_jobs()}


def test_what_a_block_declares_or_forgets_is_as_it_was_behind_it() -> None:
    with as_before():

        @job(name="declared.within", every=60)
        def within() -> None: ...

        line = Pipeline("declared-line")
        line.sink("step")(lambda item: item)
        registry.forget("declared.at-import")
        assert "declared.within" in names()
        assert station_of("declared-line/step")

    assert "declared.within" not in names()
    assert registry.find("declared.at-import") is at_import.definition
    assert station_of("declared-line/step") is None
    assert "declared-line" not in {one.name for one in all_pipelines()}


def test_a_failing_block_leaves_nothing_behind_either() -> None:
    def fail() -> None:
        with as_before():
            job(name="declared.within")(lambda: None)
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fail()
    assert "declared.within" not in names()


def test_what_an_imported_module_declares_stays_as_long_as_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "declared_late.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registries, "_PROJECT", tmp_path)
    with as_before():
        with as_before():
            registry.load_modules(["declared_late"])
        assert "imported.job" in names()
        assert station_of("imported-line/step")
        del sys.modules["declared_late"]
    assert "imported.job" not in names()
    assert station_of("imported-line/step") is None


def test_what_a_module_declares_that_a_test_wrote_ends_with_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "declared_by_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    with as_before():
        registry.load_modules(["declared_by_a_test"])
        assert "imported.job" in names()
    assert "imported.job" not in names()
    assert station_of("imported-line/step") is None


def test_every_test_runs_in_such_a_block(request: pytest.FixtureRequest) -> None:
    assert "_nothing_declared" in request.fixturenames


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("from broken_helper import setup\n\nTABLE = setup()\n", r"KeyError: 'missing' \(broken_helper\.py:2\)"),
        ("import json\n\njson.loads('{')\n", r"JSONDecodeError: .* \(broken_jobs\.py:3\); mend it there"),
        ("x = 1\ndef broken(:\n", r"SyntaxError: .* \(broken_jobs\.py:2\); mend it there"),
        ("import no_such_package\n", r"No module named 'no_such_package' \(broken_jobs\.py:1\); install it in this en"),
        ("import sys\n\nsys.exit()\n", r"'broken_jobs' cannot .* it exits .*0 \(broken_jobs\.py:3\); code that"),
        ("import argparse\nargparse.ArgumentParser(prog='x').parse_args(['--no'])\n", r"code 2 \(broken_jobs\.py:2\)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    (tmp_path / "broken_jobs.py").write_text(code)
    (tmp_path / "broken_helper.py").write_text("def setup():\n    return {}['missing']\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("broken_jobs", "broken_helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    with pytest.raises(ModuleNotLoadable, match=words):
        registry.load_modules(["broken_jobs"])


def test_a_module_that_exits_with_a_text_or_by_a_signal_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exits_with_text.py").write_text("import sys\n\nsys.exit('no licence')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(SystemExit, match="no licence"):
        registry.load_modules(["exits_with_text"])

    ended = "import os, signal\n\nos.kill(os.getpid(), signal.SIGTERM)\n"
    (tmp_path / "ended_by_signal.py").write_text(ended)
    monkeypatch.setattr(signals, "_survived", [])
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        signals.leave_at_signals()
        with pytest.raises(SystemExit) as raised:
            registry.load_modules(["ended_by_signal"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert raised.value.code == 128 + 15


@pytest.mark.parametrize(
    ("folder", "name", "words"),
    [
        ("shop", "jobs", "No module named 'shop' \\(jobs.py:1\\); shop is in {top}: run this there, with shop.jobs"),
        ("shop", "relative", "it is part of a package: run this in {top}, with shop.relative"),
        ("shop", "other_jobs", "No module named 'other_jobs'; other_jobs is in {top}: run this there, with other_jobs"),
        (".", "shop.jobs", None),
    ],
)
def test_a_command_in_a_folder_too_deep_names_the_folder_and_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str, words: str | None
) -> None:
    (tmp_path / "shop").mkdir()
    for path, text in {
        "shop/__init__.py": "",
        "shop/models.py": "PRICE = 1\n",
        "shop/jobs.py": "from shop.models import PRICE\n",
        "shop/relative.py": "from .models import PRICE\n",
        "other_jobs.py": "",
    }.items():
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    try:
        if words is None:
            registry.load_modules([name])
            return
        with pytest.raises(ModuleNotLoadable, match=words.format(top=tmp_path)):
            registry.load_modules([name])
    finally:
        for module in set(sys.modules) - known:
            sys.modules.pop(module)
