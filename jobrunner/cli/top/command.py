"""`jobrunner top`: queues, rates, workers and failures, live in the terminal."""

import shutil
import sys
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import click

from jobrunner.cli.options import CommonOptions, connected, seconds_of, with_shared_options
from jobrunner.cli.output import Refusal, answer_json, draws_over, plain_json, talk
from jobrunner.cli.top.poller import ServerPoller, ends_of, groups_of
from jobrunner.cli.top.state import Screen
from jobrunner.client.client import Client
from jobrunner.clock import sleep
from jobrunner.formatting import install_command
from jobrunner.inspector.error_groups import ErrorGroups
from jobrunner.inspector.live_rates import LiveRates, live_rates_of
from jobrunner.inspector.live_snapshot import LiveSnapshot, look, recent_failures

_EXAMPLES = """\b
Examples:
  jobrunner top
  jobrunner top --every 5s --url redis://localhost
  jobrunner top --once
  jobrunner top --json | jq '.queues[].rates'
"""


@click.command(epilog=_EXAMPLES)
@click.option("--every", type=seconds_of, default="1", show_default=True, metavar="S",
              help="Seconds between refreshes; with --once and --json: the time of the rates.")  # fmt: skip
@click.option("--once", is_flag=True,
              help="Prints one frame and exits; the default when stdout is no terminal, or a dumb one.")  # fmt: skip
@with_shared_options
def top(shared: CommonOptions, every: float, once: bool) -> None:
    """Show queues, rates, workers and failures in the terminal, live.

    Keys pause, requeue and inspect: press ? for a list. Each refresh reads a bounded number of tasks, however many
    a queue holds.
    """
    every = max(every, 0.1)
    if not shared.as_json and find_spec("rich") is None:
        raise Refusal(f"the live view needs rich: {install_command('top')}")
    with connected(shared) as client:
        if shared.as_json:
            seen, live_rates = _two_looks(client, every)
            answer_json(_value(seen, live_rates, groups_of(client, seen)))
        elif once or not (sys.stdin.isatty() and draws_over(sys.stdout)):
            seen, live_rates = _two_looks(client, every)
            _show_once(seen, live_rates, groups_of(client, seen), ends_of(client))
        else:
            _show_live(client, every)


def _two_looks(client: Client, apart_s: float) -> tuple[LiveSnapshot, LiveRates]:
    live_rates = live_rates_of(client)
    live_rates.add(look(client))
    sleep(apart_s)
    seen = look(client, recent_failures(client))
    live_rates.add(seen)
    return seen, live_rates


def _value(seen: LiveSnapshot, live_rates: LiveRates, found: ErrorGroups) -> dict[str, Any]:
    value: dict[str, Any] = plain_json(seen)
    del value["at_s"]
    for queue in value["queues"]:
        queue["rates"] = _rates(live_rates.rates(queue["name"]))
    groups = plain_json([{**asdict(group), "title": group.title} for group in found.groups])
    return value | {"groups": groups, "ungrouped": found.ungrouped, "rates": _rates(live_rates.total())}


def _rates(rates: Any) -> dict[str, float | None]:
    return {"in_per_s": rates.into, "out_per_s": rates.out, "failed_per_s": rates.bad}


def _show_once(seen: LiveSnapshot, live_rates: LiveRates, groups: ErrorGroups, ends: frozenset[str]) -> None:
    from rich.console import Console  # the extra may be absent

    from jobrunner.cli.top.draw import frame

    rates = {queue.name: live_rates.rates(queue.name) for queue in seen.queues}
    size = shutil.get_terminal_size((100, 40))
    console = Console(width=size.columns, highlight=False)
    screen = Screen(look=seen, rates=rates, total=live_rates.total(), groups=groups, ends=ends)
    lines = frame(screen, size.columns, max(size.lines, 24))[:-1]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    for one in lines:
        one.rstrip()
        console.print(one, end="\n", soft_wrap=True)


def _show_live(client: Client, every_s: float) -> None:
    from jobrunner.cli.top.live import run_live  # needs rich

    server = ServerPoller(client)
    try:
        run_live(server, every_s=every_s)
        if not server.stop(timeout_s=0.2):
            talk("the last request is still running; Ctrl-C aborts it")
            server.stop()
    except BaseException:  # Ctrl-C, a signal
        server.break_off()
        raise
