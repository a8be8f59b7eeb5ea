"""Ports for programs that cannot choose one themselves."""

import itertools
import os
import random
import socket
from contextlib import suppress

_FIRST, _OF_A_PROCESS, _PROCESSES = 20_000, 1_000, 12
_offsets = itertools.count(random.randrange(_OF_A_PROCESS))


def free_port() -> int:
    """A port of loopback that is free now, and that nothing else in this run takes before the program does.

    It is below those that Linux hands out by itself, as to servers and connections of other tests, and each process of
    a run has a range of its own.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES
    for offset in itertools.islice(_offsets, _OF_A_PROCESS):
        port = _FIRST + process * _OF_A_PROCESS + offset % _OF_A_PROCESS
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")
