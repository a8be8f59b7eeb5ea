"""Has the product read the clock of a simulated world, and make the same ids in each run of a seed."""

import itertools
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from jobrunner import clock, task
from jobrunner.broker import broker
from jobrunner.broker.call import Call, resp_args
from jobrunner.broker.reconnect import ReconnectPolicy
from jobrunner.broker.resp import Arg
from jobrunner.client import batches, outgoing
from jobrunner.client.operations import router
from tests.simulation.scheduler import STARTED_MS, World

_FAKES = {
    "monotonic": "monotonic",
    "perf_counter": "monotonic",
    "since_boot": "monotonic",
    "thread_time": "still",
    "process_time": "still",
    "time_ns": "time_ns",
    "sleep": "sleep",
}
"""Names of the product's clocks, and what stands in for them."""
_REAL = {id(getattr(clock, name)): fake for name, fake in _FAKES.items()}


class VirtualTime:
    """The clocks of the process, as the product's modules read them: those of `world`."""

    world: World

    def monotonic(self) -> float:
        """Seconds since the run began."""
        return (self.world.now - STARTED_MS) / 1000

    def still(self) -> float:
        """Processor time: none passes."""
        return 0.0

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""
        return int(self.world.now) * 1_000_000

    def sleep(self, seconds: float) -> None:
        """Has the actor that runs sleep."""
        assert self.world.actor is not None, "an actor sleeps"
        self.world.actor.sleep(seconds)

    def enter(self, world: World, seed: int) -> None:
        """Begins a run: its clock counts, and names of calls and ids begin anew."""
        self.world = world
        process = f"{seed % 2**48:012x}"
        task._ids._process, task._ids._floor = process, int(STARTED_MS) << 16
        task._ids._counter = itertools.count(task._ids._floor)
        outgoing._source._process, outgoing._source._count = process, itertools.count(1)
        outgoing._unknown.clear()
        self._names = itertools.count(1)

    def token_hex(self, size: int) -> str:
        """A name that no other has."""
        return f"{next(self._names):0{2 * size}x}"

    def chance(self) -> float:
        """A random number of the run."""
        return self.world.random.random()

    def reconnect_policy(self, limit_s: float, server: object) -> ReconnectPolicy:
        """As the product makes it, which reads its clock when the class is defined."""
        return ReconnectPolicy(limit_s, server, began=(self.world.now - STARTED_MS) / 1000)


def packed(calls: Iterable[Call[Any]], now_ms: bytes) -> list[list[bytes]]:
    """Calls as the words that the server would read: to write the protocol and to parse it costs more than to run."""
    # Written out: a call of a function for each call and for each word is a tenth of a run.
    return [
        [word if type(word) is bytes else word.encode() if type(word) is str else b"%a" % word for word in args]
        for args in (resp_args(call, now_ms) for call in calls)
    ]


def packed_with_source(calls: Iterable[Call[Any]], now_ms: bytes) -> list[list[bytes]]:
    """The same for scripts that the server does not know."""
    return [_words(resp_args(call, now_ms, with_source=True)) for call in calls]


def _words(args: Iterable[Arg]) -> list[bytes]:
    return [word if type(word) is bytes else word.encode() if type(word) is str else b"%a" % word for word in args]


@contextmanager
def virtual_time() -> Iterator[VirtualTime]:
    """Replaces the clocks in all modules of the product that are loaded; puts them back at the end."""
    made, undo = VirtualTime(), []

    def replace(module: Any, name: str, value: Any) -> None:
        undo.append(partial(setattr, module, name, getattr(module, name)))
        setattr(module, name, value)

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "jobrunner":
            for attribute, value in list(vars(module).items()):
                if id(value) in _REAL:
                    replace(module, attribute, getattr(made, _REAL[id(value)]))
    replace(clock, "time", SimpleNamespace(time_ns=made.time_ns))
    replace(batches, "token_hex", made.token_hex)
    replace(router, "random", SimpleNamespace(random=made.chance))
    # No actor forks, and the question takes microseconds.
    replace(broker, "os", SimpleNamespace(getpid=partial(int, 1)))
    replace(broker, "pack_calls", packed)
    replace(broker, "pack_unknown", packed_with_source)
    replace(broker, "ReconnectPolicy", made.reconnect_policy)
    try:
        yield made
    finally:
        for put_back in reversed(undo):
            put_back()
