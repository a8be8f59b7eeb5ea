"""Another version of the package next to the one under test: the first version with the same format of keys."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from tests.acceptance.fleet import ROOT

_KEYS = "jobrunner/broker/keys.py"
_SINCE = "{/}:workers"
"""The part of all key names since the format number is final. Earlier formats were never released."""


class OtherVersion:
    """Processes of an older version, taken from the history of the repository into a folder."""

    def __init__(self, folder: Path, commit: str) -> None:
        self.folder = folder
        self.commit = commit
        packed = _git("archive", "--format=tar", commit, "jobrunner")
        with tarfile.open(fileobj=BytesIO(packed)) as files:
            files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later have it
            files.extractall(folder)

    def command(self, words: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
        """Starts a command of that version; the jobs of the tests are there, too."""
        path = os.pathsep.join([str(self.folder), str(ROOT)])
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=self.folder,
            env={**environment, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def first_of_format(folder: Path) -> OtherVersion | None:
    """The first version of this format; None where the repository's history is not there."""
    try:
        added = _git("log", f"-S{_SINCE}", "--format=%H", "--", _KEYS).decode().split()
        return OtherVersion(folder, added[-1]) if added else None
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout
