"""`import jobrunner` has the names of `public.py`, each imported from its module when it is first used."""

import subprocess
import sys

import pytest

import jobrunner
import jobrunner.public
from tests.contracts.sources import ROOT, source


def test_names_and_modules_are_those_of_the_list() -> None:
    listed = {name: origin for origin, names in source(ROOT / "jobrunner" / "public.py").froms for name in names}

    assert {name: f"jobrunner.{origin}" for name, origin in jobrunner._MODULES.items()} == listed
    assert jobrunner.__all__ == jobrunner.public.__all__
    assert set(jobrunner.__all__) <= set(dir(jobrunner))
    for name in jobrunner.__all__:
        assert getattr(jobrunner, name) is getattr(jobrunner.public, name)


def test_a_name_that_there_is_not_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'jobrunner' has no name 'Jobs'"):
        jobrunner.Jobs  # noqa: B018
    assert not hasattr(jobrunner, "__wrapped__")


def test_a_program_that_only_enqueues_imports_no_worker_and_no_command_line() -> None:
    program = "import sys; from jobrunner import Job, Unique, configure, job; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = ("jobrunner.worker.worker", "jobrunner.worker.fetch", "jobrunner.cli.", "click", "croniter", "pyspark")
    assert not [one for one in told.stdout.split() if one.startswith(heavy)]
