"""Hooks of objects for forked children, at the end of a program."""

import subprocess
import sys
from typing import Any

import pytest

_PROGRAM = """
import sys
from jobrunner import Client

client = Client(sys.argv[1], sys.argv[2])
client.queue("mail").push_many(range(20))
if sys.argv[3] == "closed":
    client.close()
"""


@pytest.mark.parametrize("end", ["closed", "open"])
def test_a_program_with_a_partitioned_queue_ends_without_a_word(server: Any, keys: Any, client: Any, end: str) -> None:
    """It printed a traceback of `weakref`, as Python took the modules apart before the client."""
    client.queue("mail").configure(partitions=4)

    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, server.url, keys.prefix, end],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (ran.returncode, ran.stderr) == (0, "")
