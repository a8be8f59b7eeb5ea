"""A progress bar on stderr, for long work while a person is looking."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import click

from jobrunner.clock import perf_counter

T = TypeVar("T")
_MANY = 1000


@contextmanager
def watched(items: Sequence[T], label: str) -> Iterator[Iterable[T]]:
    """The same items; a bar shows how many were taken when they are many and a terminal is there to show it."""
    if len(items) < _MANY or not sys.stderr.isatty():
        yield items
        return
    with click.progressbar(items, label=label, file=sys.stderr) as bar:
        yield bar


@contextmanager
def rising(total: int, label: str, noun: str) -> Iterator[Callable[[int], None] | None]:
    """A callback that takes how many of `total` are done and updates a progress bar with the rate; None without a
    terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    began = perf_counter()
    with click.progressbar(
        length=total, label=label, file=sys.stderr, show_pos=True, item_show_func=lambda shown: shown
    ) as bar:

        def tell(done: int) -> None:
            rate = done / max(perf_counter() - began, 0.001)
            bar.update(min(done, total) - bar.pos, f"{rate:,.0f} {noun}/s")

        yield tell
        tell(total)
