"""Warns a program that waits for a result when no worker serves the queue: it would only seem to hang."""

from collections.abc import Iterable

from jobrunner.broker.calls.stats import MOST_WORKERS, list_workers
from jobrunner.broker.keys import Keys
from jobrunner.broker.shards import whole_queue
from jobrunner.client.operations.operation import Operation, ask
from jobrunner.clock import monotonic
from jobrunner.errors import ServerError
from jobrunner.formatting import listed
from jobrunner.logs import SafeLogger

UNSERVED_AFTER_S = 5.0
"""How long a wait lasts before it looks for workers: a worker started together with the program is registered by
then."""
_AGAIN_AFTER_S = 60.0
_NAMED = 5
_log = SafeLogger("jobrunner.client")
_next_look: dict[str, float] = {}
"""The earliest time of the next look, by prefix: a thousand waiting coroutines cause one look."""


def warn_of_unserved(keys: Keys, queues: Iterable[str]) -> Operation[None]:
    """Logs which of these queues no worker serves, at most once a minute. Errors of the server are ignored."""
    now = monotonic()
    if now < _next_look.get(keys.prefix, 0.0):
        return
    _next_look[keys.prefix] = now + _AGAIN_AFTER_S
    try:
        workers = yield from ask(list_workers(keys))
    except ServerError:  # a user with few rights on the server may not read workers
        return
    told = [said.get("queues", b"").decode("utf-8", "replace") for _, said in workers]
    served = {whole_queue(name) for names in told for name in names.split(",")}
    missing = sorted({whole_queue(queue) for queue in queues} - served)
    if missing and len(workers) < MOST_WORKERS:
        _log.warning(
            "a result is awaited, and no worker serves the queue",
            queues=listed(missing, _NAMED),
            hint=f"start one: jobrunner work MODULE -q {missing[0]}",
        )
