"""Takes the time and the memory of jobrunner apart, for the section on bottlenecks in docs/performance.md.

    python -m benchmarks.anatomy            # all of it, five rounds each, a few minutes
    python -m benchmarks.anatomy drain      # time in commands and CPU of a drain, compared with the prototype loop
    python -m benchmarks.anatomy start      # the start of a lone task on an idle worker, in steps
    python -m benchmarks.anatomy memory     # what an idle process has in memory, import by import
    python -m benchmarks.anatomy --json anatomy.json

Tables go to stdout, in Markdown. The clock of `start` is the monotonic one, which all processes of a machine share.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.child import run_to_end
from benchmarks.contender import Contender
from benchmarks.contenders import jobrunner, prototype
from benchmarks.drain import drain_filled, fill
from benchmarks.idle import WARM_UP, warm_worker
from benchmarks.results import Table, anatomy_table, write_json
from benchmarks.server import PrivateServer

ROUNDS = 5
TASKS = 100_000
STARTS = 100
_MARKS = "BENCHMARK_MARKS"
_IMPORTS = ("msgspec", "asyncio", "redis", "jobrunner.worker.worker", "jobrunner.cli")
_OPTIONAL = ("opentelemetry", "rich")
"""Packages that redis-py and structlog import where they are installed. jobrunner does not depend on them."""
Marks = Mapping[str, Sequence[int]]


def drains(server: PrivateServer) -> Table:
    """µs a task of each command, the scripts' own time in Lua, and CPU time; medians."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(ROUNDS):
        for contender in (jobrunner(), prototype()):
            for name, us in _drain(server, contender).items():
                found[name][contender.name].append(us)
    return anatomy_table("µs a task", (jobrunner().name, prototype().name), found, least=0.1)


def _drain(server: PrivateServer, contender: Contender) -> Mapping[str, float]:
    server.renew()
    environment = fill(server, contender, TASKS)
    server.redis.config_resetstat()
    done = drain_filled(server, contender, TASKS, environment)
    parts = in_parts(server.redis.info("commandstats"), TASKS)
    parts["CPU of the server"] = done.used.cpu_us / TASKS
    if done.client_s is not None:
        parts["CPU of the worker"] = 1e6 * done.client_s / TASKS
    return parts


def in_parts(stats: Mapping[str, Mapping[str, float]], tasks: int) -> dict[str, float]:
    """µs a task by INFO commandstats: scripts in all, Lua without what it calls, and each command it calls."""
    took = {name.removeprefix("cmdstat_").upper(): stat["usec"] / tasks for name, stat in stats.items()}
    scripts = took.pop("EVALSHA", 0.0)
    inner = {name: us for name, us in took.items() if name not in ("INFO", "CONFIG|RESETSTAT", "BZPOPMIN", "BLPOP")}
    return {"scripts in all": scripts, "Lua alone": scripts - sum(inner.values()), **inner}


