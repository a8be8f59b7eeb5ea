"""A test leaves nothing declared behind, and takes nothing from those after it."""

import sys
from pathlib import Path

import pytest

from jobrunner.etl.pipeline import Pipeline, all_pipelines
from jobrunner.jobs import registry
from jobrunner.jobs.decorator import job
from tests.support import registries
from tests.support.registries import as_before

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
        assert registry.station_of("declared-line/step")

    assert "declared.within" not in names()
    assert registry.find("declared.at-import") is at_import.definition
    assert registry.station_of("declared-line/step") is None
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
        assert registry.station_of("imported-line/step")
        del sys.modules["declared_late"]
    assert "imported.job" not in names()
    assert registry.station_of("imported-line/step") is None


def test_what_a_module_declares_that_a_test_wrote_ends_with_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "declared_by_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    with as_before():
        registry.load_modules(["declared_by_a_test"])
        assert "imported.job" in names()
    assert "imported.job" not in names()
    assert registry.station_of("imported-line/step") is None


def test_every_test_runs_in_such_a_block(request: pytest.FixtureRequest) -> None:
    assert "_nothing_declared" in request.fixturenames
