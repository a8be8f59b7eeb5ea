"""The measures, in the order of the table, with the targets of jobrunner."""

from dataclasses import dataclass

OURS = "jobrunner"
OUR_THREADS = "jobrunner, threads"
OUR_ASYNCIO = "jobrunner, asyncio"
ACKNOWLEDGED = (
    "dramatiq", "taskiq", "rq", "celery", "arq", "saq", "streaq", "ardiq", "blitzq", "mayu", "docket", "tasktiger",
)  # fmt: skip
UNACKNOWLEDGED = ("huey",)
PEERS = (*ACKNOWLEDGED[:4], *UNACKNOWLEDGED, *ACKNOWLEDGED[4:])
FEATURES = ("limits", "history", "hooks", "metrics", "tracing")
"""The features whose price `benchmarks.prices` measures, one at a time and together."""
PLAIN = "plain"
EVERYTHING = "+".join(FEATURES)
SAMPLED = f"{EVERYTHING} 1 in 100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`bound`, or `bound` times the best of `against`, or times what `who` reached in the measure `of`."""

    bound: float
    at_least: bool = True
    against: tuple[str, ...] = ()
    of: str = ""
    who: str = OURS

    def __str__(self) -> str:
        times = f" × {MEASURES[self.of].title}" if self.of else " ×" if self.against else ""
        return f"{'≥' if self.at_least else '≤'} {self.bound:,g}{times}"

    def met(self, reached: float) -> bool:
        """Whether a ratio (with `against`) or a figure (without it) reaches the bound."""
        return reached >= self.bound if self.at_least else reached <= self.bound

    def verdict(self, reached: float) -> str:
        """The same for a table: met or MISSED."""
        return "met" if self.met(reached) else "MISSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A row of the table for each contender."""

    title: str
    digits: int = 0
    targets: tuple[Target, ...] = ()
    most_is_best: bool = True

    def format(self, figure: float) -> str:
        """A figure with the decimals of this measure."""
        return f"{figure:,.{self.digits}f}"


def at_least(bound: float, *against: str, of: str = "", who: str = OURS) -> Target:
    return Target(bound=bound, against=against, of=of, who=who)


def at_most(bound: float, *against: str, of: str = "") -> Target:
    return Target(bound=bound, at_least=False, against=against, of=of)


GROWTH_TARGET = at_most(1.5)
"""Of a task's cost in the largest queue, divided by that in the smallest."""
PRICE_TARGET = at_least(0.6)
"""Of the drain with all features, divided by the plain drain."""


def _less(title: str, digits: int, *targets: Target) -> Measure:
    return Measure(title=title, digits=digits, targets=targets, most_is_best=False)


def _more(title: str, *targets: Target, digits: int = 0) -> Measure:
    return Measure(title=title, digits=digits, targets=targets)


MEASURES = {
    "drain": _more(
        "drain, tasks/s", at_least(8, *ACKNOWLEDGED), at_least(8, *UNACKNOWLEDGED), at_least(0.6, "prototype loop")
    ),
    "round_trips": _less("  round trips/task", 4, at_most(0.05)),
    "script_calls": _less("  script calls/task", 4),
    "commands": _less("  commands/task, also in scripts", 2),
    "bytes_in": _less("  bytes/task to the server", 0),
    "bytes_out": _less("  bytes/task from the server", 0),
    "command_us": _less("  server in commands/task, µs", 1, at_most(8)),
    "cpu_us": _less("  server CPU/task in all, µs", 1),
    "client_us": _less("  worker CPU/task, µs", 1),
    "drain2": _more("drain by two processes, tasks/s", at_least(1.4, of="drain")),
    "waits": _more("waits of 5 ms, 50 at once, tasks/s", at_least(8_500), at_least(6_000, who=OUR_THREADS)),
    "cpu": _more("10 ms of CPU each, by two processes, tasks/s", at_least(0.95, "bare processes"), digits=1),
    "enqueue": _more("enqueue one by one, tasks/s", at_least(0.8, "bare script call")),
    "bulk": _more("enqueue in bulk, tasks/s", at_least(0.6, "bare script call"), at_least(8, *PEERS)),
    "idle": _less("idle worker, commands/s", 2, at_most(1)),
    "idle_cpu": _less("idle worker, % of a core", 2, at_most(0.2)),
    "idle_mb": _less("idle worker, proportional MB", 1, at_most(45)),
    "start": _less("enqueue to start, median ms", 2, at_most(1.5, "bare blocking pop"), at_most(1, *PEERS)),
    "start_p95": _less("enqueue to start, p95 ms", 2),
    "start_p99": _less("enqueue to start, p99 ms", 2, at_most(5, of="start")),
    "open1": _less("open loop, 1,000/s: due to start, median ms", 2),
    "open1_p95": _less("open loop, 1,000/s, p95 ms", 2),
    "open1_p99": _less("open loop, 1,000/s, p99 ms", 2),
    "open5": _less("open loop, 5,000/s: due to start, median ms", 2),
    "open5_p95": _less("open loop, 5,000/s, p95 ms", 2),
    "open5_p99": _less("open loop, 5,000/s, p99 ms", 2),
    "import": _less("import, ms", 0, at_most(100)),
    "ready": _less("start of a worker to its first task, ms", 0, at_most(250)),
}
