"""Runs rows of the reliability table at any scale: ``python -m tests.reliability R1 --full``.

Without a row it lists them. Figures go to the terminal, and with `--json` to a file that `document.py` makes the
document's table of. Exit code: 0 all held, 1 something did not, 2 misuse.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.reliability.rows.every import SCENARIOS
from tests.reliability.scenario import Findings, Scenario, Sizes
from tests.reliability.stage import Stage


def main() -> int:
    """Plays what is asked for."""
    options = _options()
    if not options.rows:
        for one in SCENARIOS.values():
            print(f"{one.row:<4} {one.title}: {one.promise}\n     full: {words(one.full)}")
        return 0
    names = list(SCENARIOS) if options.rows == ["all"] else options.rows
    written: dict[str, Any] = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    is_broken = False
    for name in names:
        findings, sizes, took_s = play(SCENARIOS[name], _sizes(SCENARIOS[name], options), options.histories)
        is_broken |= bool(findings.broken)
        _show(SCENARIOS[name], findings, sizes, took_s)
        written[name] = {
            "sizes": sizes, "seconds": round(took_s, 1), "figures": findings.figures,
            "checks": [[check.name, check.value, check.bound, check.holds] for check in findings.checks],
        }  # fmt: skip
        if options.json:
            options.json.write_text(json.dumps(written, indent=1, default=str, ensure_ascii=False) + "\n")
    return int(is_broken)


def play(one: Scenario, sizes: Sizes, histories: Path | None = None) -> tuple[Findings, Sizes, float]:
    """Plays one row on a stage of its own; an error of the harness is a finding as well. A history that the row records
    is kept in `histories`."""
    findings, began = Findings(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jr-") as folder:
        stage = Stage(Path(folder), _say, **one.server)
        stage.histories = histories and histories / one.row
        try:
            one.play(stage, findings, sizes)
        except Exception as error:
            findings.equals("played to its end", f"{type(error).__name__}: {error}", "yes")
        finally:
            stage.close()
    return findings, sizes, time.monotonic() - began


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"{', '.join(SCENARIOS)}, or all")
    parser.add_argument("--full", action="store_true", help="at full size (default: the short one)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=N", help="a size of your own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the figures to FILE")
    parser.add_argument("--histories", type=Path, metavar="FOLDER",
                        help="keep the histories of rows that record one, to be checked again later")  # fmt: skip
    options = parser.parse_args()
    if unknown := [name for name in options.rows if name not in SCENARIOS and options.rows != ["all"]]:
        parser.error(f"{', '.join(unknown)}: choose of {', '.join(SCENARIOS)}, or all")
    return options


def _sizes(one: Scenario, options: argparse.Namespace) -> Sizes:
    sizes = dict(one.full if options.full or one.short is None else one.short)
    for text in options.set:
        name, _, value = text.partition("=")
        if name not in sizes:
            raise SystemExit(f"--set {text}: {one.row} has {words(sizes)}")
        sizes[name] = type(sizes[name])(value)
    return sizes


def _say(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _show(one: Scenario, findings: Findings, sizes: Sizes, took_s: float) -> None:
    _say("")
    print(f"{one.row} {one.title} ({words(sizes)}): {'BROKEN' if findings.broken else 'holds'}, {took_s:.0f} s")
    for check in findings.checks:
        print(f"  {'ok ' if check.holds else 'NOT'} {check.name}: {check.value} ({check.bound})")
    for name, value in findings.figures.items():
        print(f"      {name}: {value}")


def words(sizes: Sizes) -> str:
    """The sizes as one reads them."""
    return ", ".join(
        f"{value:,} {name}" if isinstance(value, int) else f"{name} {value}" for name, value in sizes.items()
    )


if __name__ == "__main__":
    sys.exit(main())
