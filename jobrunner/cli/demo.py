"""`jobrunner demo`: runs real work on real processes, kills some of them, and checks the result."""

import os
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from jobrunner.cli.options import CommonOptions, with_shared_options
from jobrunner.cli.output import Refusal
from jobrunner.cli.signals import interrupted_once
from jobrunner.formatting import install_command

_EXAMPLES = """\b
Examples:
  jobrunner demo
  jobrunner demo flights
  jobrunner demo flights --quick --json
  jobrunner demo lakehouse --items 200000
"""
_EXTRAS = {"jobs": "demo", "flights": "demo,spark", "lakehouse": "demo,lake"}
"""The demos, and the extras they need."""
_BUNDLED = Path(__file__).parents[1] / "bundled"
"""The folder of `jobs_example` in a wheel; in a checkout it is beside the package."""
FEWEST = 40_000
"""Fewest orders of the lakehouse demo: each kind of process then still has work left when it is killed."""


@click.command(epilog=_EXAMPLES)
@click.argument("name", type=click.Choice(list(_EXTRAS)), default="jobs", metavar="[NAME]")
@click.option("--seed", type=int, default=2013, show_default=True, help="Seed of random failures and damaged rows.")
@click.option("--quick", is_flag=True, help="Runs a smaller version of the same work.")
@click.option(
    "--items", type=click.IntRange(min=FEWEST), metavar="N", help="Orders of the lakehouse; default: 1000000."
)
@click.option("--keep", is_flag=True, help="Keeps the folder with results and logs.")
@with_shared_options
def demo(shared: CommonOptions, name: str, seed: int, quick: bool, items: int | None, keep: bool) -> int:
    """Run a demo, kill a worker, and check that no task is lost.

    Runs on a private server. NAME is jobs (background jobs of an airline office, on two workers), flights (a data
    pipeline in Python and on Spark) or lakehouse (a pipeline into a Delta and an Iceberg table, while every kind of
    process is killed). The data of the first two are all flights that left New York in 2013.
    """
    if shared.url is not None or shared.prefix is not None:
        raise click.UsageError("the demo has a server of its own; leave out --url and --prefix")
    sizes = {} if items is None else {"items": items}
    if sizes and name != "lakehouse":
        raise click.UsageError(f"--items is of the demo lakehouse; {name} has a fixed size, a smaller one with --quick")
    run_demo = _loaded(name).run_demo
    folder = Path(tempfile.mkdtemp(prefix="jobrunner-demo-")) if keep else None
    with interrupted_once():
        code: int = run_demo(folder=folder, seed=seed, quick=quick, as_json=shared.as_json, **sizes)
    return code


def _loaded(name: str) -> Any:
    """The module of a demo; its extras are not needed by other commands. Raises Refusal that names them."""
    remedy = install_command(_EXTRAS[name])
    _make_examples_importable()
    try:
        dataset = import_module("jobs_example.dataset")
        dataset.table_file("airlines")
        return import_module(f"jobs_example.demos.{name}.run")
    except ModuleNotFoundError as error:
        raise Refusal(f"the demo needs {error.name}: {remedy}") from error
    except dataset.DatasetMissing as error:
        raise Refusal(f"{error}") from error


def _make_examples_importable() -> None:
    """Puts the bundled `jobs_example` on the path of this process and of the workers that the demo starts.

    A wheel has it inside `jobrunner`, because a top-level package of that name could shadow a user's own.
    """
    if find_spec("jobs_example") is None and _BUNDLED.is_dir():
        sys.path.append(os.fspath(_BUNDLED))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.fspath(_BUNDLED)]))
