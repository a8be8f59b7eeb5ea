"""One side of a pair: a process that does what pairs.py tells it, with the jobrunner of the checkout on its path.

`benchmarks/pairs_side.py URL PREFIX`. Each line of its input is `MEASURE COUNT`, with 0 to prepare it; it answers with
a line `= ...`: the seconds and the CPU seconds that this took. `work` makes it a worker that answers with the
nanoseconds from each call of enqueue to the begin of the task. Only what all versions have in common is used.
"""

import signal
import sys
import time
from inspect import signature

from jobrunner import Client, Item, Job, Worker, job
from jobrunner.client.current import within

_PARTITION = "partition" if "partition" in signature(Item).parameters else "key"
"""The other checkout may be of a version that calls it `key`."""
_KEYS = 100
_MANY = 1000


@job(queue="pairs")
class Noop(Job):
    """Does nothing."""

    n: int

    def run(self) -> None: ...


@job(queue="pairs")
class Stamp(Job):
    """Says how long it took from the call of enqueue to here."""

    n: int

    def run(self) -> None:
        sys.stdout.write(f"= {time.monotonic_ns() - self.n}\n")  # one write: the log of the worker goes there, too
        sys.stdout.flush()


class Measures:
    """The measures, one method each."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._plain, self._fair = client.queue("plain"), client.queue("fair")

    def prepare(self, name: str) -> None:
        """Nothing of this is measured."""
        if name == "drain":
            for _ in range(20):
                Noop.enqueue_many([Noop(n=number) for number in range(_MANY)])
            return
        self._fair.configure(fair=True)
        for queue in (self._plain, self._fair):
            queue.push(0)
        Noop(n=0).enqueue()

    def enqueue(self, count: int) -> None:
        for number in range(count):
            Noop(n=number).enqueue()

    def enqueue_many(self, count: int) -> None:
        Noop.enqueue_many([Noop(n=number) for number in range(count)])

    def push(self, count: int) -> None:
        for number in range(count):
            self._plain.push({"n": number})

    def push_keyed(self, count: int) -> None:
        for number in range(count):
            self._fair.push({"n": number}, **{_PARTITION: f"k{number % _KEYS}"})

    def push_many(self, count: int) -> None:
        for _ in range(count // _MANY):
            self._plain.push_many([{"n": number} for number in range(_MANY)])

    def push_many_keyed(self, count: int) -> None:
        for _ in range(count // _MANY):
            self._fair.push_many([Item({"n": number}, **{_PARTITION: f"k{number % _KEYS}"}) for number in range(_MANY)])

    def keyed_drain(self, count: int) -> None:
        self.push_many_keyed(count)
        while leases := self._fair.reserve(100):
            self._fair.commit_many(leases)

    def drain(self, _count: int) -> None:
        Worker(queues=["pairs"], concurrency=10, executor="threads", client=self._client).run(burst=True)

    def stamp(self, _count: int) -> None:
        Stamp(n=time.monotonic_ns()).enqueue()


def main() -> None:
    """Reads commands from stdin and runs them."""
    client = Client(*sys.argv[1:])
    with client, within(client):
        measures = Measures(client)
        for line in sys.stdin:
            name, _, count = line.strip().rpartition(" ")
            if name == "work":
                worker = Worker(queues=["pairs"], concurrency=10, executor="threads", client=client)
                signal.signal(signal.SIGTERM, lambda *_, worker=worker: worker.ask_to_stop())
                print("= ready", flush=True)
                worker.run()
                return
            if int(count) == 0:
                measures.prepare(name)
            clock, spent = time.perf_counter(), time.process_time()
            if int(count):
                getattr(measures, name)(int(count))
            print("=", time.perf_counter() - clock, time.process_time() - spent, flush=True)


if __name__ == "__main__":
    main()
