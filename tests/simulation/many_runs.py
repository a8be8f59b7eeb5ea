"""Plays many seeds: in pieces, in as many processes as there are cores, each with one server for all its pieces."""

import gc
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context

from tests.simulation.scenario import play
from tests.simulation.server import SimulatedServer
from tests.simulation.virtual_time import virtual_time

_PIECE = 250
_UNCOLLECTED = 25
"""So many runs are played before what they left is collected: soon, as it lies in the caches of the processor."""


def play_piece(seeds: list[int], server: SimulatedServer | None = None) -> tuple[list[tuple[int, str]], int]:
    """Plays some seeds in this process. Returns those that are broken, and how many calls it was."""
    server, broken, calls = server or SimulatedServer(), [], 0
    with _collected_by_hand(), virtual_time() as clock:
        for number, seed in enumerate(seeds, 1):
            outcome = play(server, clock, seed)
            calls += outcome.calls
            if outcome.problem:
                broken.append((seed, outcome.problem))
            if number % _UNCOLLECTED == 0:
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
    with _collected_by_hand(), ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        yield from pool.map(_play_next, pieces)


def _play_next(piece: list[int]) -> tuple[list[tuple[int, str]], int]:
    return play_piece(piece, _server())


@cache
def _server() -> SimulatedServer:
    """The server of this process: to make one takes as long as seven runs."""
    return SimulatedServer()


@contextmanager
def _collected_by_hand() -> Iterator[None]:
    """Switches the collector off, and has `gc.collect` pass over what there is already. Does nothing within itself."""
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.enable()
        gc.unfreeze()
