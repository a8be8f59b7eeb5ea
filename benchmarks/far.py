"""jobrunner and the peers side by side on a server that is near, and one that is 2 ms away.

    python -m benchmarks.far                                        # about ten minutes a round
    python -m benchmarks.far --only jobrunner,huey,blitzq --measures drain --rtt 1,4 --rounds 5
    python -m benchmarks.far --through-proxy                        # the near server behind a proxy without delay, too

A proxy in a process of its own delays each direction by half a round trip (`delay_proxy.py`). Each contender drains
no-op tasks, enqueues one by one, and enqueues by 16 callers of one client at a time: threads where its client blocks,
coroutines where it is one of asyncio. Each delivery is verified. The ratios matter: to the near server, and of
jobrunner to each peer on the farthest one. jobrunner's client is that of the peer's kind.
"""

import argparse
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.child import ChildFailed, run_to_end
from benchmarks.contender import Contender
from benchmarks.contenders import jobrunner, jobrunner_asyncio
from benchmarks.distance import delayed
from benchmarks.drain import NotDelivered, check_arrived, drain_filled, fill
from benchmarks.measures import OUR_ASYNCIO, OURS, PEERS, at_least
from benchmarks.peers.roster import ROSTER
from benchmarks.peers.venvs import DEFAULT_FOLDER, NotInstalled
from benchmarks.results import Summary, Table, write_json
from benchmarks.server import PrivateServer

WIDTH = 16
TARGET = at_least(0.85)
"""Of jobrunner's drain on the far server, divided by that on the near one."""
_NEAR = "near"
_SLOW_SHARE = 0.1
_FAR_PART = 0.25
"""Of the tasks of a peer with a smaller share than that, in a drain on a far server: it needs round trips for each."""
_LEAST = 500
_ENQUEUED = 0.02
"""Of --tasks, one by one: a caller that waits for each answer sends some hundred a second at best."""

Key = tuple[str, str, str]
"""Contender, measure and way to the server."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the server: its name, and the port of the proxy, or None where there is none."""

    name: str
    port: int | None = None

    def environment(self, contender: Contender, server: PrivateServer) -> Mapping[str, str]:
        """The contender's, with the server where this way leads."""
        return contender.environment(server if self.port is None else server.seen_through(self.port))


