"""A progress bar on stderr, for long work while a person is looking."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import click

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
