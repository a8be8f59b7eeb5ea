"""The checks of a soak, each with a value, a bound, and whether it holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from jobrunner.broker.call import command
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.errors import JobrunnerError
from jobrunner.soak.audit import QueueSample, SoakSample, all_keys, problems, server_side, strays
from jobrunner.soak.history.__main__ import violations
from jobrunner.soak.history.reader import NotJudged, read
from jobrunner.soak.history.recorder import finish
from jobrunner.soak.jobs import DOOMED, QUEUES, TICK_S, TICKS
from jobrunner.soak.ledger import LedgerSummary

_WARM_SHARE, _WARM_S = 0.25, 15.0
_SHOWN = 3
_LEAST_JUDGED = 8
_MOST_PAIRED = 300
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakCheck:
    """One condition: its name, the value found, the bound in words, and whether it holds; None: not judged."""

    name: str
    value: Any
    bound: str
    holds: bool | None


def equals(name: str, value: Any, wanted: Any) -> SoakCheck:
    """Checks that the value is exactly `wanted`."""
    return SoakCheck(name=name, value=value, bound=f"= {wanted}", holds=bool(value == wanted))


def none_of(name: str, found: Sequence[str]) -> SoakCheck:
    """Checks that `found` is empty; the value names some of the items."""
    more = f", and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    return SoakCheck(name=name, value=", ".join(found[:_SHOWN]) + more or "none", bound="none", holds=not found)


def at_most(name: str, value: float, most: float) -> SoakCheck:
    """Checks that the value does not exceed `most`."""
    return SoakCheck(name=name, value=value, bound=f"≤ {most:g}", holds=value <= most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The growth that a value may have by the end: the larger of an amount and a share of its median."""

    amount: float
    share: float
    unit: str = ""
    size: float = 1.0


MEMORY = Tolerance(amount=8 * _MIB, share=0.10, unit=" MiB", size=_MIB)
DESCRIPTORS = Tolerance(amount=8, share=0.10)
KEYS = Tolerance(amount=200, share=0.10)


