"""The server's own benchmark tool with one of jobrunner's scripts: the limit for a client written in C.

It sends the same words over and over, with random numbers where they are asked for. So it can enqueue and reserve, but
not commit: that needs the ids that a reserve brought.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bare_scripts import BareScripts, Words, payload
from benchmarks.contenders import QUEUE
from benchmarks.server import PrivateServer
from jobrunner.broker.embedded.process import find_binary
from jobrunner.broker.resp import Arg

RANDOM = "__rand_int__"
_ID = f"{'0' * 16}{RANDOM}-{QUEUE}"
_OF = 10**9
_RATE = re.compile(r"([\d.]+) requests per second")


def find() -> str | None:
    """The path of the tool: in the folder of the server that is used here, or on PATH."""
    beside = str(Path(find_binary()).parent)
    names = ("valkey-benchmark", "redis-benchmark")
    return next((found for path in (beside, None) for name in names if (found := shutil.which(name, path=path))), None)


def enqueue(tool: str, server: PrivateServer, count: int, *, batch: int = 1, clients: int = 1) -> float:
    """Tasks a second, so many in a call. Ids are random: a few in a million are there already and left as they are."""
    server.clear()
    words = Words(server).enqueue([(_ID, payload(10_000))] * batch)
    return batch * _calls(tool, server, words, count // batch, clients)


def reserve(tool: str, server: PrivateServer, count: int, *, batch: int) -> float:
    """Tasks a second that are handed out, one call after the other."""
    bare = BareScripts(server).fill(count)
    return batch * _calls(tool, server, bare.words.reserve(batch, RANDOM), count // batch, 1)


def _calls(tool: str, server: PrivateServer, words: Sequence[Arg], count: int, clients: int) -> float:
    host, port = server.address
    command = [tool, "-h", host, "-p", str(port), "-q", "-c", str(clients), "-n", str(count), "-r", str(_OF)]
    arguments = [word.decode() if isinstance(word, bytes) else str(word) for word in words]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
    rates = _RATE.findall(done.stdout)
    if not rates:
        raise ValueError(f"{tool} printed no rate: {done.stdout[-200:]} {done.stderr[-200:]}")
    return float(rates[-1])
