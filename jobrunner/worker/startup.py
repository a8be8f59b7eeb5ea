"""What a worker needs before it is built: its modules, and a server that has loaded its data and is safe for tasks.

A server that is loading its data, has run a script for long, or takes no writes, as its disk is full, is the right one
and goes on by itself, after minutes where it has much to load: the worker waits. A server that does not answer at all
may be a wrong address: then the worker ends, and its supervisor or service manager starts another.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.rights import Denied, denied, may_use
from jobrunner.broker.calls.server import check_format, facts, ping
from jobrunner.broker.redis_errors import BusyLoadingError, refuses_writes
from jobrunner.client.client import Client, broker_of, endpoint_of, keys_of
from jobrunner.client.current import configured_client
from jobrunner.clock import monotonic
from jobrunner.errors import NO_ANSWER, ServerError, ServerRefused, UnsafeServer, UsageError
from jobrunner.jobs.registry import load_modules
from jobrunner.logs import SafeLogger
from jobrunner.worker.worker_state import WorkerState

_PAUSE_S = 0.5
_log = SafeLogger("jobrunner.worker")
T = TypeVar("T")


def load_jobs(modules: Iterable[str], client: Client, *, is_given: bool) -> Client:
    """Loads the modules of a worker, and returns its client: this one, unless it is the one of the process, and a
    module has configured another, which closes it. Raises ModuleNotLoadable, and UsageError when it `is_given`."""
    before = configured_client()
    load_modules(modules)
    now = configured_client()
    if client is not before or now is None or now is before:
        return client
    if is_given:
        raise UsageError(
            "a module of this worker calls configure(…), which closed the client that the worker was given; import "
            "that module before configure(…) or Worker(…), or give the worker a Client(…) of its own"
        )
    return now


@contextmanager
def tried_once(client: Client) -> Iterator[Broker]:
    """On a cluster a driver that does not wait for a node that is away: each queue there would cost the start of a
    worker the whole time for which its client tries. Of one server, on which all depends, the client's own."""
    if endpoint_of(client).cluster is None:
        yield broker_of(client)
        return
    greeting = check_format(keys_of(client))
    broker = Broker(endpoint_of(client), retry_timeout_s=0, now_ms=broker_of(client).now_ms, greeting=greeting)
    try:
        yield broker
    finally:
        broker.close()


def check_server(client: Client, *, allow_eviction: bool) -> None:
    """Raises UnsafeServer when the server may delete tasks, or is too old for the scripts: each call that reports or
    recovers tasks would fail there. Logs that it cannot be asked for its settings."""
    try:
        server = broker_of(client).run(facts())
    except ServerRefused as error:
        _log.warning("the server's settings cannot be checked", error=str(error))
        return
    if server.is_too_old:
        raise UnsafeServer(
            f"the server is {server.name} {server.version}, which lacks commands that jobrunner's scripts need; use "
            "Redis 6.2 or later, or Valkey"
        )
    if server.evicts and not allow_eviction:
        raise UnsafeServer(
            f"the server's maxmemory-policy is {server.maxmemory_policy!r}: it may delete tasks; "
            "set it to noeviction, or start with --allow-eviction"
        )


def check_rights(client: Client, queues: Collection[str]) -> None:
    """Raises ServerRefused when the user may not do what a worker of these queues does: a script that is denied a
    command ends there, and leaves its work half done. A node of a cluster that is away is not asked."""
    keys, on_cluster = keys_of(client), endpoint_of(client).cluster is not None
    wanted = [keys.queue(name) for name in queues]
    # Each node of a cluster has users of its own. One server is asked once, and then for the keys of each queue.
    calls = [denied(keys, queue) if on_cluster or n == 0 else may_use(queue) for n, queue in enumerate(wanted)]
    with tried_once(client) as broker:
        try:
            replies = broker.run_each(calls)
        except NO_ANSWER:
            if on_cluster:  # all its queues are on nodes that are away
                return
            raise
    for queue, found in zip(wanted, replies, strict=True):
        if isinstance(found, ServerRefused):
            raise found
        if isinstance(found, Denied) and found:
            raise ServerRefused(
                f"the server refused this user: it may not run {found}, as a worker of queue {queue.name!r} does; "
                "a script that is denied a command leaves its work half done: see Roles in docs/security.md"
            )


def once_ready(client: Client, state: WorkerState, step: Callable[[], T]) -> T | None:
    """The result of `step`, which is repeated for as long as the server is loading its data or takes no writes; None
    when the worker was asked to stop before. Raises what `step` raises for another reason."""
    began = monotonic()
    probe = Broker(endpoint_of(client), retry_timeout_s=0)  # the client may try for long, deaf to a signal to stop
    try:
        while not state.is_stopping:
            try:
                _probe(probe)
                found = step()
            except ServerError as error:
                if not _goes_on_by_itself(error):
                    raise
                if not state.waits_for:
                    _log.warning("the worker waits for its server", server=str(endpoint_of(client)), error=str(error))
                state.waits_for = str(error)
                state.wait(_PAUSE_S)
            else:
                if state.waits_for:
                    _log.info("the server answers", waited_s=round(monotonic() - began, 1))
                return found
        return None
    finally:
        state.waits_for = ""
        probe.close()


def _probe(broker: Broker) -> None:
    """Raises ServerError for a server that is to be waited for, and for nothing else: `step` is to meet that."""
    try:
        broker.run(ping())
    except ServerError as error:
        if _goes_on_by_itself(error):
            raise


def _goes_on_by_itself(error: ServerError) -> bool:
    return isinstance(error.__cause__, BusyLoadingError) or refuses_writes(error.__cause__)
