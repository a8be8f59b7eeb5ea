"""Slices of the items for one script: it blocks the server, which also copies every payload."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
SLICE_BYTES = 1_048_576
"""Of payloads in one call. One MiB costs the server one to three milliseconds, as a script copies it several times."""


def sliced(items: Iterable[T], size: Callable[[T], int], *, most: int) -> Iterator[list[T]]:
    """Slices of up to `most` items whose sizes come to SLICE_BYTES at most; a larger item is a slice of its own."""
    some: list[T] = []
    total = 0
    for item in items:
        length = size(item)
        if some and (len(some) == most or total + length > SLICE_BYTES):
            yield some
            some, total = [], 0
        some.append(item)
        total += length
    if some:
        yield some
