"""Checks the models that docs/reliability.md describes: ``python -m tests.models``.

Prints a table: each model within its full bounds, then its seeded bugs, each of which must be found. `--short` takes
small bounds; `--bug NAME` prints the trace that finds a seeded bug. Exit code: 0 every rule holds and every bug is
found, 1 not, 2 misuse, or a tool is missing.
"""

import argparse
import sys
from collections.abc import Mapping

from tests.models.catalog import MODELS, Model
from tests.models.spin import CannotCheck, Verdict, check, missing_tool


def main() -> int:
    """Checks what is asked for."""
    options = _options()
    if why := missing_tool():
        print(f"python -m tests.models: {why}", file=sys.stderr)
        return 2
    try:
        if options.bug:
            return _show_bug(options.bug)
        chosen = [MODELS[name] for name in options.models or MODELS]
        print(f"{'model':<36}{'bounds':<66}{'states':>12}{'seconds':>9}  result")
        verdicts = [_check_model(one, is_short=options.short) for one in chosen]  # all, also after one that is broken
        return int(not all(verdicts))
    except CannotCheck as error:
        print(f"python -m tests.models: {error}", file=sys.stderr)
        return 2


def _check_model(model: Model, *, is_short: bool) -> bool:
    """Prints the rows of a model. Returns whether its rules hold and its bugs are found."""
    is_good = True
    for bounds in (model.short,) if is_short else model.full:
        verdict = check(model.name, bounds, optimize=not is_short)
        result = "BROKEN" if verdict.rule else "every rule holds"
        _print_row(f"{model.name}: {model.title}", bounds, verdict, result)
        if verdict.rule:
            _print_trace(verdict)
        is_good &= not verdict.rule
    for bug in model.bugs:
        verdict = check(model.name, model.bug_bounds, bug=bug)
        result = f"found in {len(verdict.trace)} steps: {verdict.rule}" if verdict.rule else "NOT FOUND"
        _print_row(f"  seeded: {bug}", model.bug_bounds, verdict, result)
        is_good &= bool(verdict.rule)
    return is_good


def _show_bug(bug: str) -> int:
    model = next(one for one in MODELS.values() if bug in one.bugs)
    verdict = check(model.name, model.bug_bounds, bug=bug)
    print(f"{bug}: {model.bugs[bug]}")
    _print_trace(verdict)
    return 0 if verdict.rule else 1


def _print_row(name: str, bounds: Mapping[str, int], verdict: Verdict, result: str) -> None:
    shown = ", ".join(f"{word.lower()} {value}" for word, value in bounds.items())
    print(f"{name:<36}{shown:<66}{verdict.states:>12,}{verdict.seconds:>9.1f}  {result}", flush=True)


def _print_trace(verdict: Verdict) -> None:
    if not verdict.rule:
        print("no rule is broken")
        return
    print(f"broken: {verdict.rule}\nthe shortest way there:")
    for number, step in enumerate(verdict.trace, 1):
        print(f"{number:>4}. {step}")


def _options() -> argparse.Namespace:
    bugs = sorted(bug for one in MODELS.values() for bug in one.bugs)
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)} (default: all)")
    parser.add_argument("--short", action="store_true", help="within small bounds, as the tests do")
    parser.add_argument("--bug", choices=bugs, metavar="NAME", help=f"one of {', '.join(bugs)}")
    options = parser.parse_args()
    for name in options.models:
        if name not in MODELS:
            parser.error(f"no model is called {name!r}: choose of {', '.join(MODELS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
