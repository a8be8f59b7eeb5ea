"""The backoff of failed tasks whose job sets none: the setting of their queue."""

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import Keys
from jobrunner.client.queue_settings import read_settings
from jobrunner.clock import monotonic
from jobrunner.errors import ServerError
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Failed
from jobrunner.retry import Backoff

_BELIEVED_S = 1.0
_log = SafeLogger("jobrunner.backoffs")


class QueueBackoffs:
    """The backoffs of queues, read when a task fails that needs one, and cached for a second.

    A queue whose settings cannot be read has the default: a failure is reported in any case.
    """

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._known: dict[str, tuple[float, Backoff]] = {}

    def settle(self, attempt: Attempt, outcome: Failed) -> Failed:
        """The outcome with a delay; its own when it has one."""
        if outcome.delay_s is not None:
            return outcome
        delay_s = self._of(attempt.queue).delay(attempt.retry_count + 1) if outcome.retry else 0.0
        return Failed(outcome.error, delay_s, outcome.retry)

    def _of(self, queue: str) -> Backoff:
        read_at, backoff = self._known.get(queue, (float("-inf"), Backoff()))
        if monotonic() - read_at < _BELIEVED_S:
            return backoff
        try:
            backoff = read_settings(self._broker.run(queues.settings(self._keys.queue(queue)))).backoff
        except ServerError as error:
            _log.warning("the backoff of a queue cannot be read", queue=queue, error=str(error))
            return backoff
        self._known[queue] = monotonic(), backoff
        return backoff
