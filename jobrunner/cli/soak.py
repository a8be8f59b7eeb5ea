"""`jobrunner soak`: mixed work under random faults for minutes or hours, live measurements, and checks at the end."""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from types import FrameType
from typing import Any

import click

from jobrunner.broker.calls.server import facts
from jobrunner.cli.options import CommonOptions, seconds_of, with_shared_options
from jobrunner.cli.output import DONE, NO, answer_json, draws_over, talk
from jobrunner.cli.signals import handling
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.errors import UnsafeServer
from jobrunner.inspector.snapshot import shown_url
from jobrunner.log_output import warnings_to_stderr
from jobrunner.soak.checks import SoakCheck
from jobrunner.soak.fault_proxy import target_of
from jobrunner.soak.faults import KINDS, kinds_of
from jobrunner.soak.report import LineReporter, SoakReporter, plotted, verdict_lines
from jobrunner.soak.run import Soak, SoakOptions, fresh_prefix

_EXAMPLES = """\b
Examples:
  jobrunner soak --duration 3m
  jobrunner soak --duration 1h --rate 200 --report soak.json --plot soak.svg
  jobrunner soak --url redis://localhost --faults kills,cuts,silences --seed 7
  jobrunner soak --duration 10m --history runs/1
"""
_ABANDONED = 130
_LEAST_EVERY_S = 0.1


@click.command(epilog=_EXAMPLES)
@click.option("--duration", "length_s", type=seconds_of, default="60m", show_default=True, metavar="TIME",
              help="Time to run: 90s, 60m, 8h.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(1, 100_000), default=200, show_default=True,
              help="Tasks enqueued per second.")  # fmt: skip
@click.option("--workers", type=click.IntRange(2, 1000), default=4, show_default=True,
              help="Worker processes; the first one is never killed.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1, 1000), default=8, show_default=True,
              help="Tasks that run at once, per worker.")  # fmt: skip
@click.option("--task-time", type=seconds_of, default="20ms", show_default=True, metavar="TIME",
              help="Mean run time of a task.")  # fmt: skip
@click.option("--keepalive", type=seconds_of, default="6", show_default=True, metavar="S", help="Length of a lease.")
@click.option("--faults", metavar="KIND,…", help=f"Kinds of faults to inject: {', '.join(KINDS)}.")
@click.option("--no-faults", is_flag=True, help="Injects no faults.")
@click.option("--every", type=seconds_of, default="10", show_default=True, metavar="S",
              help="Mean time between faults.")  # fmt: skip
