"""Mutates the Lua scripts and publishes which share of the mutants some test kills: ``python -m tests.mutation``.

Results are kept in a folder, and the next run goes on with what has none. The order is random, so the results of a run
that was ended are those of a random sample. `--sample N --seed S` tries so many, `--each-line` one mutant of each line
that has any, drawn at random, `--script NAME` the mutants of one file, `--again` the survivors and the late kills once
more, after tests were added. Each kill is made sure of: the test must pass without the mutant. A kill is late when only
the limit of a test's time ended it, or the tests' process ended; these are listed with the survivors. `--record` leaves
out what killed.txt and judged.toml have, and adds the kills to killed.txt, also when it is interrupted: with it, the
mutants that no run ever tried come to an end. Exit code: 0 the score is at least 95 %, 1 not, 2 misuse.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutation.installed import lua_files, own_text
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.results import (
    PLAN,
    RECORD,
    Judgement,
    Result,
    Results,
    Score,
    add_to_record,
    judgement_of,
    read_judgements,
    read_record,
)

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/lua",
    "tests/unit/client",
    "tests/unit/coordinator",
    "tests/unit/inspector",
    "tests/unit/cli",
    "tests/unit/web",
    "tests/security/test_encryption.py",
    "tests/worker",
    "tests/simulation/test_simulation.py",
)
"""What mutants are run against: tests in one process. Those that start commands read the scripts from disk."""
AT_LEAST = 0.95
PROGRESS_S = 30


def main() -> int:
    """Runs what is asked for, and prints the score."""
    options = _options()
    results = Results(options.folder)
    _forget_what_changed(options.folder, results)
    judgements = read_judgements()
    wanted = _wanted(options, judgements)
    if not options.report:
        known = results.read()
        again = {key for key, one in known.items() if options.again and (one.status == "survived" or one.is_late)}
        try:
            _run_all([one for one in wanted if one.key not in known or one.key in again], results, options)
        finally:
            if options.record:
                _record(results, options.record)
    known = results.read()
    found = [known[one.key] for one in wanted if one.key in known]
    score = Score.of(found, judgements)
    if options.json:
        print(json.dumps(_as_json(found, judgements, len(wanted)), ensure_ascii=False, indent=1))
    else:
        _print(found, judgements, len(wanted))
    return int(score.share < AT_LEAST)


def _wanted(options: argparse.Namespace, judgements: Mapping[tuple[str, str, str], Judgement]) -> list[Mutant]:
    found = [one for one in _all_mutants() if not options.script or _name(one.file) in options.script]
    if options.record:
        killed = read_record(options.record)
        found = [one for one in found if one.key not in killed and one.place not in judgements]
    # By digest, so that a change of one file leaves the draw of all others as it was.
    found.sort(key=lambda one: hashlib.sha1(f"{options.seed} {one.key}".encode(), usedforsecurity=False).digest())
    if options.each_line:
        found = list({(one.file, one.line): one for one in found}.values())
    found = found[: options.sample]
    # Equivalent ones cost the whole budget of a mutant and count nowhere: the others come first.
    return sorted(found, key=lambda one: one.place in judgements)


def _all_mutants() -> list[Mutant]:
    return [one for file in lua_files() for one in mutants_of(file, own_text(file))]


def _record(results: Results, path: Path) -> None:
    mutants, judgements = _all_mutants(), read_judgements()
    add_to_record({key for key, one in results.read().items() if one.status == "killed"}, mutants, path)
    killed = read_record(path)
    judged = sum(one.place in judgements for one in mutants if one.key not in killed)
    left = len(mutants) - len(killed) - judged
    print(f"{path.name} has {len(killed):,} of {len(mutants):,} mutants; {judged} more are judged, {left:,} are left",
          file=sys.stderr)  # fmt: skip


def _name(file: str) -> str:
    return file.removesuffix(".lua")


def _forget_what_changed(folder: Path, results: Results) -> None:
    """The numbers of statements in the coverage are those of the files as they were."""
    texts = "\n".join(own_text(file) for file in lua_files()).encode()
    digest, noted = hashlib.sha1(texts, usedforsecurity=False).hexdigest(), folder / "files"
    if not noted.exists() or noted.read_text() != digest:
        results.forget_coverage()
        noted.write_text(digest)


def _run_all(mutants: Sequence[Mutant], results: Results, options: argparse.Namespace) -> None:
    """Runs mutants in processes of pytest, one after the other: it starts the next where one ended early."""
    began, todo, suspects = time.monotonic(), {one.key: one for one in mutants}, set[str]()
    written = len(results.lines())
    while todo:
        plan = options.folder / "plan.json"
        plan.write_text(
            json.dumps({"folder": str(options.folder), "mutants": list(todo), "budget_s": options.budget}), "utf-8"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "tests.mutation.runner", "-p", "no:cacheprovider",
             *(options.tests or TESTS)],
            cwd=ROOT, env=os.environ | {PLAN: str(plan)}, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        before, is_over = len(todo), False
        while not is_over:
            try:
                process.wait(PROGRESS_S)
                is_over = True
            except subprocess.TimeoutExpired:
                pass
            lines = results.lines()
            for key in lines[written:]:
                todo.pop(key, None)
            written = len(lines)
            if len(todo) == len(mutants):
                began = time.monotonic()  # tests are traced first
            _say_progress(len(mutants), len(todo), time.monotonic() - began)
        if todo:
            written += _suspect(todo, suspects, results, process.returncode, is_stuck=len(todo) == before)


def _suspect(todo: dict[str, Mutant], suspects: set[str], results: Results, code: int, *, is_stuck: bool) -> bool:
    """Counts a mutant as killed that ended the process of its tests, or broke its fixtures, for the second time, as a
    machine that stood still may do it once. Returns whether it did."""
    key = results.begun()
    if key not in todo:
        if is_stuck and not results.has_grown():
            sys.exit(f"pytest ended with {code} before the first mutant: run it alone, pytest -n0 {' '.join(TESTS)}")
        return False
    if key not in suspects:
        suspects.add(key)
        return False
    reason = f"the process of the tests ended: {code}"
    results.add(Result.of_mutant(todo.pop(key), "killed", by="process", reason=reason))
    return True


def _say_progress(count: int, left: int, took_s: float) -> None:
    done = count - left
    rest = f", about {took_s / done * left / 60:.0f} min more" if done and left else ""
    print(f"{done} of {count} mutants after {took_s / 60:.1f} min{rest}", file=sys.stderr, flush=True)


def _print(found: list[Result], judgements: dict[tuple[str, str, str], Judgement], wanted: int) -> None:
    print(f"{'file':32}{'mutants':>9}{'killed':>8}{'late':>6}{'survived':>10}{'equivalent':>12}{'score':>9}")
    for file in sorted({one.file for one in found}):
        _print_row(_name(file), [one for one in found if one.file == file], judgements)
    _print_row("all", found, judgements)
    score = Score.of(found, judgements)
    if len(found) < wanted:
        low, high = score.interval()
        print(f"{len(found)} of {wanted} mutants: 95 % confidence from {low:.1%} to {high:.1%}")
    for one in sorted(found, key=lambda one: (one.file, one.line)):
        judged = judgement_of(one, judgements)
        if one.status == "survived" and not (judged and judged.verdict == "equivalent"):
            partly = f" (tried {one.tests} of {one.of} tests)" if one.tests < one.of else ""
            print(f"\n{one.file}:{one.line}{partly}\n  - {one.before}\n  + {one.after}")
            if judged:
                print(f"  {judged.verdict}: {judged.reason}")
        elif one.is_late:
            print(f"\n{one.file}:{one.line} late: {one.reason}, {one.test}\n  - {one.before}\n  + {one.after}")


def _print_row(name: str, found: list[Result], judgements: dict[tuple[str, str, str], Judgement]) -> None:
    score = Score.of(found, judgements)
    counted = score.killed + score.survived + score.equivalent
    print(f"{name:32}{counted:9}{score.killed:8}{score.late:6}{score.survived:10}{score.equivalent:12}{score.share:9.1%}")


def _as_json(found: list[Result], judgements: dict[tuple[str, str, str], Judgement], wanted: int) -> dict[str, object]:
    score = Score.of(found, judgements)
    return {
        "wanted": wanted,
        "tried": len(found),
        **dataclasses.asdict(score),
        "score": score.share,
        "interval": score.interval(),
        "mutants": [
            dataclasses.asdict(one)
            | {"judgement": dataclasses.asdict(judged) if (judged := judgement_of(one, judgements)) else None}
            for one in found
        ],
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--script", action="append", metavar="NAME", help="as enqueue or lib/history; may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="try so many, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the order (default: 0)")
    parser.add_argument("--each-line", action="store_true", help="one mutant of each line, drawn at random")
    parser.add_argument("--again", action="store_true", help="run survivors and late kills again")
    parser.add_argument("--report", action="store_true", help="run nothing, print what is known")
    parser.add_argument("--record", nargs="?", type=Path, const=RECORD, metavar="FILE",
                        help=f"try what no recorded run killed, record kills (default: {RECORD.name})")  # fmt: skip
    parser.add_argument("--budget", type=float, default=60, metavar="S", help="seconds of tests each (default: 60)")
    parser.add_argument("--tests", action="append", metavar="PATH", help="tests to run instead of the usual ones")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    usual = Path(tempfile.gettempdir()) / "jobrunner-mutation"
    parser.add_argument("--folder", type=Path, default=usual, help=f"of the results (default: {usual})")
    options = parser.parse_args()
    if unknown := sorted({*(options.script or ())} - {_name(file) for file in lua_files()}):
        parser.error(f"--script {' '.join(unknown)}: no such file in jobrunner/broker/lua")
    if options.sample is not None and options.sample < 1:
        parser.error(f"--sample {options.sample}: give at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
