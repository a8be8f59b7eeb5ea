"""Two drivers of one queue, and two faults at a time, while more items wait than a batch holds: R41."""

import itertools
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import redis

from jobrunner import Client, Item
from jobrunner.broker.keys import Keys
from tests.acceptance.fleet import ROOT
from tests.reliability.driver import BAD, LEASE_S, MISFIT, written
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import PREFIX, Stage
from tests.support.queue_audit import census, problems, strays
from tests.support.waiting import wait_for
from tests.topologies.servers import Behind

FAULTS = ("bad", "misfit", "kill", "lease", "restart", "failover")
"""A record that raises; a record that does not fit the schema; kill -9 of a driver; SIGSTOP for longer than a lease;
kill -9 of the server; kill -9 of the primary, whose replica takes over without the last writes."""
_PAIRS = [f"{one}+{other}" for one, other in itertools.combinations(FAULTS, 2)]
_SAVED = {"appendonly": "yes", "appendfsync": "always"}
_RECORDS = 3
_WORK_S = 0.05
"""Shortest run of a batch, so that faults hit running batches."""
_LASTS_S = 2.0
"""Shortest run of all batches together, so that both faults of a pair happen."""
_UNREPLICATED_S = 0.3
"""Seconds of the primary's last writes that the new primary lacks."""


class _Alone:
    """The stage's server. Its append-only file keeps what it acknowledged.

    `durability` is what its clients ask for; `every_s` is the pause between two faults, in which batches succeed.
    """

    durability, every_s = "none", 0.7

    def __init__(self, stage: Stage) -> None:
        self._server = stage.server
        self.url = stage.server.url

    def connect(self) -> redis.Redis:
        return self._server.connect()

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def remove(self) -> None:
        """It ends with the stage."""


class _Replicated:
    """A primary behind Sentinel with one replica. A failover keeps what the replica confirmed."""

    durability, every_s = "replicated", 2.0

    def __init__(self) -> None:
        fast = {"repl-diskless-sync-delay": "0"}  # by default 5 s pass before a replica that comes back gets anything
        self._behind = Behind(sentinels=1, **_SAVED, **fast)
        self.url = self._behind.url

    def connect(self) -> redis.Redis:
        return self._behind.primary().connect()

    def restart(self) -> None:
        primary = self._behind.primary()
        primary.kill()
        primary.start()
        self._wait_confirming()

    def fail_over(self) -> None:
        """Freezes and disconnects the replica while the primary goes on, and makes it take over without the writes that
        the primary acknowledged meanwhile. The old primary comes back as its replica."""
        old = self._behind.primary()
        (replica,) = (one for one in self._behind.servers if one is not old)
        replica.stop_still()
        old.ask("CLIENT", "KILL", "TYPE", "replica")  # else the network hands on what was sent when it goes on
        time.sleep(_UNREPLICATED_S)  # the fault: the primary alone acknowledges writes
        old.kill()
        replica.go_on()
        new = self._behind.fail_over(old)
        old.start()
        old.ask("REPLICAOF", "127.0.0.1", new.port)  # Sentinel would do it after 15 s, and nothing is confirmed before
        self._wait_confirming()

    def remove(self) -> None:
        self._behind.remove()

    def _wait_confirming(self) -> None:
        """A replica that has just come counts as online up to a second before it confirms anything."""
        self._behind.wait_replicated()
        with closing(self.connect()) as raw:
            raw.ping()
            wait_for(lambda: raw.wait(1, 1000))


_Servers = _Alone | _Replicated


@scenario(
    "R41",
    short={"items": 2000, "batch": 50, "drivers": 2, "pairs": "bad+kill lease+failover"},
    full={"items": 20_000, "batch": 1000, "drivers": 2, "pairs": " ".join(_PAIRS)},
    server=_SAVED,
)
def drivers_and_faults(stage: Stage, findings: Findings, items: int, batch: int, drivers: int, pairs: str) -> None:
    """Two faults at once hit two drivers of one queue: bad records, misfits, kill -9, lost leases, restarts, failovers.

    Every item ends once, in the right place: good items in the sink and in the next queue, the others dead. Nothing is
    left over, neither in pending nor of any batch. With failovers of the primary, durability is "replicated".
    """
    for pair in pairs.split():
        servers = _Replicated() if "failover" in pair.split("+") else _Alone(stage)
        try:
            _play(stage, findings, pair, servers, items, batch, drivers)
        finally:
            servers.remove()
        stage.say(f"{pair} played")


