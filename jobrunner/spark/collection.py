"""Python's garbage collector, off while rows are made. They are many lists without cycles: scanning them costs up to a
fifth of the work and finds nothing."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Switches the collector off within the block, unless it was off before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
