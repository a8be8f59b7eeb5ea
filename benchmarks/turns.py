"""The measures that every contender supports: one turn of each, and the figures that it adds to the board."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.contender import Contender
from benchmarks.drain import Drain, drain, ready
from benchmarks.idle import idle, latency
from benchmarks.importing import import_ms
from benchmarks.open_loop import open_loop
from benchmarks.server import PrivateServer

IDLE_S = 20.0
STARTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """`take(server, contender, tasks)` returns the figures; its errors void `measures`."""

    take: Callable[[PrivateServer, Contender, int], Mapping[str, float | None]]
    measures: tuple[str, ...]
    part: float = 1.0
    """The share of --tasks that it uses."""
    every_round: bool = True
    """False: it is counted, not clocked, and once is enough."""


def _drain(server: PrivateServer, contender: Contender, tasks: int) -> Mapping[str, float | None]:
    done = drain(server, contender, tasks)
    used = done.used
    return {
        "drain": _rate(done),
        "round_trips": used.round_trips / tasks,
        "script_calls": used.script_calls / tasks,
        "commands": used.commands / tasks,
        "bytes_in": used.bytes_in / tasks,
        "bytes_out": used.bytes_out / tasks,
        "command_us": used.command_us / tasks,
        "cpu_us": used.cpu_us / tasks,
        "client_us": None if done.client_s is None else 1e6 * done.client_s / tasks,
    }


def _drain_by_two(server: PrivateServer, contender: Contender, tasks: int) -> Mapping[str, float | None]:
    return {"drain2": _rate(drain(server, contender, tasks, count=2))}


def _waits(server: PrivateServer, contender: Contender, tasks: int) -> Mapping[str, float | None]:
    return {"waits": _rate(drain(server, contender, tasks, task="wait"))}


def _cpu(server: PrivateServer, contender: Contender, tasks: int) -> Mapping[str, float | None]:
    return {"cpu": _rate(drain(server, contender, tasks, task="spin", count=2, warm_up=tasks // 5))}


def _idle(server: PrivateServer, contender: Contender, _tasks: int) -> Mapping[str, float | None]:
    seen = idle(server, contender, IDLE_S)
    return {"idle": seen.commands_per_s, "idle_cpu": seen.cpu_percent, "idle_mb": seen.memory_mb}


def _latency(server: PrivateServer, contender: Contender, _tasks: int) -> Mapping[str, float | None]:
    delays = latency(server, contender, STARTS)
    return {"start": delays.p50, "start_p95": delays.p95, "start_p99": delays.p99}


def _open(rate: int, name: str, server: PrivateServer, contender: Contender, _tasks: int) -> Mapping[str, float | None]:
    delays = open_loop(server, contender, rate)
    return {name: delays.p50, f"{name}_p95": delays.p95, f"{name}_p99": delays.p99}


def _ready(server: PrivateServer, contender: Contender, _tasks: int) -> Mapping[str, float | None]:
    return {"ready": ready(server, contender)}


def _import(_server: PrivateServer, contender: Contender, _tasks: int) -> Mapping[str, float | None]:
    return {"import": import_ms(contender)}


def _rate(done: Drain) -> float:
    return done.tasks / max(done.seconds, 1e-9)


_IN_A_DRAIN = ("drain", "round_trips", "script_calls", "commands", "bytes_in", "bytes_out", "command_us", "cpu_us")
TURNS = {
    "drain": Turn(take=_drain, measures=(*_IN_A_DRAIN, "client_us")),
    "drain2": Turn(take=_drain_by_two, measures=("drain2",)),
    "waits": Turn(take=_waits, measures=("waits",)),
    "cpu": Turn(take=_cpu, measures=("cpu",), part=0.02),
    "latency": Turn(take=_latency, measures=("start", "start_p95", "start_p99")),
    "open1": Turn(take=partial(_open, 1_000, "open1"), measures=("open1", "open1_p95", "open1_p99")),
    "open5": Turn(take=partial(_open, 5_000, "open5"), measures=("open5", "open5_p95", "open5_p99")),
    "import": Turn(take=_import, measures=("import",)),
    "ready": Turn(take=_ready, measures=("ready",)),
    "idle": Turn(take=_idle, measures=("idle", "idle_cpu", "idle_mb"), every_round=False),
}
