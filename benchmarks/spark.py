"""All figures of stations, pipelines, reads and writes on Spark, in one run.

    python -m benchmarks.spark FOLDER                # about 40 minutes; the machine should have nothing else to do
    python -m benchmarks.spark FOLDER --quick        # smaller and once: the ratios of a busy machine

One program after the other, each with its own table, and its JSON in FOLDER; within a program the sides take turns.
Exit code: 0 when every target is met, 1 when one is missed, 2 when a program did not end.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.child import ROOT

PROGRAMS: dict[str, tuple[list[str], list[str]]] = {
    "spark_station": (["--rounds", "3"], ["--rounds", "1", "--sizes", "10000"]),
    "spark_read": (["--tasks", "1000000", "--rounds", "3"], ["--tasks", "200000", "--rounds", "1"]),
    "spark_write": (["--tasks", "300000", "--rounds", "3"], ["--tasks", "100000", "--rounds", "1"]),
    "spark_flights": (["--rounds", "3"], ["--rounds", "1", "--months", "2"]),
    "spark_isolation": ([], ["--items", "20000", "--batches", "20000"]),
}
"""Name → arguments, and those of a quick run."""


def main() -> int:
    """Exit code as above."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=(__doc__ or "").splitlines()[0])
    asked.add_argument("folder", type=Path)
    asked.add_argument("--quick", action="store_true")
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    codes = []
    for name, (whole, quick) in PROGRAMS.items():
        print(f"\n{name}, load {os.getloadavg()[0]:.1f}", flush=True)
        words = [*(quick if given.quick else whole), "--json", str((given.folder / f"{name}.json").absolute())]
        codes.append(subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *words], cwd=ROOT).returncode)
    if set(codes) - {0, 1}:
        return 2
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
