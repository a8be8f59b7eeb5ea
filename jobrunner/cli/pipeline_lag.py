"""`jobrunner pipeline lag`: how far stations are behind, and how many workers would keep up."""

import click

from jobrunner.cli.options import CommonOptions, connected, seconds_of, with_shared_options
from jobrunner.cli.output import Refusal, answer_json, echo, table, talk
from jobrunner.cli.suggestions import pipeline_names
from jobrunner.etl.graph import nearest
from jobrunner.formatting import duration, rate
from jobrunner.inspector.lag import WITHIN_S, StationLag, read_lags

_EXAMPLES = """\b
Examples:
  jobrunner pipeline lag
  jobrunner pipeline lag orders --within 5m
  jobrunner pipeline lag orders --json | jq '.[] | {queue, suggested_workers}'
"""


@click.command(epilog=_EXAMPLES)
@click.argument("name", required=False, shell_complete=pipeline_names)
@click.option("--within", type=seconds_of, default=f"{WITHIN_S:g}", show_default=True, metavar="S",
              help="Seconds in which the suggested workers clear what waits.")  # fmt: skip
@with_shared_options
def lag(shared: CommonOptions, name: str | None, within: float) -> None:
    """Show the lag of a pipeline, or of all.

    That is what waits in the queues of the pipeline NAME, and how many workers would keep up. Rates are those of the
    last 5 minutes. SUGGESTED: ceil((arrivals + waiting / within) * run time of an item / items that one worker runs at
    once). For autoscalers: the metric jobrunner_station_suggested_workers. Needs no MODULE.
    """
    with connected(shared) as client:
        found = read_lags(client, name, within_s=max(within, 1.0))
        if name is not None and not found:
            known = sorted({queue.partition("/")[0] for queue in client.queues() if "/" in queue})
            raise Refusal(f"the server has no queue of a pipeline {name!r}; {nearest(name, known)}")
    if shared.as_json:
        answer_json(found)
    elif found:
        columns = ("QUEUE", "WAITING", "PENDING", "OLDEST", "IN/S", "OUT/S", "DRAIN", "WORKERS", "SUGGESTED", "STATE")
        echo(table(columns, [_row(one) for one in found]))
    else:
        talk("the server has no queue of a pipeline")


def _row(one: StationLag) -> tuple[object, ...]:
    return (
        one.queue, one.waiting, one.pending, duration(one.oldest_s) if one.waiting else "-",
        rate(one.arrivals_per_s), rate(one.throughput_per_s), "-" if one.drain_s is None else duration(one.drain_s),
        one.workers, one.suggested_workers, "paused" if one.paused else "",
    )  # fmt: skip
