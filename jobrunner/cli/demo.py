"""`jobrunner demo`: real work on real processes, and a verdict."""

import tempfile
from pathlib import Path

import click

from jobrunner.cli.boundary import Refusal
from jobrunner.cli.options import Shared, with_shared_options

_EXAMPLES = """\b
Examples:
  jobrunner demo
  jobrunner demo --quick --json
"""
_DEMOS = ["flights"]


@click.command(epilog=_EXAMPLES)
@click.argument("name", type=click.Choice(_DEMOS), default=_DEMOS[0], metavar="[NAME]")
@click.option("--seed", type=int, default=2013, show_default=True, help="Of the partner's failures.")
@click.option("--quick", is_flag=True, help="Does less of the same kinds of work.")
@click.option("--keep", is_flag=True, help="Keeps the folder with the results and the logs.")
@with_shared_options
def demo(shared: Shared, name: str, seed: int, quick: bool, keep: bool) -> int:
    """Runs a demo on a server of its own, kills a worker, and checks that nothing was lost.

    NAME is flights: all flights of New York in 2013, their fares and the weather.
    """
    del name
    if shared.url is not None or shared.prefix is not None:
        raise click.UsageError("the demo has a server of its own; leave out --url and --prefix")
    try:
        from jobs_example.demos.jobs.run import run_demo  # it needs an extra that other commands do not
    except ModuleNotFoundError as error:
        raise Refusal(f"the demo needs {error.name}: pip install 'jobrunner[demo]'") from error
    folder = Path(tempfile.mkdtemp(prefix="jobrunner-demo-")) if keep else None
    return run_demo(folder=folder, seed=seed, quick=quick, as_json=shared.as_json)
