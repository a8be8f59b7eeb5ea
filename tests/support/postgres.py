"""A PostgreSQL server of the tests' own, from Debian's package, on a Unix socket in a folder of its own."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.support.waiting import wait_for

_PACKAGES = Path("/usr/lib/postgresql")


def binaries() -> Path | None:
    """The folder with `initdb` and `postgres` of the newest version that is installed."""
    found = [path for path in _PACKAGES.glob("*/bin") if (path / "initdb").exists() and (path / "postgres").exists()]
    return max(found, key=lambda path: float(path.parent.name), default=None)


@contextmanager
def postgres(folder_of_binaries: Path) -> Iterator[str]:
    """Starts a server; yields the connection string. It does not run as root: then it gets the user of the package."""
    folder = Path(mkdtemp(prefix="pg-"))
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": ()}
    data = folder / "data"
    init: list[str | Path] = [folder_of_binaries / "initdb", "-D", data, "-U", "tests", "-A", "trust", "--no-sync"]
    subprocess.run(init, cwd=folder, check=True, capture_output=True, **user)
    command: list[str | Path] = [folder_of_binaries / "postgres", "-D", data, "-k", folder, "-h", "", "-F"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, **user)
    try:
        wait_for(lambda: b"ready to accept connections" in (folder / "log").read_bytes(), timeout_s=60)
        yield f"host={folder} user=tests dbname=postgres"
    finally:
        server.terminate()
        server.wait(20)
        shutil.rmtree(folder, ignore_errors=True)
