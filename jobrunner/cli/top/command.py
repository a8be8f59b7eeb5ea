"""`jobrunner top`: queues, rates, workers and failures, live in the terminal."""

import shutil
import sys
from importlib.util import find_spec
from typing import Any

import click

from jobrunner.cli.error_boundary import Refusal
from jobrunner.cli.options import CommonOptions, connected, seconds_of, with_shared_options
from jobrunner.cli.output import answer_json, plain_json, talk
from jobrunner.client.client import Client
from jobrunner.clock import sleep
from jobrunner.inspector.live_snapshot import LiveRates, LiveSnapshot, live_rates_of, look, recent_failures

_EXAMPLES = """\b
Examples:
  jobrunner top
  jobrunner top --every 5s --url redis://localhost
  jobrunner top --once
  jobrunner top --json | jq '.queues[].rates'
"""
_PATIENT_S = 60.0


@click.command(epilog=_EXAMPLES)
@click.option("--every", type=seconds_of, default="1", show_default=True, metavar="S",
              help="Seconds between refreshes; with --once and --json: the time of the rates.")  # fmt: skip
@click.option("--once", is_flag=True, help="Prints one frame and exits; the default when stdout is no terminal.")
@with_shared_options
def top(shared: CommonOptions, every: float, once: bool) -> None:
    """Shows queues, rates, workers, pending tasks and failing jobs, live, with keys to pause, requeue and inspect.

    Press ? for the keys. Each refresh reads a bounded number of tasks, however many a queue holds.
    """
    every = max(every, 0.1)
    if not shared.as_json and find_spec("rich") is None:
        raise Refusal('the live view needs rich: pip install "jobrunner[top]"')
    with connected(shared) as client:
        if shared.as_json:
            answer_json(_value(*_two_looks(client, every)))
        elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _show_once(*_two_looks(client, every))
        else:
            _show_live(client, every)


def _two_looks(client: Client, apart_s: float) -> tuple[LiveSnapshot, LiveRates]:
    pulse = live_rates_of(client)
    pulse.add(look(client))
    sleep(apart_s)
    seen = look(client, recent_failures(client))
    pulse.add(seen)
    return seen, pulse


def _value(seen: LiveSnapshot, pulse: LiveRates) -> dict[str, Any]:
    value: dict[str, Any] = plain_json(seen)
    del value["at_s"]
    for queue in value["queues"]:
        queue["rates"] = _rates(pulse.rates(queue["name"]))
    return value | {"rates": _rates(pulse.total())}


def _rates(rates: Any) -> dict[str, float | None]:
    return {"in_per_s": rates.into, "out_per_s": rates.out, "failed_per_s": rates.bad}


def _show_once(seen: LiveSnapshot, pulse: LiveRates) -> None:
    from rich.console import Console

    from jobrunner.cli.top.draw import frame
    from jobrunner.cli.top.state import Screen

    rates = {queue.name: pulse.rates(queue.name) for queue in seen.queues}
    size = shutil.get_terminal_size((100, 40))
    console = Console(width=size.columns, highlight=False)
    lines = frame(Screen(look=seen, rates=rates, total=pulse.total()), size.columns, max(size.lines, 24))[:-1]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    for one in lines:
        one.rstrip()
        console.print(one, end="\n", soft_wrap=True)


def _show_live(client: Client, every_s: float) -> None:
    from jobrunner.cli.top.live import run_live

    server = run_live(client, every_s=every_s)
    if not server.stop(timeout_s=0.2):
        talk("the last request is still running; Ctrl-C aborts it")
        server.stop(timeout_s=_PATIENT_S)
