"""Several servers that belong together, from the program that the other tests run: behind Sentinel, and a cluster.

All listen on loopback at ports that were free, and end with the process that started them, however that ends.
"""

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.server import UNTIL_END_OF_INPUT, server_binary
from tests.support.waiting import wait_for

MASTER = "m"
SLOTS = 16384
_ports = itertools.count(20_000 + os.getpid() * 37 % 20_000)


class Node:
    """One server process with a port; `kill` and `start` keep its port and its files."""

    def __init__(self, folder: Path, *words: str, sentinel: bool = False, **options: str) -> None:
        self.port = free_port()
        self.folder = folder / str(self.port)
        self.folder.mkdir(parents=True)
        self._words = list(words)
        self._sentinel = sentinel
        self._options = {
            "port": str(self.port), "bind": "127.0.0.1", "loglevel": "notice", "dir": str(self.folder),
            **({} if sentinel else {"save": "", "appendonly": "no", "protected-mode": "no"}), **options,
        }  # fmt: skip

    def start(self) -> "Node":
        """Returns when it answers."""
        options = [word for name, value in self._options.items() for word in (f"--{name}", value)]
        kind = ["--sentinel"] if self._sentinel else []
        command = [str(server_binary()), *self._words, *kind, *options]
        self._process = subprocess.Popen(
            ["sh", "-c", UNTIL_END_OF_INPUT, str(self.folder.parent), *command], start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(self.folder / "log").open("ab"), text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        wait_for(self.answers, timeout_s=20)
        return self

    def answers(self) -> bool:
        """Whether it can be asked."""
        with suppress(redis.exceptions.ConnectionError, redis.exceptions.TimeoutError), self.connect() as connection:
            return bool(connection.ping())
        return False

    def connect(self) -> redis.Redis:
        """A plain client that tries everything once."""
        return redis.Redis(port=self.port, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=20)

    def ask(self, *words: Any) -> Any:
        """The reply to one command, as it is on the wire."""
        connection = redis.Connection(port=self.port, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=20)
        try:
            connection.connect()
            connection.send_command(*words)
            return connection.read_response()
        finally:
            connection.disconnect()

    def role(self) -> str:
        """master or slave; empty while it hangs up, as it does when it is demoted."""
        with suppress(redis.exceptions.ConnectionError):
            return str(self.ask("ROLE")[0].decode())
        return ""

    def stop_still(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self._process.communicate("keep\n")


class Behind:
    """A primary, replicas, and sentinels that watch over them."""

    def __init__(self, *, replicas: int = 1, sentinels: int = 3, down_after_ms: int = 1000, **options: str) -> None:
        self._quorum = sentinels // 2 + 1
        self.folder = Path(tempfile.mkdtemp(prefix="jr-", dir="/tmp"))
        self.servers = [Node(self.folder, **options).start() for _ in range(replicas + 1)]
        for one in self.servers[1:]:
            one.ask("REPLICAOF", "127.0.0.1", self.servers[0].port)
        wait_for(lambda: self._in_sync(replicas), timeout_s=30)
        self.sentinels = [self._sentinel(down_after_ms).start() for _ in range(sentinels)]
        wait_for(lambda: all(self._is_complete(one, replicas) for one in self.sentinels), timeout_s=30)
        self.url = f"redis+sentinel://{','.join(f'127.0.0.1:{one.port}' for one in self.sentinels)}/{MASTER}"

    def primary(self) -> Node:
        """The server that the sentinels name."""
        said = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        return next(one for one in self.servers if one.port == int(said[1]))

    def fail_over(self, old: Node, timeout_s: float = 60) -> Node:
        """Waits until another server than `old` takes writes, and returns it."""
        return wait_for(  # type: ignore[no-any-return]
            lambda: next((one for one in (self.primary(),) if one is not old and one.role() == "master"), None),
            timeout_s=timeout_s,
        )

    def wait_replicated(self, timeout_s: float = 60) -> None:
        """Returns when every other server follows the primary, and has what was written until now."""
        wait_for(lambda: self._in_sync(len(self.servers) - 1), timeout_s=timeout_s)

    def cut_replicas_off(self) -> None:
        """From now on the primary replicates nothing, as if the line to its replicas were broken."""
        primary = self.primary()
        primary.ask("ACL", "SETUSER", "default", "-psync", "-sync")
        primary.ask("CLIENT", "KILL", "TYPE", "replica")

    def remove(self) -> None:
        """Ends them all."""
        for one in (*self.sentinels, *self.servers):
            one.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _in_sync(self, replicas: int) -> bool:
        first = self.primary() if hasattr(self, "sentinels") else self.servers[0]
        said = first.ask("INFO", "replication").decode()
        if said.count("state=online") != replicas:
            return False
        others = (one.ask("INFO", "replication").decode() for one in self.servers if one is not first)
        return all(_offset(other) >= _offset(said) for other in others)

    def _sentinel(self, down_after_ms: int) -> Node:
        settings = self.folder / f"sentinel{next(_ports)}.conf"
        settings.write_text(
            f"sentinel monitor {MASTER} 127.0.0.1 {self.servers[0].port} {self._quorum}\n"
            f"sentinel down-after-milliseconds {MASTER} {down_after_ms}\n"
            f"sentinel failover-timeout {MASTER} 6000\n"
        )
        return Node(self.folder, str(settings), sentinel=True)

    def _is_complete(self, sentinel: Node, replicas: int) -> bool:
        words = sentinel.ask("SENTINEL", "MASTER", MASTER)
        said = dict(zip(words[::2], words[1::2], strict=True))
        found = int(said[b"num-slaves"]), int(said[b"num-other-sentinels"])
        return found == (replicas, len(self.sentinels) - 1)


class Spread:
    """A cluster of three primaries that share the slots, with a replica each when wanted."""

    def __init__(self, *, replicas: bool = False, node_timeout_ms: int = 2000, **options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jr-", dir="/tmp"))
        wanted = {"cluster-enabled": "yes", "cluster-node-timeout": str(node_timeout_ms), **options}
        self.nodes = [Node(self.folder, **wanted).start() for _ in range(6 if replicas else 3)]
        bounds = [SLOTS * n // 3 for n in range(4)]
        for one, first, end in zip(self.nodes, bounds, bounds[1:], strict=False):
            one.ask("CLUSTER", "ADDSLOTS", *range(first, end))  # ADDSLOTSRANGE is of Redis 7
        for number, one in enumerate(self.nodes):
            one.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for one in self.nodes[1:]:
            one.ask("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        wait_for(lambda: all(len(self._known(one)) == len(self.nodes) for one in self.nodes), timeout_s=30)
        for one, primary in zip(self.nodes[3:], self.nodes, strict=False):
            one.ask("CLUSTER", "REPLICATE", self.id_of(primary))
        self.wait_well()
        self.url = f"redis+cluster://{','.join(f'127.0.0.1:{one.port}' for one in self.nodes[:3])}"

    def wait_well(self, nodes: list[Node] | None = None) -> None:
        """Returns when these nodes, all by default, know the owner of every slot, and replicas follow."""
        asked = self.nodes if nodes is None else nodes
        wait_for(lambda: all(self._is_well(one) for one in asked), timeout_s=60)

    def id_of(self, node: Node) -> str:
        """The name of a node in the cluster."""
        return str(node.ask("CLUSTER", "MYID").decode())

    def owner(self, slot: int) -> Node:
        """The node that serves a slot, as a node that lives says."""
        asked = next(one for one in self.nodes if one.answers())
        for first, last, (_, port, *_), *_ in asked.ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(one for one in self.nodes if one.port == port)
        raise AssertionError(f"no node serves slot {slot}")

    def move(self, slot: int, target: Node, *, at_once: int = 10) -> None:
        """Moves a slot key by key while it is in use, as `redis-cli --cluster reshard` does."""
        source = self.owner(slot)
        source_id, target_id = self.id_of(source), self.id_of(target)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, at_once):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *keys)
        for one in (target, source, *(node for node in self.primaries() if node not in (source, target))):
            one.ask("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def primaries(self) -> list[Node]:
        """The nodes that serve slots."""
        return [one for one in self.nodes if one.answers() and one.role() == "master"]

    def replica_of(self, primary: Node) -> Node:
        """The node that follows a primary."""
        wanted = self.id_of(primary)
        told = self.nodes[0].ask("CLUSTER", "NODES").decode().splitlines()
        port = next(int(line.split()[1].split("@")[0].split(":")[1]) for line in told if line.split()[3] == wanted)
        return next(one for one in self.nodes if one.port == port)

    def remove(self) -> None:
        """Ends them all."""
        for one in self.nodes:
            one.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _known(self, node: Node) -> list[str]:
        lines = node.ask("CLUSTER", "NODES").decode().splitlines()
        return [line for line in lines if "handshake" not in line]

    def _is_well(self, node: Node) -> bool:
        told = node.ask("CLUSTER", "INFO").decode()
        if "cluster_state:ok" not in told or f"cluster_slots_ok:{SLOTS}" not in told:
            return False
        return node.role() == "master" or "master_link_status:up" in node.ask("INFO", "replication").decode()


def _offset(replication: str) -> int:
    """How far a server is in what is replicated, by its INFO."""
    found = re.search(r"^(?:slave_repl_offset|master_repl_offset):(\d+)", replication, re.MULTILINE)
    assert found is not None
    return int(found[1])


def free_port() -> int:
    """A free port of loopback whose number plus 10 000 (the cluster bus) is free, too."""
    while True:
        port = 20_000 + next(_ports) % 20_000
        if _is_free(port) and _is_free(port + 10_000):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