@click.option("--seed", type=int, metavar="N", help="Seed of the fault plan; the same seed gives the same plan.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="File to draw the samples in, as SVG.")  # fmt: skip
@click.option("--report", "report_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="File to write samples, faults and results to.")  # fmt: skip
@click.option("--history", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="New folder to record every call in; checked at the end, and whenever you like.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keeps the folder with ledger and logs, and the keys on your server.")
@click.option("--patience", type=seconds_of, default="60", hidden=True,
              help="Time without progress after which the drain is given up.")  # fmt: skip
@with_shared_options
def soak(shared: CommonOptions, length_s: float, seed: int | None, **options: Any) -> int:
    """Run tasks under random faults, and check that none is lost.

    Uses a private server, which it also kills and restarts, or the one of --url, below a fresh prefix: there it
    injects only faults that affect its own processes, and deletes its keys at the end, also after Ctrl-C. Ctrl-C
    once: stops early, drains and checks; twice: exits at once. Exit code: 0 all checks hold, 1 one does not, 2
    misuse.
    """
    seed = SystemRandom().randrange(10**6) if seed is None else seed
    options |= {"url": shared.url, "prefix": shared.prefix, "as_json": shared.as_json}
    wish = _wish(length_s, seed, options)
    warnings_to_stderr()
    if wish.url is not None:
        _check_server(wish.url)
    folder = Path(tempfile.mkdtemp(prefix="jobrunner-soak-"))
    try:
        return _played(wish, folder, options)
    finally:
        if options["keep"]:
            talk(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _wish(length_s: float, seed: int, options: dict[str, Any]) -> SoakOptions:
    if options["no_faults"] and options["faults"]:
        raise click.UsageError("--faults and --no-faults exclude each other; leave one out")
    url = options["url"]
    if options["every"] < _LEAST_EVERY_S and not options["no_faults"]:
        raise click.UsageError(f"--every {options['every']:g}: give at least 100ms, or --no-faults")
    for name, file in (("--report", options["report_file"]), ("--plot", options["plot"])):
        if file is not None:
            _make_folder(name, file, file.parent)
    if (history := options["history"]) is not None:
        _make_folder("--history", history, history)
        if any(history.iterdir()):
            raise click.UsageError(f"--history {history}: the folder is not empty; name a new one")
    has_proxy = url is None or target_of(url) is not None
    faults = "" if options["no_faults"] else options["faults"]
    return SoakOptions(
        length_s=length_s,
        seed=seed,
        kinds=kinds_of(faults, is_own_server=url is None, has_proxy=has_proxy),
        rate=options["rate"],
        workers=options["workers"],
        concurrency=options["concurrency"],
        task_s=max(options["task_time"], 0.0001),
        every_s=options["every"],
        keepalive_s=options["keepalive"],
        url=url,
        prefix=fresh_prefix(options["prefix"]),
        keep=options["keep"],
        patience_s=options["patience"],
        history=None if history is None else history.absolute(),
    )


def _make_folder(option: str, path: Path, folder: Path) -> None:
    """Creates a folder. Raises UsageError when `path`, the folder or a file in it, cannot be written, which would waste
    a run of hours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise PermissionError("no right to write there")
    except OSError as error:
        raise click.UsageError(f"{option} {path} cannot be written: {error}; name another one") from error


def _check_server(url: str) -> None:
    """Raises ServerError when the server is unreachable, UnsafeServer when it may evict tasks."""
    with Client(url, retry_timeout=0.5) as client:
        server_facts = broker_of(client).run(facts())
    if server_facts.evicts:
        raise UnsafeServer(
            f"the server may delete tasks to make room (maxmemory-policy {server_facts.maxmemory_policy}): "
            "set maxmemory-policy noeviction"
        )


def _played(wish: SoakOptions, folder: Path, options: dict[str, Any]) -> int:
    soak = Soak(wish, folder)
    try:
        talk(_beginning(soak))
        with _looked_at() as look, _stopped_by_signals(soak, look.say):
            checks = soak.run(look.show)
    except KeyboardInterrupt:
        talk("ended at once; nothing is judged")
        return _ABANDONED
    finally:
        soak.close()
        if soak.left_over:
            talk(f"the server is away, so keys below {wish.prefix}: are left on it; delete them when it is back")
    found = _written(soak, checks)
    try:
        if options["report_file"] is not None:
            options["report_file"].write_text(json.dumps(found, indent=1, default=str) + "\n")
        if options["plot"] is not None:
            options["plot"].write_text(plotted(soak.samples, soak.faults))
    finally:  # a full disk must not hide the verdict
        _answer(found, verdict_lines(checks, soak.striker.counts, soak.tally.totals.extra), as_json=options["as_json"])
    return NO if any(check.holds is False for check in checks) else DONE


def _beginning(soak: Soak) -> str:
    wish = soak.wish
    struck = ", ".join(wish.kinds) or "none"
    return (
        f"{wish.rate:g} tasks/s for {wish.length_s:g} s on {shown_url(soak.client)} "
        f"below {keys_of(soak.client).prefix}:, {wish.workers} workers; faults: {struck}; "
        f"seed {wish.seed}, {len(soak.plan)} planned"
    )


def _answer(found: dict[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        answer_json(found)
        return
    for line in lines:
        click.echo(line)


def _written(soak: Soak, checks: list[SoakCheck]) -> dict[str, Any]:
    totals = asdict(soak.tally.totals)
    return {
        "held": not any(check.holds is False for check in checks),
        "wish": asdict(soak.wish) | {"url": shown_url(soak.client)},
        "checks": [asdict(check) for check in checks],
        "totals": totals,
        "faults": [asdict(one) for one in soak.faults],
        "samples": [asdict(one) for one in soak.samples],
    }


@contextmanager
def _looked_at() -> Iterator[SoakReporter]:
    """The reporter: a live view on a terminal with rich installed, else lines."""
    if not draws_over(sys.stderr) or find_spec("rich") is None:
        yield LineReporter(talk)
        return
    from jobrunner.soak.live_view import opened

    with opened() as picture:
        yield picture


@contextmanager
def _stopped_by_signals(soak: Soak, say: Callable[[str], None]) -> Iterator[None]:
    """Makes the first SIGINT or SIGTERM end the work, and the second one the process."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        if soak.stop.is_set():
            raise KeyboardInterrupt
        soak.stop.set()
        say("ends early; once more: at once")

    with handling({signal.SIGINT: stop, signal.SIGTERM: stop}):
        yield
