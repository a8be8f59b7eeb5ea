"""jobrunner's own scripts with the words that its workers and producers send, from clients that do nothing else.

`in_python` packs each command when it is its turn and reads the replies; no task is run. `packed` has all bytes ready
before its clock starts and keeps the next command under way while it waits for a reply: the limit of the server.
"""

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, Self

import hiredis

from benchmarks.contenders import QUEUE
from benchmarks.server import PrivateServer
from jobrunner import Client
from jobrunner.broker.call import resp_args
from jobrunner.broker.calls import leases, new_tasks
from jobrunner.broker.resp import Arg, pack
from jobrunner.broker.scripts import load
from jobrunner.client.client import keys_of
from jobrunner.settings import DEFAULT_RESULT_TTL_S
from jobrunner.task import Task

TYPE = "Noop"
BULK = 1_000
_SAID = (round(DEFAULT_RESULT_TTL_S * 1000), "succeeded", b"", b"", TYPE, b"")
_UNDER_WAY = 2


class Words:
    """The commands as lists of words, for the queue that the benchmarks use."""

    def __init__(self, server: PrivateServer) -> None:
        with Client(url=server.url) as client:
            keys = keys_of(client).queue(QUEUE)
        model = Task(id="", queue=QUEUE, payload=b"", type=TYPE, kept_s=60)
        self._enqueue = resp_args(new_tasks.enqueue(keys, [model]), b"")[:-3]
        self._reserve = resp_args(leases.reserve(keys, 0, token=0), b"")[:-4]
        self._commit = resp_args(leases.commit_groups(keys, []), b"")
        for script in ("enqueue", "reserve", "commit"):
            server.redis.script_load(load(script).source)

    def enqueue(self, named: Iterable[tuple[Arg, Arg]]) -> list[Arg]:
        """For tasks with these ids and payloads."""
        return [*self._enqueue, *(word for id_, payload in named for word in (id_, payload, ""))]

    def reserve(self, count: int, lease: Arg) -> list[Arg]:
        """For so many tasks, with leases from this number on."""
        return [*self._reserve, count, lease, "", leases.CALL_BYTES]

    def commit(self, ids: Sequence[Arg], lease: int) -> list[Arg]:
        """For tasks that have leases from this number on."""
        held = chain.from_iterable(zip(ids, range(lease, lease + len(ids)), strict=True))
        return [*self._commit, len(ids), *_SAID, *held]


class Wire:
    """One connection: bytes there, replies back."""

    def __init__(self, server: PrivateServer) -> None:
        self._socket = socket.create_connection(server.address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser = hiredis.Reader()
        self.send = self._socket.sendall
        self.close = self._socket.close

    def receive(self, replies: int) -> list[Any]:
        """The next so many. Raises hiredis.ReplyError for one that is an error."""
        found: list[Any] = []
        while len(found) < replies:
            reply = self._parser.gets()
            if reply is False:
                self._parser.feed(self._socket.recv(1 << 18))
            elif isinstance(reply, Exception):
                raise reply
            else:
                found.append(reply)
        return found

    def ask(self, *commands: list[Arg]) -> list[Any]:
        """One round trip."""
        self.send(b"".join(map(pack, commands)))
        return self.receive(len(commands))


class BareScripts:
    """Rates, in tasks a second, on a server that is emptied before each."""

    def __init__(self, server: PrivateServer) -> None:
        self._server = server
        self.words = Words(server)

    def fill(self, count: int) -> Self:
        """Tasks in the order of their numbers."""
        self._server.clear()
        self._stream([(pack(self.words.enqueue(map(_task, some))), 1) for some in _slices(count, BULK)])
        return self

    def drain_in_python(self, count: int, batch: int) -> float:
        """Commits what was reserved and reserves again, both in one write, until nothing is left."""
        self.fill(count)
        reserve, commit = self.words.reserve, self.words.commit
        with closing(Wire(self._server)) as wire:
            began, lease = time.perf_counter(), 0
            ids = wire.ask(reserve(batch, lease))[0][6::5]
            while ids:
                held, lease = commit(ids, lease), lease + batch
                ids = wire.ask(held, reserve(batch, lease))[1][6::5]
            return count / (time.perf_counter() - began)

    def drain_packed(self, count: int, batch: int) -> float:
        """The same, with the ids known beforehand."""
        self.fill(count)
        turns = []
        for some in _slices(count, batch):
            ids: list[Arg] = [_task(number)[0] for number in some]
            turns.append((pack(self.words.reserve(batch, some[0])) + pack(self.words.commit(ids, some[0])), 2))
        return count / self._stream(turns)

    def enqueue_in_python(self, count: int, batch: int) -> float:
        """So many tasks in each round trip."""
        self._server.clear()
        with closing(Wire(self._server)) as wire:
            began = time.perf_counter()
            for some in _slices(count, batch):
                wire.ask(self.words.enqueue(map(_task, some)))
            return count / (time.perf_counter() - began)

    def enqueue_packed(self, count: int, batch: int) -> float:
        """The same."""
        self._server.clear()
        return count / self._stream([(pack(self.words.enqueue(map(_task, some))), 1) for some in _slices(count, batch)])

    def _stream(self, turns: Sequence[tuple[bytes, int]]) -> float:
        """Seconds for writes with so many replies each, of which the next is under way when the last is awaited."""
        with closing(Wire(self._server)) as wire:
            began = time.perf_counter()
            for position, (sent, _) in enumerate(turns):
                wire.send(sent)
                if position >= _UNDER_WAY - 1:
                    wire.receive(turns[position - _UNDER_WAY + 1][1])
            wire.receive(sum(replies for _, replies in turns[max(len(turns) - _UNDER_WAY + 1, 0) :]))
            return time.perf_counter() - began


def payload(number: int) -> bytes:
    """As jobrunner writes it for a no-op task."""
    return b'{"n":%d}' % number


def _task(number: int) -> tuple[str, bytes]:
    return f"{number:028x}-{QUEUE}", payload(number)


def _slices(count: int, size: int) -> Iterator[range]:
    return (range(first, min(first + size, count)) for first in range(0, count, size))