def starts(server: PrivateServer) -> Table:
    """µs from step to step of a lone task, and of the scripts on its way; medians of each round, then of the rounds."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(ROUNDS):
        for name, us in _start(server).items():
            found[name]["jobrunner"].append(us)
    return anatomy_table("µs, median", ("jobrunner",), found)


def _start(server: PrivateServer) -> Mapping[str, float]:
    me = [sys.executable, "-m", "benchmarks.anatomy"]
    server.renew()
    with TemporaryDirectory(prefix="benchmark-") as folder:
        ours = jobrunner()
        watched = replace(
            ours,
            produce=[*me, "produce"],
            work=lambda _task, count: [[*me, "work"]] * count,
            environment=lambda server: {**ours.environment(server), _MARKS: folder},
        )
        with warm_worker(server, watched) as worker:
            _log_all(server)
            run_to_end([*watched.produce, "paced", "stamp", str(STARTS)], watched.environment(server))
            worker.must_run(WARM_UP + STARTS)
            scripts = _scripts(server)
        marks: dict[str, list[int]] = {}
        for name in ("work", "produce"):
            marks |= json.loads((Path(folder) / name).read_text())
    return {**steps(marks), **scripts}


def _log_all(server: PrivateServer) -> None:
    server.redis.config_set("slowlog-max-len", 10_000)
    server.redis.config_set("slowlog-log-slower-than", 0)
    server.redis.execute_command("SLOWLOG", "RESET")


def _scripts(server: PrivateServer) -> dict[str, float]:
    """The median time in each script that was called for every task."""
    from jobrunner.broker.scripts import load

    names = {load(name).sha: name for name in ("enqueue", "reserve", "commit")}
    took: dict[str, list[int]] = defaultdict(list)
    for entry in server.redis.slowlog_get(10_000):
        word, _, rest = bytes(entry["command"]).partition(b" ")
        name = names.get(rest[:40])
        if word == b"EVALSHA" and name is not None:
            took[f"of these, the script {name}"].append(entry["duration"])
    return {name: statistics.median(took[name]) for name in sorted(took)}


def steps(marks: Marks) -> dict[str, float]:
    """From each step to the next, µs. The mark of a step is the first one of its kind after that of the step before."""
    step_titles = {
        "sent": "from the call of enqueue until the command is with the system",
        "heard": "until the worker's thread has read task and notification: two processes woken, two scripts",
        "begun": "until the task begins in that thread: decoded, lease keeper notified, wait for the next one sent",
    }
    gaps: dict[str, list[float]] = {text: [] for text in step_titles.values()}
    for called in marks["called"]:
        at = called
        for name, text in step_titles.items():
            later = next((mark for mark in marks[name] if mark >= at), None)
            if later is None:
                break
            gaps[text].append((later - at) / 1000)
            at = later
    return {text: statistics.median(found) for text, found in gaps.items() if found}


def produce(arguments: Sequence[str]) -> None:
    """The producer, with marks where a call begins and where its command was sent."""
    from benchmarks import jobrunner_app
    from benchmarks.produce import serve
    from jobrunner.broker.broker import Broker

    marks: dict[str, list[int]] = {"called": [], "sent": []}
    open_connection = Broker._connect  # noqa: SLF001  where a client opens what it sends on

    def connect(self: Broker) -> Any:
        connection = open_connection(self)
        connection.send = _marked(connection.send, after=marks["sent"])
        return connection

    Broker._connect = connect  # type: ignore[method-assign]  # noqa: SLF001
    sys.argv = ["produce", *arguments]
    serve(_marked(jobrunner_app.send, before=marks["called"]), jobrunner_app.send_many)
    _keep("produce", marks)


def work() -> None:
    """The worker, with marks where a thread receives a task and where the task begins."""
    from jobrunner import Worker
    from jobrunner.worker.fetch.wakeups import Wakeups
    from jobrunner.worker.run import executor

    marks: dict[str, list[int]] = {"heard": [], "begun": []}
    Wakeups.woken = _marked(Wakeups.woken, before=marks["heard"])  # type: ignore[method-assign]
    executor._outcome_of = _marked(executor._outcome_of, before=marks["begun"])  # noqa: SLF001
    worker = Worker(modules=["benchmarks.noop_jobs"], concurrency=10, executor="threads")
    signal.signal(signal.SIGTERM, lambda *_: worker.ask_to_stop())
    worker.run()
    _keep("work", marks)


def _marked(
    function: Callable[..., Any], *, before: list[int] | None = None, after: list[int] | None = None
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before.append(time.monotonic_ns())
        returned = function(*args, **kwargs)
        if after is not None:
            after.append(time.monotonic_ns())
        return returned

    return call


def _keep(name: str, marks: Marks) -> None:
    (Path(os.environ[_MARKS]) / name).write_text(json.dumps(marks))


def memory() -> Table:
    """Resident MB after each import, in a process that does nothing else."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for without in ((), _OPTIONAL):
        code = [
            "import importlib, sys",
            f"sys.modules.update(dict.fromkeys({without!r}))",
            "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096 / 1e6",
            "print('an interpreter', resident())",
            *(f"importlib.import_module({name!r}); print('with {name}', resident())" for name in _IMPORTS),
        ]
        done = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines():
            name, _, resident = line.rpartition(" ")
            found[name]["without opentelemetry and rich" if without else "as installed here"].append(float(resident))
    return anatomy_table("MB", ("as installed here", "without opentelemetry and rich"), found)


PARTS: Mapping[str, Callable[[PrivateServer], Table]] = {
    "drain": drains,
    "start": starts,
    "memory": lambda _server: memory(),
}


def main(asked: Sequence[str]) -> int:
    """Exit code: 0; 2 on misuse."""
    if asked[:1] == ["produce"]:
        produce(asked[1:])
        return 0
    if asked == ["work"]:
        work()
        return 0
    options = argparse.ArgumentParser(prog="python -m benchmarks.anatomy", description=(__doc__ or "").splitlines()[0])
    options.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; all when none is named")
    options.add_argument("--json", type=Path, help="write the lines of the tables to this file")
    given = options.parse_args(asked)
    if unknown := set(given.parts) - set(PARTS):
        options.error(f"unknown: {', '.join(sorted(unknown))}; choose of {', '.join(PARTS)}, or none for all")
    tables = {}
    with PrivateServer() as server:
        for name in given.parts or PARTS:
            tables[name] = list(PARTS[name](server).markdown())
            print(f"### {name}\n", *tables[name], "", sep="\n", flush=True)
    if given.json is not None:
        write_json(given.json, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