class _Fleet:
    """Drivers of one queue, and the faults that hit them."""

    def __init__(self, stage: Stage, servers: _Servers, queue: str, folder: Path, *sizes: float) -> None:
        self._servers = servers
        self._words = [servers.url, PREFIX, queue, folder, *sizes, servers.durability]
        self._log = stage.folder / "drivers.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        words = [sys.executable, "-m", "tests.reliability.driver", *self._words]
        with self._log.open("ab") as log:
            self._processes.append(subprocess.Popen([str(word) for word in words], cwd=ROOT, stdout=log, stderr=log))

    def strike(self, kind: str, rng: random.Random) -> None:
        victim = rng.choice(self._processes)
        if kind == "kill":
            self._end(victim)
            self.start()
        elif kind == "lease":
            victim.send_signal(signal.SIGSTOP)
            time.sleep(1.5 * LEASE_S)  # the fault: a driver that is frozen beyond its lease
            victim.send_signal(signal.SIGCONT)
        elif kind == "restart":
            self._servers.restart()
        elif kind == "failover":
            assert isinstance(self._servers, _Replicated)
            self._servers.fail_over()

    def close(self) -> None:
        for process in list(self._processes):
            self._end(process)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        process.wait()
        self._processes.remove(process)


def _play(
    stage: Stage, findings: Findings, pair: str, servers: _Servers, items: int, batch: int, drivers: int
) -> None:  # fmt: skip
    faults, source = pair.split("+"), f"{pair.replace('+', '-')}/in"
    folder = stage.folder / pair
    folder.mkdir()
    rng = random.Random(pair)
    payloads: list[object] = list(range(items))
    for kind in (BAD, MISFIT):
        for place in rng.sample(range(items), _RECORDS) if kind in faults else ():
            payloads[place] = kind
    from_outside = [one for one in faults if one not in (BAD, MISFIT)]
    kinds, done = itertools.cycle(from_outside[::-1] or ["nothing"]), Counter[str]()
    fleet = _Fleet(stage, servers, source, folder, batch, max(_WORK_S, _LASTS_S * drivers * batch / items))
    with Client(servers.url, PREFIX, retry_timeout=60, durability=servers.durability) as client, closing(fleet):
        ids = _push(client, source, payloads)
        for _ in range(drivers):
            fleet.start()
        ends = time.monotonic() + stage.give_up_s + items / 50
        while _is_open(client, source) and time.monotonic() < ends:
            time.sleep(servers.every_s)
            kind = next(kinds)
            fleet.strike(kind, rng)
            done[kind] += 1
    _judge(servers, findings, pair, ids, folder)
    for kind in from_outside:
        findings.at_least(f"{pair}: times of {kind}", done[kind], 1)


def _push(client: Client, source: str, payloads: list[object]) -> dict[str, object]:
    """The payload of each item by its id. A bad one may be tried once."""
    queue = client.queue(source)
    queue.configure(max_attempts=1000)  # of deaths: what kills drivers here is no item
    items = [Item(BAD, max_attempts=1) if payload == BAD else payload for payload in payloads]
    return dict(zip(queue.push_many(items), payloads, strict=True))


def _is_open(client: Client, queue: str) -> bool:
    counts = client.queue(queue).counts()
    return any(counts[state] for state in ("waiting", "scheduled", "pending"))


def _judge(servers: _Servers, findings: Findings, pair: str, ids: dict[str, object], folder: Path) -> None:
    source, target = (Keys(PREFIX).queue(f"{pair.replace('+', '-')}/{name}") for name in ("in", "out"))
    good = {one for one, payload in ids.items() if payload not in (BAD, MISFIT)}
    in_sink = Counter(written(folder))
    with closing(servers.connect()) as raw:
        sets, moved = census(raw, source), set(census(raw, target)["waiting"])
        left = [key for key in raw.scan_iter(match=source.batch + b"*", count=1000) if raw.pttl(key) == -1]
        wrong, odd = problems(raw, source), [one for one in strays(raw, source) if ":out:" not in one]
    findings.equals(f"{pair}: items in the sink more than once", sum(times > 1 for times in in_sink.values()), 0)
    findings.equals(f"{pair}: items missing in the sink, or too many", len(good ^ set(in_sink)), 0)
    findings.equals(f"{pair}: dead that should not be, or are not", len(set(sets["dead"]) ^ (set(ids) - good)), 0)
    findings.equals(f"{pair}: items missing in the next queue, or too many", len(moved ^ good), 0)
    findings.equals(f"{pair}: still there", sum(len(sets[one]) for one in ("waiting", "scheduled", "pending")), 0)
    findings.equals(f"{pair}: keys of batches left over", len(left), 0)
    findings.equals(f"{pair}: problems of the books", wrong, [])
    findings.equals(f"{pair}: keys that should not be", odd, [])


ROWS = (drivers_and_faults,)
