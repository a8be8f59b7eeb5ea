"""The wait of a starting worker for a server that is loading its data, or has run a script for long.

Such a server is the right one and answers again by itself, after minutes where it has much to load. A server that does
not answer at all may be a wrong address: then the worker ends, and its supervisor or service manager starts another.
"""

from collections.abc import Callable
from typing import TypeVar

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.server import ping
from jobrunner.broker.redis_errors import BusyLoadingError
from jobrunner.client.client import Client, endpoint_of
from jobrunner.clock import monotonic
from jobrunner.errors import ServerError
from jobrunner.logs import SafeLogger
from jobrunner.worker.worker_state import WorkerState

_PAUSE_S = 0.5
_log = SafeLogger("jobrunner.worker")
T = TypeVar("T")


def once_loaded(client: Client, state: WorkerState, step: Callable[[], T]) -> T | None:
    """The result of `step`, which is repeated for as long as the server is loading its data; None when the worker was
    asked to stop before. Raises what `step` raises for another reason."""
    began = monotonic()
    probe = Broker(endpoint_of(client), retry_timeout_s=0)  # the client may try for long, deaf to a signal to stop
    try:
        while not state.is_stopping:
            try:
                _probe(probe)
                found = step()
            except ServerError as error:
                if not _is_loading(error):
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
    """Raises ServerError for a server that is loading, and for nothing else: `step` is to meet that."""
    try:
        broker.run(ping())
    except ServerError as error:
        if _is_loading(error):
            raise


def _is_loading(error: ServerError) -> bool:
    return isinstance(error.__cause__, BusyLoadingError)
