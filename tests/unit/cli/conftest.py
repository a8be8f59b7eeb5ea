"""Commands in this process: the same words, the same boundary, no new interpreter for each."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobrunner.cli.boundary import guarded
from jobrunner.cli.main import jobrunner
from jobrunner.jobs.declare import job
from jobrunner.jobs.registry import forget


@dataclass(frozen=True)
class Said:
    """Exit code, stdout, stderr."""

    code: int
    out: str
    talk: str

    @property
    def value(self) -> Any:
        """The JSON on stdout."""
        return json.loads(self.out)


@pytest.fixture
def says(
    server: Any, keys: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Said]:
    """says("status", "--json"): what the command says about the server of this test."""
    monkeypatch.setenv("JOBRUNNER_URL", server.url)
    monkeypatch.setenv("JOBRUNNER_PREFIX", keys.prefix)
    monkeypatch.chdir(tmp_path)

    def say(*words: str) -> Said:
        code = guarded(jobrunner, words)
        heard = capsys.readouterr()
        return Said(code, heard.out, heard.err)

    return say


@pytest.fixture
def add() -> Iterator[Any]:
    """A job `add` on the queue `maths`."""

    @job(queue="maths", max_attempts=1)
    def add(x: int, y: int = 0) -> int:
        return x + y

    yield add
    forget("add")
