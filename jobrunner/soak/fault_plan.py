"""Which faults strike when: drawn from a seed, so that the same seed gives the same plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from jobrunner.errors import InvalidOption

KINDS = {
    "kills": "kill -9 of a worker, or of the process that moves items by hand",
    "stops": "SIGSTOP of a worker for longer than its leases, then SIGCONT",
    "terms": "SIGTERM of a worker, and a new one in its place",
    "cuts": "all connections through the proxy break",
    "silences": "the proxy passes nothing on, for up to twice a lease",
    "replies": "replies are lost on their way: the command was applied, the caller is not told",
    "producers": "kill -9 of the process that enqueues",
    "bursts": "five seconds' worth of tasks at once",
    "restarts": "kill -9 of the server, which starts again from its append-only file",
    "scripts": "SCRIPT FLUSH",
}
"""Every kind of fault, and what it does."""
OF_PROXY = frozenset(("cuts", "silences", "replies"))
OF_SERVER = frozenset(("restarts", "scripts"))
"""What strikes everybody who uses the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: seconds after the beginning, its kind, and two numbers in [0, 1): who is struck, and how hard."""

    at_s: float
    kind: str
    whom: float
    size: float


def faults_of(seed: int, kinds: Sequence[str], *, every_s: float, length_s: float) -> list[Fault]:
    """The faults of a run in order, on average one in `every_s`, at moments of a Poisson process."""
    draw = Random(seed)
    found: list[Fault] = []
    at_s = draw.expovariate(1 / every_s)
    while at_s < length_s and kinds:
        found.append(Fault(at_s=round(at_s, 3), kind=draw.choice(kinds), whom=draw.random(), size=draw.random()))
        at_s += draw.expovariate(1 / every_s)
    return found


def kinds_of(words: str | None, *, is_own_server: bool, has_proxy: bool) -> list[str]:
    """The kinds asked for (`kills,cuts`), in the order of KINDS; None: all that do no harm to others.

    Raises InvalidOption for what is no kind, or cannot be done to this server.
    """
    if words is None:
        allowed = set(KINDS) - (set() if is_own_server else OF_SERVER) - (set() if has_proxy else OF_PROXY)
        return [kind for kind in KINDS if kind in allowed]
    asked = {word.strip() for word in words.split(",")} - {""}
    if unknown := sorted(asked - set(KINDS)):
        raise InvalidOption(f"faults {', '.join(unknown)}: choose of {', '.join(KINDS)}")
    if "restarts" in asked and not is_own_server:
        raise InvalidOption("faults restarts: the server at --url is not ours to kill; leave out --url, or restarts")
    if asked & OF_PROXY and not has_proxy:
        told = ", ".join(sorted(asked & OF_PROXY))
        raise InvalidOption(f"faults {told}: the proxy leads to redis:// and unix:// only; leave them out")
    return [kind for kind in KINDS if kind in asked]
