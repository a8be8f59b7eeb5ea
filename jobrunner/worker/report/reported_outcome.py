"""Turns the outcome of an attempt into the outcome that is reported.

A task whose job this worker does not know is released, a failed task without a delay of its own gets the backoff of its
queue, and contents are encrypted before they become calls: results, payloads of moves, and of fan-out items.
"""

import math
import random

from msgspec.structs import replace

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.encryption import decrypted_payload, result_context
from jobrunner.client.settings_hash import read_settings
from jobrunner.clock import monotonic
from jobrunner.encryption.cipher import EncryptionContext, PayloadEncryption
from jobrunner.errors import ServerError
from jobrunner.logs import SafeLogger
from jobrunner.loop import Complaints
from jobrunner.outcome import Deferred, Failed, FannedOut, Moved, Outcome, Succeeded, Unknown
from jobrunner.retry import Backoff
from jobrunner.worker.report.report_calls import child_id

_SHORTEST_S = 1.0
_LONGEST_S = 30.0
_SHARE = 0.5
_GRID_S = 0.5
"""Due times are rounded to this grid, so that a worker reserves and releases many such tasks in one call."""
_LOG_EVERY_S = 60.0
_MOST_NAMES = 1000
_BELIEVED_S = 1.0
_log = SafeLogger("jobrunner.worker")


class UnknownJobs:
    """The outcome of tasks whose job this worker does not know: released for `grace_s` seconds since any worker first
    met the task, then failed. Logs a line for each job and queue a minute.

    During a rolling deploy, or where two services share a queue, another worker knows such a job. The task goes back
    with a delay that grows with its age, and spends no attempt. It fails only when no worker took it for `grace_s`.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._counted: dict[tuple[str, str], int] = {}
        self._logged_at: dict[tuple[str, str], float] = {}
        self._unread: tuple[float, str] = (-_LOG_EVERY_S, "")
        """When a payload could not be read last, and what an operator should know of it."""

    def problem(self) -> str:
        """The payloads that this worker could not read within the last minute, and why; '' without any. Any thread may
        call it."""
        at, text = self._unread
        return text if monotonic() - at < _LOG_EVERY_S else ""

    def reported(self, attempt: Attempt, outcome: Unknown) -> Deferred | Failed:
        """Returns the outcome to report for an attempt that this worker could not run. A task whose payload store is
        away, or whose key this worker lacks, waits in the same way."""
        now_ms = attempt.deadline_ms - attempt.keepalive_ms
        age_s = max((now_ms - attempt.unknown_since_ms) / 1000, 0.0) if attempt.unknown_since_ms else 0.0
        if age_s >= self._grace_s:
            return Failed(outcome.error, is_unbegun=True)
        if outcome.is_unreadable:
            job = f"of job {attempt.type!r} in queue {attempt.queue}" if attempt.type else f"in queue {attempt.queue}"
            self._unread = (monotonic(), f"hands back tasks {job}, as it cannot read them: {outcome.error}")
        self._log_task(attempt, outcome)
        delay_s = min(max(age_s * _SHARE, _SHORTEST_S), _LONGEST_S) * random.uniform(0.5, 1.0)
        due_s = math.ceil((now_ms / 1000 + delay_s) / _GRID_S) * _GRID_S
        return Deferred(min(due_s - now_ms / 1000, self._grace_s - age_s))

    def _log_task(self, attempt: Attempt, outcome: Unknown) -> None:
        if len(self._logged_at) > _MOST_NAMES:
            self._logged_at.clear()
            self._counted.clear()
        named = (attempt.queue, attempt.type)
        self._counted[named] = self._counted.get(named, 0) + 1
        now = monotonic()
        if now - self._logged_at.get(named, -_LOG_EVERY_S) < _LOG_EVERY_S:
            return
        self._logged_at[named] = now
        what = {"job": attempt.type} if attempt.type else {}
        message = (
            "this worker does not know the job: its tasks are handed back, for another worker; where no deploy rolls, "
            "load its module here, or give the services queues of their own"
        )
        if outcome.is_unreadable:
            message, what = "payloads cannot be read: tasks are handed back", {**what, "error": outcome.error}
        _log.warning(message, **what, queue=attempt.queue, tasks=self._counted.pop(named), task=attempt.id)


class QueueBackoffs:
    """The backoffs of queues, for failed tasks whose job sets none: read when such a task fails, cached for a second.

    When the settings of a queue cannot be read, the last known backoff counts, or the default: a failure is reported in
    any case, and the fetch loop does not wait for a silent server with each failure.
    """

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._known: dict[str, tuple[float, Backoff]] = {}
        self._complaints = Complaints()

    def reported(self, attempt: Attempt, outcome: Failed) -> Failed:
        """The outcome with a delay: its own, or by the queue's backoff."""
        if outcome.delay_s is not None:
            return outcome
        delay_s = self._of(attempt.queue).delay(attempt.retry_count + 1) if outcome.retry else 0.0
        return replace(outcome, delay_s=delay_s)

    def _of(self, queue: str) -> Backoff:
        read_at, backoff = self._known.get(queue, (float("-inf"), Backoff()))
        if monotonic() - read_at < _BELIEVED_S:
            return backoff
        try:
            backoff = read_settings(self._broker.run(queues.settings(self._keys.queue(queue)))).backoff
        except ServerError as error:
            if self._complaints.may_tell(queue):
                _log.warning("the backoff of a queue cannot be read", queue=queue, error=str(error))
        self._known[queue] = monotonic(), backoff
        return backoff


def encrypted_outcome(encryption: PayloadEncryption, keys: Keys, attempt: Attempt, outcome: Outcome) -> Outcome:
    """The outcome with encrypted contents. Raises EncryptionError for items made of a payload that cannot be
    decrypted."""
    queue = keys.queue(attempt.queue)
    if isinstance(outcome, Succeeded):
        return Succeeded(encryption.encrypt_result(outcome.result, result_context(attempt, queue)))
    if isinstance(outcome, Moved):
        to = keys.queue(outcome.queue)
        return _encrypted_move(encryption, attempt, outcome, queue, to, attempt.id, attempt.then or b"")
    if isinstance(outcome, FannedOut):
        return FannedOut(
            children=tuple(
                _encrypted_move(
                    encryption, attempt, child, queue, keys.queue(child.queue),
                    child_id(attempt, place, queue.tag), b"",
                )
                for place, child in enumerate(outcome.children)
            )
        )  # fmt: skip
    return outcome


def _encrypted_move(
    encryption: PayloadEncryption, attempt: Attempt, outcome: Moved, queue: QueueKeys, to: QueueKeys,
    task_id: str, then: bytes,
) -> Moved:  # fmt: skip
    """Encrypts the payload for queue `to`, bound to the id and `then` of the task. A move without a payload of its own
    takes the payload of the attempt."""
    payload, encoding, after = outcome.payload, outcome.encoding, b""
    if payload is None or then:
        found = decrypted_payload(encryption, queue, attempt)
        if payload is None:
            payload, encoding = found.raw, found.encoding.decode("utf-8", "replace")
        if then:
            after = found.after or b""
    headers = attempt.headers if outcome.headers is None else outcome.headers
    context = EncryptionContext(task_id, attempt.type, to.tag, to.name, headers or b"", then)
    stored, stored_as = encryption.encrypt(payload, encoding, context, after=after)
    return replace(outcome, payload=stored, encoding=stored_as)
