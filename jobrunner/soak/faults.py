"""Faults of a soak: the plan, drawn from a seed, and their injection."""

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from jobrunner.broker.call import command
from jobrunner.client.client import Client, broker_of
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption, JobrunnerError, ServerError
from jobrunner.soak.fault_proxy import FaultProxy
from jobrunner.soak.ledger import Excuses
from jobrunner.soak.processes import OwnServer, SoakProcess, SoakProcesses

KINDS = {
    "kills": "kill -9 of a worker, or of the process that moves items by hand",
    "stops": "SIGSTOP of a worker for longer than its leases, then SIGCONT",
    "terms": "SIGTERM of a worker, and a new one in its place",
    "cuts": "all connections through the proxy break",
    "silences": "the proxy passes nothing on, for up to twice a lease",
    "replies": "replies are lost on their way: the command was applied, and its caller gets an error",
    "producers": "kill -9 of the process that enqueues",
    "bursts": "five seconds' worth of tasks at once",
    "restarts": "kill -9 of the server, which starts again from its append-only file",
    "scripts": "SCRIPT FLUSH",
}
"""Every kind of fault with its description."""
OF_PROXY = frozenset(("cuts", "silences", "replies"))
OF_SERVER = frozenset(("restarts", "scripts"))
"""Kinds that affect every user of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A planned fault: its time in seconds after the beginning, its kind, and two numbers in [0, 1) that choose the
    victim and the size."""

    at_s: float
    kind: str
    whom: float
    size: float


def faults_of(seed: int, kinds: Sequence[str], *, every_s: float, length_s: float) -> list[Fault]:
    """The faults of a run in order, on average one in `every_s`, at moments of a Poisson process."""
    if not kinds:
        return []
    draw = Random(seed)
    found: list[Fault] = []
    at_s = draw.expovariate(1 / every_s)
    while at_s < length_s:
        found.append(Fault(at_s=round(at_s, 3), kind=draw.choice(kinds), whom=draw.random(), size=draw.random()))
        at_s += draw.expovariate(1 / every_s)
    return found


def kinds_of(words: str | None, *, is_own_server: bool, has_proxy: bool) -> list[str]:
    """The requested kinds (`kills,cuts`) in the order of KINDS; None: all kinds that affect no other users.

    Raises InvalidOption for an unknown kind, and for one that this server does not allow.
    """
    if words is None:
        allowed = set(KINDS) - (set() if is_own_server else OF_SERVER) - (set() if has_proxy else OF_PROXY)
        return [kind for kind in KINDS if kind in allowed]
    asked = {word.strip() for word in words.split(",")} - {""}
    if unknown := sorted(asked - set(KINDS)):
        raise InvalidOption(f"unknown faults {', '.join(unknown)}: choose from {', '.join(KINDS)}")
    if "restarts" in asked and not is_own_server:
        raise InvalidOption("faults restarts: only a private server is killed, not --url; leave out --url, or restarts")
    if asked & OF_PROXY and not has_proxy:
        unwanted = ", ".join(sorted(asked & OF_PROXY))
        raise InvalidOption(f"faults {unwanted}: the proxy leads to redis:// and unix:// only; leave them out")
    return [kind for kind in KINDS if kind in asked]


_RENEWED_AT = 1 / 3
"""Share of a lease after which it is renewed, so only the rest may be left when a fault begins."""
_BACK_S = 2.0
"""Seconds until all processes are connected again after a fault."""
_LONGEST_AWAY_S = 1.0
_MOST_REPLIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """A fault that was injected: seconds after the beginning, its kind, and a description."""

    at_s: float
    kind: str
    told: str