def flat(name: str, times: Sequence[float], values: Sequence[float | None], tolerance: Tolerance) -> SoakCheck:
    """Checks that a value did not grow after the first quarter of a run; in a short run, after 15 s or its first half.

    The growth is the slope of Theil and Sen, the median of the slopes of all pairs, times the length of the judged
    part: neither a burst nor the dip after a restart changes it much. (H. Theil, "A rank-invariant method of linear and
    polynomial regression analysis", 1950; P. K. Sen, "Estimates of the regression coefficient based on Kendall's
    tau", 1968.) Runs of too few samples are not judged.
    """
    known = [(at, value) for at, value in zip(times, values, strict=True) if value is not None]
    end = times[-1] if times else 0.0
    warm_s = max(_WARM_SHARE * end, min(_WARM_S, end / 2))
    judged = [(at, value) for at, value in known if at >= warm_s]
    if len(judged) < _LEAST_JUDGED:
        return SoakCheck(name=name, value="too few samples", bound="not judged", holds=None)
    most = max(tolerance.amount, tolerance.share * median(value for _, value in judged))
    growth = slope(judged) * (judged[-1][0] - judged[0][0])
    shown = round(growth / tolerance.size, 2)
    bound = f"≤ {most / tolerance.size:,.1f}{tolerance.unit} in {judged[-1][0] - judged[0][0]:,.0f} s"
    return SoakCheck(name=name, value=f"{shown:+,}{tolerance.unit}", bound=bound, holds=growth <= most)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes of all pairs; many points are thinned out first."""
    thinned = points[:: len(points) // _MOST_PAIRED + 1]
    return median((later - sooner) / (to - since) for (since, sooner), (to, later) in combinations(thinned, 2))


_FIRST_TICKS_S = 15.0
"""Seconds by which a leader is elected and each periodic job was due."""


@dataclass(slots=True)
class Peaks:
    """The largest numbers of limited and of unique tasks seen at once."""

    limited: int = 0
    singles: int = 0

    def note(self, side: QueueSample) -> None:
        """Updates the peaks with a poll of the queues."""
        self.limited = max(self.limited, side.limited)
        self.singles = max(self.singles, side.singles)


def of_ledger(tally: LedgerSummary) -> list[SoakCheck]:
    """Checks of the ledger alone."""
    totals = tally.totals
    return [
        SoakCheck(name="tasks finished", value=totals.finished, bound="≥ 1", holds=totals.finished >= 1),
        equals("acknowledged tasks lost", len(tally.open), 0),
        equals("tasks run that were not enqueued", totals.unknown, 0),
        equals("begun again without a fault that explains it", totals.extra_unexcused, 0),
        equals("finished again without a fault that explains it", totals.ended_again_unexcused, 0),
    ]


def of_server(client: Client, tally: LedgerSummary) -> list[SoakCheck]:
    """Checks of the drained queues on the server."""
    side = server_side(client)
    totals = {name: client.queue(name).totals() for name in QUEUES}
    dead = {name: found.get("dead", 0) for name, found in totals.items()}
    kept = [task for name in QUEUES for task in client.queue(name).ids("dead", limit=10_000)]
    wrong = [told for name in QUEUES for told in problems(client, name)]
    return [
        equals("still there after the drain", side.left, 0),
        SoakCheck(
            name="tasks dead that were to die",
            value=dead[DOOMED],
            bound=f"{tally.totals.acked_doomed} to {tally.totals.offered_doomed}",
            holds=tally.totals.acked_doomed <= dead[DOOMED] <= tally.totals.offered_doomed,
        ),
        equals("tasks dead that were not", sum(dead.values()) - dead[DOOMED], 0),
        none_of("totals that do not agree with a recount", wrong),
        none_of("keys that should be gone", strays(client, QUEUES, kept=kept)),
    ]


def of_limits(peaks: Peaks, limit: int) -> list[SoakCheck]:
    """Checks of limits."""
    return [
        at_most("in hand at once of the limited queue", peaks.limited, limit),
        at_most("unique tasks at once", peaks.singles, 1),
    ]


def of_ticks(client: Client, tally: LedgerSummary, worked_s: float) -> list[SoakCheck]:
    """Checks that every tick between the first and the last was one task."""
    omitted = twice = 0
    for name, every_s in TICK_S.items():
        ran = tally.ticks.get(name, set())
        instants = [_tick_s(task) for task in ran]
        fired = broker_of(client).run(
            command("HGET", keys_of(client).queue(TICKS).periodic(name), "fired", read=lambda reply: int(reply or 0))
        )
        wanted = (max(instants) - min(instants)) // every_s + 1 if instants else 0
        omitted += wanted - len(set(instants))
        twice += fired - len(set(instants))
    return [
        SoakCheck(name="periodic jobs that ran", value=len(tally.ticks), bound=f"= {len(TICK_S)}",
              holds=len(tally.ticks) == len(TICK_S) if worked_s > _FIRST_TICKS_S else None),
        equals("ticks omitted", omitted, 0),
        equals("ticks made twice, or made and not run", twice, 0),
    ]  # fmt: skip


def of_processes(lost: Sequence[str]) -> list[SoakCheck]:
    """Checks that no process ended except by a fault."""
    return [none_of("processes that ended by themselves", lost)]


def of_growth(samples: Sequence[SoakSample], elder: str, *, is_own_server: bool) -> list[SoakCheck]:
    """Checks that memory, descriptors and keys did not grow."""
    times = [one.at_s for one in samples]
    checks = [
        flat("memory of the worker that was never killed", times, [one.memory.get(elder) for one in samples], MEMORY),
        flat("its descriptors", times, [one.descriptors.get(elder) for one in samples], DESCRIPTORS),
        flat("keys", times, [one.keys for one in samples], KEYS),
    ]
    if is_own_server:  # a given server may have other users
        checks.append(flat("memory of the server", times, [one.server_memory for one in samples], MEMORY))
    return checks


def answered(what: str, check: Callable[[], list[SoakCheck]]) -> list[SoakCheck]:
    """Runs checks that read the server; a single failed check when the server does not answer, as after a run of hours
    the other checks and the samples are useful without it."""
    try:
        return check()
    except JobrunnerError as error:
        return [none_of(f"reasons why {what} cannot be checked", [str(error)])]


def of_history(client: Client, folder: Path) -> list[SoakCheck]:
    """Seals and checks the recorded history, after the work is over."""
    try:
        finish(folder, broker_of(client), keys_of(client))
        history = read(folder)
    except (NotJudged, JobrunnerError) as error:
        return [none_of("reasons why the history cannot be judged", [str(error)])]
    count = len(history.runs)
    return [
        SoakCheck(name="attempts in the history", value=count, bound="≥ 1", holds=count >= 1),
        none_of("violations in the history", [" ".join(one) for one in violations(history)]),
    ]


def of_prefix(client: Client) -> list[SoakCheck]:
    """Checks that nothing was written outside the prefix of a private server."""
    ours = sum(1 for _ in all_keys(client))
    return [equals("keys outside the prefix", broker_of(client).run(command("DBSIZE", read=int)) - ours, 0)]


def _tick_s(task: str) -> int:
    return round((int(task[:16], 16) >> 16) / 1000)
