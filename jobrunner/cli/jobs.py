"""`jobrunner jobs`: the known jobs with their totals."""

import click

from jobrunner.cli.options import CommonOptions, connected, modules_or_configured, with_shared_options, with_wide
from jobrunner.cli.output import Refusal, answer_json, echo, prints_all_columns, table, talk
from jobrunner.cli.status import tell_unread
from jobrunner.cli.suggestions import job_names, nearest_of
from jobrunner.inspector.jobs import JobView, job_views
from jobrunner.jobs.registry import all_jobs, load_modules

_EXAMPLES = """\b
Examples:
  jobrunner jobs
  jobrunner jobs SendWelcomeEmail --json
  jobrunner jobs -m myapp.jobs --wide
"""


@click.command(epilog=_EXAMPLES)
@click.argument("name", required=False, shell_complete=job_names)
@click.option("-m", "--module", "modules", multiple=True, metavar="MODULE",
              help="Module that declares jobs; default: modules of [tool.jobrunner]. Repeatable.")  # fmt: skip
@with_wide
@with_shared_options
def jobs(shared: CommonOptions, name: str | None, modules: tuple[str, ...], wide: bool) -> None:
    """List jobs with their queues, totals and rates.

    Lists the jobs that the modules declare, that live workers know, and whose tasks ended here; or only the job NAME.
    A job that ran on two queues has two rows. ATTEMPTS is the max_attempts of the job (-: as its queue says), FAILED
    counts attempts and DEAD tasks, of all time; LAST HOUR is how many attempts ended.
    """
    load_modules(modules_or_configured(modules))
    unread: dict[str, str] = {}
    problems: list[str] = []
    with connected(shared) as client:
        found = job_views(client, all_jobs(), unread, problems)
    for problem in problems:
        talk(problem)
    tell_unread(unread)
    if name is not None:
        known = sorted({job.name for job in found})
        if name not in known:
            raise Refusal(f"there is no job {name!r}; {nearest_of(name, known, none='no job is known')}")
        found = [job for job in found if job.name == name]
    if shared.as_json:
        answer_json(found)
    elif found:
        echo(_table(found, wide=wide))
    else:
        talk("no job is known: no module is named, no worker runs, and no task ended; add -m MODULE")


def _table(found: list[JobView], *, wide: bool) -> str:
    is_wide = prints_all_columns(wide=wide)
    columns = (
        *("JOB", "QUEUE", "ATTEMPTS", "SUCCEEDED", "FAILED"),
        *(("RECOVERED",) if is_wide else ()),
        *("DEAD", "LAST HOUR"),
        *(("FAILED LAST HOUR", "WORKERS") if is_wide else ()),
        "SCHEDULE",
    )
    rows = [
        (
            *(job.name, job.queue or "-", "-" if job.max_attempts is None else job.max_attempts),
            *(job.succeeded, job.failed),
            *((job.recovered,) if is_wide else ()),
            *(job.dead, job.ended_last_hour),
            *((job.failed_last_hour, job.workers) if is_wide else ()),
            job.schedule,
        )
        for job in found
    ]
    return table(columns, rows, names=("QUEUE",), whole_tail=True, wide=wide)
