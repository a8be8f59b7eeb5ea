"""Virtual environments for the peers, made once and kept: no peer is a dependency of jobrunner."""

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.requirements import PYTHON, REQUIREMENTS

_MINORS_TRIED = 5
DEFAULT_FOLDER = Path.home() / ".cache" / "jobrunner-bench"


class NotInstalled(Exception):
    """A peer's environment cannot be made; the message ends with pip's last words."""


def environment(folder: Path, name: str) -> Path:
    """Returns the `bin` folder of the peer's environment, made anew when its requirements have changed."""
    requirements = REQUIREMENTS[name]
    python, (major, minor) = _interpreter(PYTHON.get(name, (3, 0)))
    place = folder / f"{name}-{major}.{minor}"
    wanted = "\n".join(requirements)
    note = place / "requirements.txt"
    if not note.exists() or note.read_text() != wanted:
        print(f"making {place} with {', '.join(requirements)}", file=sys.stderr)
        _run(python, "-m", "venv", "--clear", str(place))
        _run(str(place / "bin" / "python"), "-m", "pip", "install", "-q", *requirements)
        note.write_text(wanted)
    return place / "bin"


def version(bin_folder: Path, package: str) -> str:
    """Name and version of a package in that environment, and of its Python if that is not the harness's."""
    ask = f"import sys; from importlib.metadata import version; print(version({package!r}), *sys.version_info[:2])"
    found, major, minor = _run(str(bin_folder / "python"), "-c", ask).split()
    other = "" if (int(major), int(minor)) == sys.version_info[:2] else f" on Python {major}.{minor}"
    return f"{package} {found}{other}"


def _interpreter(oldest: tuple[int, int]) -> tuple[str, tuple[int, int]]:
    """This interpreter and its version if it is new enough, else the next newer one on the PATH that runs."""
    if sys.version_info >= oldest:
        return sys.executable, sys.version_info[:2]
    for minor in range(oldest[1], oldest[1] + _MINORS_TRIED):
        program = f"python3.{minor}"
        if shutil.which(program) and not subprocess.run([program, "-c", ""], capture_output=True).returncode:
            return program, (3, minor)
    least = ".".join(map(str, oldest))
    raise NotInstalled(f"it needs Python {least} or newer and this is {sys.version.split()[0]}; put one on the PATH")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(f"{' '.join(command)} failed: {done.stderr[-500:]}")
    return done.stdout
