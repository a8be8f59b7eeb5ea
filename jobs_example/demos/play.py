"""Runs a demo in a folder of its own and prints its checks."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from jobs_example.demos.checks import Check, write_checks


def play(
    run: Callable[[Path, TextIO], list[Check]],
    *,
    folder: Path | None = None,
    as_json: bool = False,
    out: TextIO | None = None,
    talk: TextIO | None = None,
) -> int:
    """Calls `run(folder, talk)` and prints its checks; returns 0 when all agrees, 1 when not, 2 for a bad folder.

    Everything is made in `folder`, which must be new or empty, and stays there; without one, in a temporary folder
    that is removed unless something differs. The checks go to `out` (stdout), as a table or as JSON, all else to
    `talk` (stderr).
    """
    out, talk = out or sys.stdout, talk or sys.stderr
    if folder is not None and folder.exists() and (folder.is_file() or any(folder.iterdir())):
        print(f"the folder {folder} is not empty: name a new one", file=talk)
        return 2
    place = folder or Path(tempfile.mkdtemp(prefix="jobrunner-demo-"))
    began = time.monotonic()
    agree = False
    try:
        checks = run(place.absolute(), talk)
        _write(checks, time.monotonic() - began, as_json, out)
        agree = all(check.agrees for check in checks)
    except (KeyboardInterrupt, SystemExit):
        agree = True  # it was stopped: there is nothing to look into
        raise
    finally:
        if folder is None and agree:
            shutil.rmtree(place)
        else:
            print(f"results and the logs of the workers are kept in {place}", file=talk)
    return 0 if agree else 1


def _write(checks: Sequence[Check], elapsed_s: float, as_json: bool, out: TextIO) -> None:
    agree = all(check.agrees for check in checks)
    if as_json:
        found = {"agree": agree, "seconds": round(elapsed_s, 1), "checks": [asdict(check) for check in checks]}
        print(json.dumps(found, indent=1), file=out)
        return
    write_checks(checks, out)
    differing = sum(not check.agrees for check in checks)
    outcome = f"{differing} {'check differs' if differing == 1 else 'checks differ'}"
    if agree:
        outcome = "nothing was lost, and every figure agrees"
    print(f"\n{outcome} ({elapsed_s:.0f} s)", file=out)
