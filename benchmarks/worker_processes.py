"""The worker processes of a contender during a measure, and the ledger that they write."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import processes, waits
from benchmarks.child import Child, ChildFailed
from benchmarks.contender import Contender
from benchmarks.ledger import Ledger

STALLED_S = 20.0
_POLL_S = 0.005


class Workers:
    """Running worker processes."""

    def __init__(self, children: list[Child], ledger: Ledger) -> None:
        self._children = children
        self.ledger = ledger

    def cpu_seconds(self) -> float | None:
        return processes.cpu_seconds(child.pid for child in self._children)

    def memory_mb(self) -> float | None:
        return processes.memory_mb(child.pid for child in self._children)

    def wait_for_entries(self, wanted: int, poll_s: float = _POLL_S) -> bool:
        """True when the ledger has `wanted` entries, False after a stall. Raises ChildFailed when a process ended."""
        seen, since = 0, time.monotonic()
        while (entries := len(self.ledger)) < wanted:
            for child in self._children:
                child.check_alive()
            if entries > seen:
                seen, since = entries, time.monotonic()
            if time.monotonic() - since > STALLED_S:
                return False
            time.sleep(poll_s)
        return True

    def must_run(self, wanted: int) -> None:
        """Returns when the ledger has `wanted` entries. Raises ChildFailed when they do not come."""
        if not self.wait_for_entries(wanted):
            words = " / ".join(child.words() for child in self._children)
            raise ChildFailed(f"the worker did not run its tasks within {STALLED_S:g} s: {words}")


@contextmanager
def running_workers(
    contender: Contender, environment: Mapping[str, str], *, capacity: int, task: str = "noop", count: int = 1
) -> Iterator[Workers]:
    """Starts `count` worker processes of a contender. They end with the block, after which the ledger is complete."""
    with TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        ledger = Ledger(folder / "ledger", capacity)
        variables = {**environment, **ledger.environment, waits.VARIABLE: task}
        commands = contender.work(task, count)
        with ExitStack() as running:
            children = [Child(command, variables, folder / f"log{number}") for number, command in enumerate(commands)]
            yield Workers([running.enter_context(child) for child in children], ledger)
        ledger.scan()


def wait_until(fact: Callable[[], bool]) -> None:
    """Returns when `fact` is true, or after STALLED_S: the caller's check then finds the error."""
    deadline = time.monotonic() + STALLED_S
    while not fact() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
