"""Waiting for facts, in place of sleeping."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(fact: Callable[[], Any], *, timeout_s: float = 30.0) -> Any:
    """What `fact` returns as soon as that is true; fails the test when it does not become so."""
    ends = time.monotonic() + timeout_s
    while not (found := fact()):
        assert time.monotonic() < ends, f"waited {timeout_s:g} s in vain"
        time.sleep(0.002)
    return found
