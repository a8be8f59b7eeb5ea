"""From settings to an executor."""

from collections.abc import Callable, Sequence

from jobrunner.attempt import Attempt
from jobrunner.client.client import Client
from jobrunner.client.current import within
from jobrunner.client.internals import broker_of, endpoint_of, keys_of, middleware_of
from jobrunner.clock import monotonic
from jobrunner.errors import AttemptTimeout
from jobrunner.jobs.registry import Definition, definition_for
from jobrunner.logs import IDENTITY
from jobrunner.outcome import Outcome
from jobrunner.settings import WorkerSettings
from jobrunner.worker.run.error_outcome import out_of_time
from jobrunner.worker.run.executors.coroutines import CoroutineExecutor
from jobrunner.worker.run.executors.dispatch import DispatchingExecutor
from jobrunner.worker.run.executors.processes import ProcessSlots
from jobrunner.worker.run.executors.slots import Executor, FinishedAttempts, RunAttempt
from jobrunner.worker.run.executors.threads import ThreadExecutor
from jobrunner.worker.run.executors.watchdog import Guard, Watchdog
from jobrunner.worker.run.executors.wire import write_greeting
from jobrunner.worker.run.runner import Begin, Runner, nothing

_SHARED = ("payload_limit", "result_limit", "payload_keys", "payload_encryption", "require_encryption")
"""Options that the client of a child has from that of its worker."""


def build_executor(
    settings: WorkerSettings,
    client: Client,
    *,
    modules: Sequence[str],
    is_stopped: Callable[[str], bool],
    finished: FinishedAttempts,
    begin: Begin = nothing,
) -> Executor:
    """Threads or processes for plain jobs, and an event loop for coroutine jobs.

    `async` and `threads` come to the same, as each job tells its kind; with `processes` coroutine jobs run there too.
    """
    middleware = middleware_of(client)
    runner = Runner(broker_of(client), keys_of(client), is_stopped, client.settings.result_limit, begin, middleware)
    if settings.executor == "processes":
        greeting = write_greeting(
            endpoint_of(client).shared_url(), keys_of(client).prefix, modules, IDENTITY.worker, IDENTITY.log_format,
            {name: getattr(client.settings, name) for name in _SHARED} | {"redact": client.redaction().names},
            b"" if middleware is None else middleware.pickled(),
        )  # fmt: skip
        children = ProcessSlots(greeting, runner, is_stopped, settings.max_memory, begin)
        return ThreadExecutor(settings.concurrency, children, finished)
    with within(client):
        plain = ThreadExecutor(settings.concurrency, Deadlines(runner, Watchdog()), finished)

    def coroutines() -> CoroutineExecutor:
        with within(client):
            return CoroutineExecutor(settings.concurrency, runner.run_async, finished, give_up=runner.give_up)

    return DispatchingExecutor(plain, coroutines)


class Deadlines:
    """Runs attempts on threads, those with a timeout under a guard."""

    def __init__(self, runner: Runner, watch: Watchdog) -> None:
        self._runner = runner
        self._watch = watch

    def new_run(self) -> RunAttempt:
        """Runs an attempt in the calling thread, within the timeout of its job."""
        return self._run

    def close(self) -> None:
        """Lets the watching thread end; jobs on threads cannot be ended."""
        self._watch.close()

    def _run(self, attempt: Attempt) -> Outcome:
        definition = definition_for(attempt)
        if definition is None or definition.options.timeout is None:
            return self._runner.run(attempt, definition)
        return self._run_guarded(attempt, definition, definition.options.timeout)

    def _run_guarded(self, attempt: Attempt, definition: Definition, timeout_s: float) -> Outcome:
        guard = Guard(monotonic() + timeout_s)
        self._watch.arm(guard)
        try:
            outcome = self._runner.run(attempt, definition)
            self._watch.disarm(guard)
        except AttemptTimeout:  # it fell between the job's end and the disarming
            self._watch.disarm(guard)
            return self._runner.timed_out(attempt, out_of_time(definition))
        return outcome
