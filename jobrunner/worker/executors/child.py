"""The process of a slot: runs attempts it is sent and answers with their outcomes.

Usage: ``python -m jobrunner.worker.executors.child URL PREFIX MODULES SOCKET LIFELINE`` (descriptors by number). It
ends when the socket or the lifeline closes, so a worker that was killed leaves nothing running behind.
"""

import asyncio
import os
import signal
import socket
import struct
import sys
import threading

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.client.current import configure
from jobrunner.jobs.registry import find, load_modules
from jobrunner.outcome import Outcome
from jobrunner.worker.executors.processes import write_outcome
from jobrunner.worker.runner import Runner

_HEAD = struct.Struct("!I")


def main(url: str, prefix: str, modules: str, descriptor: str, lifeline: str) -> None:
    """Serves one slot until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, args=(int(lifeline),), daemon=True).start()
    client = configure(url, prefix)
    load_modules(module for module in modules.split(",") if module)
    runner = Runner(client.broker, client.keys, lambda _: False)
    decode = msgspec.msgpack.Decoder(Attempt).decode
    with socket.socket(fileno=int(descriptor)) as channel:
        while (message := _receive(channel)) is not None:
            answer = write_outcome(_run(runner, decode(message))) if message else b""
            channel.sendall(_HEAD.pack(len(answer)) + answer)


def _run(runner: Runner, attempt: Attempt) -> Outcome:
    definition = find(attempt.type)
    if definition is not None and definition.is_async:
        return asyncio.run(runner.run_async(attempt))
    return runner.run(attempt)


def _receive(channel: socket.socket) -> bytes | None:
    head = _exactly(channel, _HEAD.size)
    return None if head is None else _exactly(channel, _HEAD.unpack(head)[0])


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _die_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
