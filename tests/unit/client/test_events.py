"""The actor that an event names."""

import multiprocessing
import os

from jobrunner.broker.calls.events import who


def _who(_: int) -> tuple[str, int]:
    return who(), os.getpid()


def test_a_forked_child_is_not_taken_for_its_parent() -> None:
    mine = who()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        ((theirs, pid),) = pool.map(_who, [0])
    assert theirs != mine
    assert theirs.endswith(f".{pid}")
