"""Plays many seeds: in pieces, each in one process with one server."""

import gc
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.scenario import play
from tests.simulation.server import SimulatedServer
from tests.simulation.virtual_time import virtual_time

_PIECE = 500


def play_piece(seeds: list[int]) -> tuple[list[tuple[int, str]], int]:
    """Plays some seeds in this process. Returns those that are broken, and how many calls it was."""
    server, broken, calls = SimulatedServer(), [], 0
    gc.collect()
    gc.freeze()
    gc.disable()  # what a run leaves is collected behind the piece
    try:
        with virtual_time() as clock:
            for seed in seeds:
                outcome = play(server, clock, seed)
                calls += outcome.calls
                if outcome.problem:
                    broken.append((seed, outcome.problem))
    finally:
        gc.enable()
        gc.unfreeze()
        gc.collect()
    return broken, calls


def play_all(seeds: list[int]) -> Iterator[tuple[list[tuple[int, str]], int]]:
    """Plays any number of seeds, on all cores; what `play_piece` returns, piece by piece."""
    pieces = [seeds[at : at + _PIECE] for at in range(0, len(seeds), _PIECE)]
    if len(pieces) == 1:
        yield play_piece(pieces[0])
        return
    # A new interpreter for each process takes a second; only Linux forks without surprises.
    context = get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        yield from pool.map(play_piece, pieces)
