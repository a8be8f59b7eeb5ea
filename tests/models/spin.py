"""Checks a model with spin: every order of its steps within the bounds, breadth first, so a violation's trace is the
shortest one."""

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
MEMORY_MB = 12_000
"""Beyond this a search stops and is reported as not finished."""
_MISSING = (
    "is not installed, and the models need spin and a C compiler: `apt install spin gcc` (Debian, Ubuntu), or "
    "`brew install spin gcc` (macOS)"
)
_STUCK = "no process waits for ever"


class CannotCheck(Exception):
    """A tool is missing or failed, or the search did not come to its end: nothing is known about the model."""


@dataclass(frozen=True)
class Verdict:
    """What a search found: the number of states, its time with compiling, and the rule that broke, with the steps that
    lead there in terms of the product. `rule` is empty when every rule holds in every state."""

    states: int
    seconds: float
    rule: str
    trace: list[str]


def missing_tool() -> str:
    """Why models cannot be checked here; empty when they can."""
    return next((f"{tool} {_MISSING}" for tool in ("spin", "gcc") if not shutil.which(tool)), "")


def check(model: str, bounds: Mapping[str, int], *, bug: str = "", optimize: bool = False) -> Verdict:
    """Searches all states of a model. `bounds` and the seeded `bug` are defined in it as macros. `optimize` pays off
    from a few million states on."""
    if why := missing_tool():
        raise CannotCheck(why)
    defined = [f"-D{name}={value}" for name, value in bounds.items()] + ([f"-DBUG_{bug}"] if bug else [])
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jr-model-") as work:
        for source in FOLDER.glob("*.pml"):
            shutil.copy(source, work)
        _run(work, "spin", *defined, "-a", f"{model}.pml")
        level = "-O2" if optimize else "-O0"
        _run(work, "gcc", level, "-w", "-DSAFETY", "-DBFS", f"-DMEMLIM={MEMORY_MB}", "-o", "pan", "pan.c")
        found = _run(work, "./pan")
        states, errors = re.search(r"([\d.e+]+) states, stored", found), re.search(r"errors: (\d+)", found)
        is_cut_short = "Search not completed" in found and errors and not int(errors[1])
        if not states or not errors or is_cut_short:
            raise CannotCheck(
                f"the search of {model} with {bounds} did not come to its end, so it says nothing; lower the bounds. "
                f"The checker's last words: {found[-400:].strip()!r}"
            )
        rule, trace = _read_trail(work, model, defined) if int(errors[1]) else ("", [])
    return Verdict(int(float(states[1])), time.monotonic() - began, rule, trace)


def _read_trail(work: str, model: str, defined: list[str]) -> tuple[str, list[str]]:
    """Replays the trail of a violation and keeps what the model itself prints, up to the first broken rule. The step
    in which the rule breaks may print after it."""
    replayed = _run(work, "spin", *defined, "-t", "-T", "-B", f"{model}.pml")
    steps = [line[2:].strip() for line in replayed.splitlines() if line.startswith("@ ")]
    broken = [line[2:].strip() for line in replayed.splitlines() if line.startswith("! ")]
    return broken[0] if broken else _STUCK, steps


def _run(work: str, *command: str) -> str:
    ran = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if ran.returncode and command[0] != "./pan":
        said = (ran.stdout + ran.stderr).strip()
        raise CannotCheck(f"{' '.join(command)} ended with {ran.returncode}: {said[-1000:]}")
    return ran.stdout + ran.stderr