class FaultInjector:
    """Injects one fault after the other. A fault that lasts (a silence, a suspended worker) is ended by `look`, which
    must be called periodically, or by `end_all`."""

    def __init__(
        self, client: Client, processes: SoakProcesses, excuses: Excuses, *, keepalive_s: float,
        cable: FaultProxy | None, server: OwnServer | None,
    ) -> None:  # fmt: skip
        self.done: list[InjectedFault] = []
        self.counts: Counter[str] = Counter()
        self._client = client
        self._processes = processes
        self._excuses = excuses
        self._keepalive_s = keepalive_s
        self._cable = cable
        self._server = server
        self.began = monotonic()
        self._ends: list[tuple[float, Callable[[], None]]] = []
        self._silent_until = 0.0

    def inject(self, fault: Fault) -> None:
        """Injects a fault and records it; does nothing when there is no process to inject it into."""
        try:
            told = getattr(self, f"_{fault.kind}")(fault)
        except JobrunnerError as error:  # the server did not restart
            self._processes.lost.append(f"{fault.kind}: {error}")
            told = "failed"
        if told:
            self.counts[fault.kind] += 1
            self.done.append(InjectedFault(at_s=round(monotonic() - self.began, 2), kind=fault.kind, told=told))

    def look(self) -> None:
        """Ends faults whose time is over."""
        now = monotonic()
        for ends_at, end in [one for one in self._ends if one[0] <= now]:
            end()
            self._ends.remove((ends_at, end))

    def end_all(self) -> None:
        """Ends all faults that still last."""
        for _, end in self._ends:
            end()
        self._ends.clear()

    def _kills(self, fault: Fault) -> str:
        victim = self._victim(fault, "worker", "manual_consumer")
        if victim is None:
            return ""
        victim.send(signal.SIGKILL)
        victim.process.wait()
        self._excuses.add([victim.pid], monotonic(), monotonic())
        heir = self._processes.replace(victim)
        return f"{victim.name} killed, {heir.name} started"

    def _producers(self, fault: Fault) -> str:
        victim = self._victim(fault, "producer")
        if victim is None:
            return ""
        victim.send(signal.SIGKILL)
        victim.process.wait()
        self._processes.replace(victim)
        return f"{victim.name} killed"

    def _stops(self, fault: Fault) -> str:
        victim = self._victim(fault, "worker")
        if victim is None:
            return ""
        length_s = self._keepalive_s * (1.2 + fault.size)
        self._excuses.add([victim.pid], monotonic(), monotonic() + length_s + _BACK_S)
        victim.is_stopped = True
        victim.send(signal.SIGSTOP)

        def go_on() -> None:
            victim.send(signal.SIGCONT)
            victim.is_stopped = False

        self._ends.append((monotonic() + length_s, go_on))
        return f"{victim.name} suspended for {length_s:.1f} s"

    def _terms(self, fault: Fault) -> str:
        victim = self._victim(fault, "worker")
        if victim is None:
            return ""
        victim.leaves_since = monotonic()
        victim.send(signal.SIGTERM)
        self._processes.start(victim.role, proxied=victim.proxied)
        return f"{victim.name} asked to end"

    def _bursts(self, _: Fault) -> str:
        producers = self._processes.of("producer")
        for producer in producers:
            producer.send(signal.SIGUSR1)
        return ", ".join(f"{one.name} asked for more" for one in producers)

    def _cuts(self, _: Fault) -> str:
        if self._cable is None:
            return ""
        self._cable.drop()
        return "all connections through the proxy"

    def _replies(self, fault: Fault) -> str:
        if self._cable is None:
            return ""
        count = 1 + int(fault.size * _MOST_REPLIES)
        self._cable.replies_to_lose = count
        return f"the next {count}"

    def _silences(self, fault: Fault) -> str:
        if self._cable is None or monotonic() < self._silent_until:
            return ""
        length_s = 0.5 + fault.size * 2 * self._keepalive_s
        now = monotonic()
        self._silent_until = now + length_s
        self._processes.note_outage("proxied", self._silent_until)
        if self._may_cost_leases(length_s):
            proxied = [one.pid for one in self._processes.members if one.proxied]
            self._excuses.add(proxied, now, now + length_s + _BACK_S)
        cable = self._cable
        cable.silence(True)
        self._ends.append((now + length_s, lambda: cable.silence(False)))
        return f"{length_s:.1f} s"

    def _restarts(self, fault: Fault) -> str:
        if self._server is None:
            return ""
        began, back = self._server.kill(fault.size * _LONGEST_AWAY_S)
        self._processes.note_outage("all", back)
        if self._may_cost_leases(back - began):
            self._excuses.add(None, began, back + _BACK_S)
        return f"away for {back - began:.2f} s"

    def _scripts(self, _: Fault) -> str:
        try:
            broker_of(self._client).run(command("SCRIPT", "FLUSH", read=bool))
        except ServerError:
            return ""
        return "flushed"

    def _may_cost_leases(self, length_s: float) -> bool:
        return length_s + _BACK_S >= (1 - _RENEWED_AT) * self._keepalive_s

    def _victim(self, fault: Fault, *roles: str) -> SoakProcess | None:
        there = self._processes.of(*roles)
        return there[int(fault.whom * len(there))] if there else None
