"""From settings to an executor."""

from collections.abc import Callable, Sequence

from jobrunner.client.client import Client
from jobrunner.client.current import within
from jobrunner.logs import IDENTITY
from jobrunner.settings import WorkerSettings
from jobrunner.worker.executors.by_kind import ByKind
from jobrunner.worker.executors.coroutines import CoroutineExecutor
from jobrunner.worker.executors.deadlines import Deadlines
from jobrunner.worker.executors.handover import Finished, Hospitable
from jobrunner.worker.executors.processes import ProcessSlots
from jobrunner.worker.executors.threads import ThreadExecutor
from jobrunner.worker.executors.wire import write_greeting
from jobrunner.worker.runner import Runner

_SHARED = ("payload_limit", "payload_keys", "payload_seal", "require_sealed")
"""Options that the client of a child has from that of its worker."""


def build_executor(
    settings: WorkerSettings,
    client: Client,
    *,
    modules: Sequence[str],
    is_stopped: Callable[[str], bool],
    finished: Finished,
) -> Hospitable:
    """Threads or processes for plain jobs, and an event loop for coroutine jobs.

    `async` and `threads` come to the same, as each job tells its kind; with `processes` coroutine jobs run there too.
    """
    runner = Runner(client.broker, client.keys, is_stopped)
    if settings.executor == "processes":
        greeting = write_greeting(
            client.endpoint.shared_url(), client.keys.prefix, modules, IDENTITY.worker, IDENTITY.log_format,
            {name: getattr(client.settings, name) for name in _SHARED},
        )  # fmt: skip
        children = ProcessSlots(greeting, runner, is_stopped, settings.max_memory)
        return ThreadExecutor(settings.concurrency, children, finished)
    with within(client):
        plain = ThreadExecutor(settings.concurrency, Deadlines(runner), finished, lends=True)

    def coroutines() -> CoroutineExecutor:
        with within(client):
            return CoroutineExecutor(settings.concurrency, runner.run_async, finished)

    return ByKind(plain, coroutines)
