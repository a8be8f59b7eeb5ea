"""A step that is repeated in the background while a test does something else."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(step: Callable[[], object], every_s: float) -> Iterator[None]:
    """Calls `step` every `every_s` seconds, in a thread of its own, while the body runs."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            step()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
