"""Virtual environments for the peers, made once and kept: no peer is a dependency of jobrunner."""

import subprocess
import sys
from pathlib import Path

from benchmarks.peers.requirements import REQUIREMENTS

DEFAULT_FOLDER = Path.home() / ".cache" / "jobrunner-bench"


class NotInstalled(Exception):
    """A peer's environment cannot be made; the message ends with pip's last words."""


def environment(folder: Path, name: str) -> Path:
    """Returns the `bin` folder of the peer's environment, made anew when its requirements have changed."""
    requirements = REQUIREMENTS[name]
    place = folder / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    wanted = "\n".join(requirements)
    note = place / "requirements.txt"
    if not note.exists() or note.read_text() != wanted:
        print(f"making {place} with {', '.join(requirements)}", file=sys.stderr)
        _run(sys.executable, "-m", "venv", "--clear", str(place))
        _run(str(place / "bin" / "python"), "-m", "pip", "install", "-q", *requirements)
        note.write_text(wanted)
    return place / "bin"


def version(bin_folder: Path, package: str) -> str:
    """Name and version of a package in that environment."""
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    return f"{package} {_run(str(bin_folder / 'python'), '-c', ask).strip()}"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(f"{' '.join(command)} failed: {done.stderr[-500:]}")
    return done.stdout
