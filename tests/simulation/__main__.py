"""Plays random runs of the product against a simulated server: ``python -m tests.simulation``.

Without options: the seeds that once found a bug, and 2 000 others. `--seeds N` plays more, on all cores; `--seed N
--verbose` plays one and prints what happened; `--bug NAME` seeds a bug in the scripts and shows the first run that
finds it. Exit code: 0 all is as it must be (with `--bug`: the bug was found), 1 not, 2 misuse.
"""

import argparse
import sys
import time

from tests.simulation.bugs import BUGS, server_with
from tests.simulation.many_runs import play_all
from tests.simulation.scenario import Outcome, play
from tests.simulation.seeds import kept_seeds
from tests.simulation.server import SimulatedServer
from tests.simulation.virtual_time import virtual_time

_SHOWN = 10


def main() -> int:
    """Plays what is asked for."""
    options = _options()
    if options.bug:
        return _find_bug(options.bug, options.seeds)
    if options.seed is not None:
        return _show(_play(SimulatedServer(), options.seed, is_traced=options.verbose))
    began = time.perf_counter()
    calls = bad = 0
    for outcomes, of_calls in play_all([*kept_seeds(), *range(options.first, options.first + options.seeds)]):
        calls += of_calls
        for seed, problem in outcomes:
            bad += 1
            if bad <= _SHOWN:
                print(f"seed {seed}: {problem}", flush=True)
    runs = len(kept_seeds()) + options.seeds
    took_s = time.perf_counter() - began
    print(f"{runs:,} runs, {calls:,} calls, {bad} of them broken: {runs / took_s:,.0f} runs a second, {took_s:.1f} s")
    if bad:
        print("python -m tests.simulation --seed N --verbose shows one of them")
    return int(bad > 0)


def _play(server: SimulatedServer, seed: int, *, is_traced: bool) -> Outcome:
    with virtual_time() as clock:
        return play(server, clock, seed, is_traced=is_traced)


def _show(outcome: Outcome) -> int:
    for line in outcome.trace:
        print(line)
    print(f"seed {outcome.seed}: {outcome.problem or 'as it must be'} ({outcome.calls} calls)")
    return int(bool(outcome.problem))


def _find_bug(name: str, seeds: int) -> int:
    server = server_with(BUGS[name])
    for seed in [*kept_seeds(name), *BUGS[name].tried(seeds)]:
        if _play(server, seed, is_traced=False).problem:
            _show(_play(server, seed, is_traced=True))
            return 0
    print(f"{name} is not found")
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, metavar="N", help="play so many (default: 2000)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first of them (default: 0)")
    parser.add_argument("--seed", type=int, metavar="N", help="play this one alone")
    parser.add_argument("--verbose", action="store_true", help="with --seed: print what happened")
    parser.add_argument("--bug", choices=sorted(BUGS), metavar="NAME", help=f"one of {', '.join(BUGS)}")
    options = parser.parse_args()
    if options.seeds < 1 or options.first < 0:
        parser.error(f"--seeds {options.seeds} --first {options.first}: give at least 1 seed, from 0 on")
    if options.verbose and options.seed is None:
        parser.error("--verbose prints one run: name it with --seed N")
    return options


if __name__ == "__main__":
    sys.exit(main())