@dataclass(slots=True)
class Found:
    """Tasks a second of all rounds, and why there are none."""

    rates: dict[Key, list[float]] = field(default_factory=dict)
    void: dict[Key, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    def take(self, key: Key, measured: Callable[[], float]) -> None:
        """Notes a figure. An error of the contender voids those of all rounds, and it is not measured again."""
        if key in self.void:
            return
        try:
            self.rates.setdefault(key, []).append(measured())
        except (NotDelivered, ChildFailed) as failed:
            self.void[key] = str(failed)

    def summary(self, who: str, measure: str, way: str) -> Summary | None:
        """None where there is no valid figure."""
        key = (who, measure, way)
        return Summary.of(self.rates[key]) if key in self.rates and key not in self.void else None


def drained(server: PrivateServer, contender: Contender, way: Way, tasks: int) -> float:
    """Tasks a second of one worker; they are enqueued on the near way. Raises as `benchmarks.drain.drain`."""
    count = contender.tasks(tasks)
    if way.name != _NEAR and contender.share < _SLOW_SHARE:
        count = max(int(count * _FAR_PART), _LEAST)
    fill(server, contender, count)
    done = drain_filled(server, contender, count, way.environment(contender, server))
    return done.tasks / done.seconds


def enqueued(server: PrivateServer, contender: Contender, way: Way, tasks: int, width: int = 1) -> float:
    """Tasks a second of one client with `width` callers. Raises as `benchmarks.drain.drain`."""
    server.clear()
    count = max(int(tasks * _ENQUEUED), _LEAST) * (4 if width > 1 else 1)
    words = ["one", "noop", str(count)] if width == 1 else ["wide", "noop", str(count), str(width)]
    seconds = float(run_to_end([*contender.produce, *words], way.environment(contender, server)))
    check_arrived(server, contender, count)
    return count / seconds


MEASURES: dict[str, Callable[[PrivateServer, Contender, Way, int], float]] = {
    "drain": drained,
    "enqueue": enqueued,
    "wide": partial(enqueued, width=WIDTH),
}
TITLES = {
    "drain": "drain, tasks/s",
    "enqueue": "enqueue one by one, tasks/s",
    "wide": f"enqueue by {WIDTH} callers of one client, tasks/s",
}


def main() -> int:
    """Exit code: 0 all deliveries verified, 1 a figure is void, 2 misuse."""
    given = _arguments().parse_args()
    found = Found()
    contenders = list(_contenders(given.only, given.venvs, found))
    with PrivateServer() as server, _ways(server, given.rtt, given.through_proxy) as ways:
        for number in range(given.rounds):
            first = number % max(len(contenders), 1)
            for contender in contenders[first:] + contenders[:first]:
                for way in ways if number % 2 == 0 else reversed(ways):
                    _take_all(found, server, contender, way, given.measures, given.tasks)
    for measure in given.measures:
        lines = table(found, measure, contenders, [way.name for way in ways]).markdown()
        print(f"\n{TITLES[measure]}\n", *lines, sep="\n")
    print()
    for key, why in found.void.items():
        print(f"VOID: {', '.join(key)}: {why}")
    print(*found.absent, ", ".join(one.about for one in contenders if one.about), sep="\n")
    if given.json:
        write_json(given.json, [[*key, rates] for key, rates in found.rates.items()])
    return 1 if found.void else 0


def table(found: Found, measure: str, contenders: Sequence[Contender], ways: Sequence[str]) -> Table:
    """Medians by contender and way, ratios to the first way, and of jobrunner to the contender on the last one."""
    rows = []
    for contender in contenders:
        name = contender.name
        near, *fars = [found.summary(name, measure, way) for way in ways]
        if near is None and not any(fars):
            continue
        cells = ["" if near is None else near.text()]
        for far in fars:
            ratio = far.ratio(near) if far is not None and near is not None else None
            missed = ratio is not None and measure == "drain" and name == OURS and not TARGET.met(ratio)
            cells += ["" if far is None else far.text()]
            cells += ["" if ratio is None else f"{ratio:.2f}{' (missed)' if missed else ''}"]
        ours = OUR_ASYNCIO if contender.coroutines and measure != "drain" else OURS
        base, last = found.summary(ours, measure, ways[-1]), fars[-1] if fars else None
        cells.append(_times(base.ratio(last)) if base is not None and last is not None and name != ours else "")
        kind = "coroutines" if contender.coroutines else "threads"
        rows.append((name, *cells, *([kind] if measure == "wide" else [])))
    titles = [ways[0], *(title for way in ways[1:] for title in (way, f"÷ {ways[0]}")), f"jobrunner ÷ it, {ways[-1]}"]
    return Table(("", *titles, *(["callers"] if measure == "wide" else [])), rows)


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"


def _take_all(
    found: Found, server: PrivateServer, contender: Contender, way: Way, measures: Sequence[str], tasks: int
) -> None:
    for measure in measures:
        if contender.takes_part(measure):
            server.renew()
            key = (contender.name, measure, way.name)
            found.take(key, partial(MEASURES[measure], server, contender, way, tasks))
            print(*key, *(f"{rate:.0f}/s" for rate in found.rates.get(key, ["void"])), sep=", ", file=sys.stderr)


def _contenders(names: Sequence[str], venvs: Path, found: Found) -> Iterator[Contender]:
    if OURS in names:
        yield jobrunner()
        yield jobrunner_asyncio()
    for name in PEERS:
        if name in names:
            try:
                yield ROSTER[name](venvs)
            except NotInstalled as failed:
                found.absent.append(f"not measured: {name}: {failed}")


@contextmanager
def _ways(server: PrivateServer, rtts: Sequence[float], through_proxy: bool) -> Iterator[list[Way]]:
    """The near way without a proxy, then one proxy for each round trip; they serve each new server at this address."""
    with ExitStack() as proxies:
        far = [0.0, *rtts] if through_proxy else rtts
        yield [Way(_NEAR), *(Way(f"{rtt:g} ms", proxies.enter_context(delayed(server.address, rtt))) for rtt in far)]


def _arguments() -> argparse.ArgumentParser:
    asked = argparse.ArgumentParser(prog="python -m benchmarks.far", description=(__doc__ or "").splitlines()[0])
    everybody = (OURS, *PEERS)
    asked.add_argument("--only", type=some_of(everybody), default=everybody, help=f"some of {', '.join(everybody)}")
    asked.add_argument("--measures", type=some_of(MEASURES), default=MEASURES, help=f"some of {', '.join(MEASURES)}")
    asked.add_argument("--rtt", type=round_trips, default=(2.0,), help="milliseconds, some with commas")
    asked.add_argument("--through-proxy", action="store_true", help="also by a proxy that delays nothing")
    asked.add_argument("--tasks", type=int, default=100_000, help="of jobrunner's drain; others get a share of it")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--venvs", type=Path, default=DEFAULT_FOLDER, help="where the peers are installed")
    asked.add_argument("--json", type=Path)
    return asked


def some_of(known: Collection[str]) -> Callable[[str], Sequence[str]]:
    """Reads some of these names, with commas between them."""

    def read(text: str) -> Sequence[str]:
        names = text.replace(" ", "").split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose of {', '.join(known)}")
        return names

    return read


def round_trips(text: str) -> Sequence[float]:
    try:
        found = [float(one) for one in text.split(",")]
    except ValueError:
        found = [-1.0]
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give milliseconds of 0 or more, as 2 or 1,4")
    return found


if __name__ == "__main__":
    sys.exit(main())
