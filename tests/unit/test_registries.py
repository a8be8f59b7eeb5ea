"""A test leaves nothing declared behind, and takes nothing from those after it."""

import sys
from pathlib import Path

import pytest

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
        ("import no_such_package\n", r"No module named 'no_such_package' \(broken_jobs\.py:1\); mend it there"),
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
