"""A contender as the measures use it: commands to start, and the number of its tasks on the server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.server import PrivateServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A system that enqueues tasks and runs them, in processes of its own."""

    name: str
    produce: Sequence[str]
    """The producer, which gets what produce.py says as its last arguments."""
    work: Callable[[str, int], Sequence[Sequence[str]]]
    """The commands that are the worker for a task (noop, wait, spin or stamp) with so many processes."""
    left: Callable[[PrivateServer], int]
    """Tasks on the server that are waiting, unacknowledged or given up."""
    environment: Callable[[PrivateServer], Mapping[str, str]] = lambda server: {"BENCHMARK_URL": server.url}
    imports: str = ""
    """The statement by which a program gets what it enqueues with."""
    share: float = 1.0
    """The part of --tasks it gets: a slow contender shows its rate on fewer."""
    coroutines: bool = False
    """Whether the producer's client is one of asyncio; else it blocks, and callers at a time are threads."""
    about: str = ""
    """Name and version, of one that is installed for the occasion."""
    only: Sequence[str] = ()
    """The measures it takes part in; empty: all."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Measures in which it takes no part, and why."""

    def takes_part(self, measure: str) -> bool:
        return measure not in self.cannot and (not self.only or measure in self.only)

    def tasks(self, whole: int) -> int:
        """How many of `whole` tasks it gets: its share, but enough for a rate."""
        return max(int(whole * self.share), min(whole, 1_000))
