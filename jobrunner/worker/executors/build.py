"""From settings to an executor."""

import sys
from collections.abc import Callable, Sequence

from jobrunner.client.client import Client
from jobrunner.settings import WorkerSettings
from jobrunner.worker.deadlines import Deadlines
from jobrunner.worker.executors.by_kind import ByKind
from jobrunner.worker.executors.coroutines import CoroutineExecutor
from jobrunner.worker.executors.handover import Executor, Finished, RunAttempt
from jobrunner.worker.executors.processes import ProcessSlot
from jobrunner.worker.executors.threads import ThreadExecutor
from jobrunner.worker.runner import Runner


def build_executor(
    settings: WorkerSettings,
    client: Client,
    *,
    modules: Sequence[str],
    is_stopped: Callable[[str], bool],
    finished: Finished,
) -> Executor:
    """Threads or processes for plain jobs, and an event loop for coroutine jobs.

    `async` is threads with the event loop started at once; with `processes` coroutine jobs run in processes too.
    """
    runner = Runner(client.broker, client.keys, is_stopped)
    if settings.executor == "processes":
        command = child_command(client, modules)
        return ThreadExecutor(settings.concurrency, lambda: ProcessSlot(command, runner).run, finished)
    deadlines = Deadlines()

    def new_thread_run() -> RunAttempt:
        return deadlines.limited(runner)

    plain = ThreadExecutor(settings.concurrency, new_thread_run, finished)
    return ByKind(plain, lambda: CoroutineExecutor(settings.concurrency, runner.run_async, finished))


def child_command(client: Client, modules: Sequence[str]) -> list[str]:
    """The command line of a child process."""
    return [
        sys.executable,
        "-m",
        "jobrunner.worker.executors.child",
        client.endpoint.shared_url(),
        client.keys.prefix,
        ",".join(modules),
    ]
