"""`python -m benchmarks`: one run, one table. README.md describes the measures and how to read them."""

import argparse
import importlib.util
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from benchmarks.measures import OURS, PEERS
from benchmarks.peers.venvs import DEFAULT_FOLDER
from benchmarks.results import write_json
from benchmarks.run import CONTENDERS, MEASURED, Run
from benchmarks.server import PrivateServer

_NAMES = (*MEASURED, "peers", *CONTENDERS)


def main() -> int:
    """Exit code: 0 every delivery verified, 1 some figure is void, 2 misuse."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the end of this process ends the workers, too
    what, who = chosen(options.only, MEASURED), chosen(options.only, CONTENDERS)
    if OURS in who and importlib.util.find_spec("jobrunner") is None:
        print("no jobrunner here: run from the repository's root, or --only peers,yardstick", file=sys.stderr)
        return 2
    run = Run(what=what, who=who, tasks=options.tasks, rounds=options.rounds, venvs=options.venvs)
    with PrivateServer() as server:
        run.measure(server)
    notes = [f"VOID: {line}" for line in run.board.voids] + [f"not measured: {line}" for line in run.board.absences]
    print(run.board.table(), *notes, "", run.about, sep="\n")
    if options.json:
        written = {"about": run.about, "absences": run.board.absences, "measures": run.board.as_json()}
        write_json(options.json, written)
    return 1 if run.board.voids else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", type=words, default=(), help=f"some of {','.join(_NAMES)}")
    parser.add_argument("--tasks", type=_at_least(1_000), default=100_000, help="of a drain (default 100000)")
    parser.add_argument("--rounds", type=_at_least(1), default=3, help="rounds, interleaved (default 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to FILE")
    parser.add_argument("--venvs", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help="of the peers")
    return parser.parse_args()


def words(text: str) -> list[str]:
    """The names in `text`, with `peers` replaced by all peers. Raises ArgumentTypeError for an unknown name."""
    named = [word.strip() for word in text.split(",")]
    unknown = sorted(set(named) - set(_NAMES))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose of {', '.join(_NAMES)}")
    return [*named, *(PEERS if "peers" in named else ())]


def _at_least(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least {least}")
        return int(text)

    return whole


def chosen(only: Collection[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """The names of `known` that are in `only`; all of them when none is."""
    return tuple(word for word in known if word in only) or known


if __name__ == "__main__":
    sys.exit(main())
