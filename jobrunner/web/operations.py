"""Bulk operations on tasks in the background, with progress that any process and any page can read.

The progress of an operation is stored in Redis and expires a day after its last heartbeat. The operation runs in a
thread of the process that received the request. When that process dies, the operation does not resume: its heartbeat
grows old and it counts as interrupted. Every step is atomic, and starting the operation again does the rest, as changed
tasks no longer match.
"""

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

import msgspec

from jobrunner.broker.call import Call, command, text_fields
from jobrunner.broker.keys import check_name
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.operations.dead_and_history import note_changes
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.task import Leave, cancel_all, delete_all, requeue_all
from jobrunner.clock import sleep, unix_ms
from jobrunner.errors import JobrunnerError
from jobrunner.inspector import audit
from jobrunner.inspector.search import EXAMINED_AT_ONCE, matching, total_of
from jobrunner.inspector.search_filter import Filter

CHANGES = ("requeue", "cancel", "delete")
"""The possible changes of many tasks."""
_OPEN = ("pending", "waiting", "scheduled")
"""The states of tasks that an operation cancels when no state was chosen. Without `dead`, as cancelling a dead task
deletes it."""
_KEPT_MS = 86_400_000
_SILENT_MS = 30_000
_BEAT_S = 5.0
_TRIES = 720
"""Tries to record a failure: for an hour."""
_AT_A_TIME = 2
_log = logging.getLogger("jobrunner.web")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The progress of an operation.

    `state`: queued, running, done, cancelled, failed, or interrupted (its process died).
    """

    id: str
    action: str
    who: str
    wanted: Filter
    """The filter: the operation covers all tasks that match."""
    state: str
    total: int
    looked: int
    """The number of examined tasks, of `total`."""
    done: int
    refused: int
    """Tasks that matched but could not be changed: another client was first, or a worker holds them."""
    began_ms: float
    ended_ms: float
    error: str
    rate: float
    """Tasks that become due per second; 0: all at once."""

    @property
    def is_over(self) -> bool:
        """Whether the operation has ended."""
        return self.state not in ("queued", "running")


class Operations:
    """Runs the operations of one process, at most two at a time; further operations are queued."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turns = threading.BoundedSemaphore(_AT_A_TIME)

    def start(self, action: str, *, who: str, wanted: Filter, rate: float | None = None) -> str:
        """Starts an operation on all tasks that match `wanted`; returns its id. `rate`: tasks per second that become
        due when they are requeued."""
        operation_id = secrets.token_hex(8)
        fields: dict[str, Any] = {
            "action": action,
            "who": who,
            "state": "queued",
            "total": sum(total_of(self._client, one) for one in _searches(action, wanted)),
            "began_ms": unix_ms(),
            "wanted": msgspec.json.encode(asdict(wanted)),
        }
        if rate:
            fields["rate"] = rate
        broker_of(self._client).run_many(_begin(self._client, operation_id, fields))
        step_ms = 1000 / rate if rate and action == "requeue" else 0.0
        run = _OperationRun(self._client, operation_id, action, who, wanted, step_ms)
        threading.Thread(target=self._take_turn, args=(run,), name="jobrunner-operation", daemon=True).start()
        return operation_id

    def _take_turn(self, run: "_OperationRun") -> None:
        while not self._turns.acquire(timeout=_BEAT_S):
            if run.is_cancelled_while_it_waits():
                return
        try:
            failure = run.carry_out()
        finally:
            self._turns.release()
        if failure is not None:
            run.record_failure(failure)


class _OperationRun:
    """A running operation: works piece by piece, and records its progress after each."""

    def __init__(
        self, client: Client, operation_id: str, action: str, who: str, wanted: Filter, step_ms: float
    ) -> None:
        self._client, self._id, self._action, self._who = client, operation_id, action, who
        self._wanted, self._step_ms = wanted, step_ms
        self._looked = self._done = self._refused = 0
        self._changed: Counter[str] = Counter()
        """Changed tasks by queue, for the events."""

    def is_cancelled_while_it_waits(self) -> bool:
        """Renews the heartbeat of a queued operation. Returns whether a user cancelled it; then it is recorded as
        cancelled."""
        try:
            if not self._say("queued"):
                return False
            self._say("cancelled", ended_ms=unix_ms())
        except JobrunnerError:
            return False  # the next heartbeat may succeed
        self._note("cancelled")
        return True

    def carry_out(self) -> Exception | None:
        """Runs the operation to its end. Returns the error that ended it, which the caller records."""
        try:
            # A user may have cancelled it since the last heartbeat of its wait; then it changes nothing.
            state = "cancelled" if self._say("running") or self._go_through() else "done"
            self._say(state, ended_ms=unix_ms())
            self._note(state)
        except Exception as error:
            _log.exception("operation %s ended with an error", self._id)
            return error
        return None

    def record_failure(self, error: Exception) -> None:
        """Records the end by an error, as soon as the server answers: the error may be that the server is
        unreachable."""
        ended_ms = unix_ms()
        for pause_s in (*[_BEAT_S] * _TRIES, None):
            try:
                self._say("failed", ended_ms=ended_ms, error=str(error)[:500])
                break
            except JobrunnerError:
                if pause_s is None:
                    _log.warning("operation %s is shown as interrupted: the server is away", self._id)
                    return
                sleep(pause_s)
        self._note(f"failed: {error}")

    def _note(self, state: str) -> None:
        """Writes the filter and the counts into the audit log, which outlives the page of the operation, and the events
        of changed tasks."""
        try:
            note_events(self._client, self._action, self._changed, self._wanted.state)
            audit.write(
                self._client,
                who=self._who,
                role="",
                action=f"operation.{self._action}",
                what=filter_words(self._wanted) or "all tasks",
                outcome=f"{state}: {self._done:,} changed, {self._refused:,} not (operation {self._id})",
                address="",
            )
        except JobrunnerError as error:  # the outcome of the operation stays the same
            _log.warning("the end of operation %s is not in the audit log: %s", self._id, error)

    def _go_through(self) -> bool:
        """Changes all matching tasks. Returns whether a user cancelled the operation."""
        for state, piece in self._pieces():
            for queue, some in groupby(sorted(piece), key=lambda one: one[0]):
                ids = [task_id for _, task_id in some]
                changed = self._change(queue, ids, state)
                self._changed[queue] += changed
                self._done, self._refused = self._done + changed, self._refused + len(ids) - changed
            self._looked += EXAMINED_AT_ONCE
            if self._say("running"):
                return True
        return False

    def _change(self, queue: str, ids: Sequence[str], found: str) -> int:
        if not self._step_ms:
            return change(self._client, self._action, queue, ids, found=found)
        start_ms = self._done * self._step_ms
        requeue = requeue_all(keys_of(self._client), queue, ids, start_ms=start_ms, step_ms=self._step_ms)
        return run_operation(broker_of(self._client), requeue)

    def _pieces(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """The searched state with queues and ids of matching tasks, for each piece of examined tasks."""
        for wanted in _searches(self._action, self._wanted):
            for found in matching(self._client, wanted, self._client.redaction()):
                yield wanted.state, [(place.queue, place.id) for place in found]

    def _say(self, state: str, **more: Any) -> bool:
        """Records the progress; returns whether a user asked the operation to stop."""
        fields = {
            "state": state, "looked": self._looked, "done": self._done, "refused": self._refused,
            "beat_ms": unix_ms(), **more,
        }  # fmt: skip
        place = keys_of(self._client).operation(self._id)
        words = [word for pair in fields.items() for word in pair]
        asked = broker_of(self._client).run_many([
            command("HSET", place, *words, read=int),
            command("PEXPIRE", place, _KEPT_MS, read=int),  # again, as it may run or be queued for longer
            command("HGET", place, "cancel", read=bool),
        ])  # fmt: skip
        return bool(asked[2])


def _searches(action: str, wanted: Filter) -> list[Filter]:
    """The filters of the searches that find the tasks of an operation; each is searched in turn."""
    return [replace(wanted, state=one) for one in _OPEN] if action == "cancel" and not wanted.state else [wanted]


def texts_of(wanted: Filter) -> dict[str, str]:
    """The conditions of a filter as fields of the task list's form; a `job` that begins with = is a whole name."""
    return {
        "queue": wanted.queue,
        "state": wanted.state,
        "job": f"={wanted.type}" if wanted.type else wanted.job,
        "error": wanted.error,
        "param": wanted.param,
        "group": wanted.group,
        "id": wanted.id,
        "since": _instant_text(wanted.since),
        "until": _instant_text(wanted.until),
    }


def _instant_text(at: datetime | None) -> str:
    return "" if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z").replace(".000Z", "Z")


def filter_fields(wanted: Filter) -> dict[str, str]:
    """The conditions of a filter that are not empty."""
    return {name: text for name, text in texts_of(wanted).items() if text}


def filter_words(wanted: Filter) -> str:
    """The conditions of a filter on one line: `queue=mail state=dead error=refused`."""
    return " ".join(f"{name}={text}" for name, text in filter_fields(wanted).items())


def change(client: Client, action: str, queue: str, ids: Sequence[str], *, found: str = "") -> int:
    """Applies one of `CHANGES` to tasks of a queue; returns the number of changed tasks. `found`: the state in which
    they were found, if known. Tasks found dead are deleted or cancelled only if they still are dead, as another client
    may have requeued them; tasks found in another state are not cancelled if they died since, as that would delete
    them."""
    keys = keys_of(client)
    if action == "cancel":
        return run_operation(broker_of(client), cancel_all(keys, queue, ids, leave=left_of(found)))
    if action == "delete":
        return run_operation(broker_of(client), delete_all(keys, queue, ids, dead_only=found == "dead"))
    return run_operation(broker_of(client), requeue_all(keys, queue, ids))


def left_of(found: str) -> Leave:
    """The tasks that a cancellation must leave alone, by the state in which they were found; '' when unknown."""
    return "alive" if found == "dead" else "dead" if found in _OPEN else ""


def note_events(client: Client, action: str, changed: Mapping[str, int], state: str = "") -> None:
    """Writes the events of tasks that `change` requeued or deleted; see `note_changes`."""
    run_operation(broker_of(client), note_changes(keys_of(client), action, changed, state))


def read_operation(client: Client, operation_id: str) -> Operation | None:
    """Reads the progress of an operation; None for an unknown or expired id."""
    check_name(operation_id, "operation")
    fields = broker_of(client).run(command("HGETALL", keys_of(client).operation(operation_id), read=text_fields))
    return _operation(operation_id, fields, unix_ms()) if fields else None


def ask_to_stop(client: Client, operation_id: str) -> bool:
    """Asks an operation to end after its current piece. Returns False when it has ended or is unknown."""
    found = read_operation(client, operation_id)
    if found is None or found.is_over:
        return False
    broker_of(client).run(command("HSET", keys_of(client).operation(operation_id), "cancel", 1, read=int))
    return True


def _begin(client: Client, operation_id: str, fields: dict[str, Any]) -> list[Call[Any]]:
    place = keys_of(client).operation(operation_id)
    words = [word for pair in {**fields, "beat_ms": unix_ms()}.items() for word in pair]
    return [
        command("HSET", place, *words, read=int),
        command("PEXPIRE", place, _KEPT_MS, read=int),
    ]


def _operation(operation_id: str, fields: dict[str, str], now_ms: float) -> Operation:
    def number(name: str) -> float:
        return float(fields.get(name, 0))

    state = fields.get("state", "queued")
    is_silent = now_ms - number("beat_ms") > _SILENT_MS
    return Operation(
        id=operation_id,
        action=fields.get("action", ""),
        who=fields.get("who", ""),
        wanted=msgspec.json.decode(fields.get("wanted", "{}"), type=Filter),
        state="interrupted" if state in ("queued", "running") and is_silent else state,
        total=int(number("total")),
        looked=min(int(number("looked")), int(number("total"))),
        done=int(number("done")),
        refused=int(number("refused")),
        began_ms=number("began_ms"),
        ended_ms=number("ended_ms"),
        error=fields.get("error", ""),
        rate=number("rate"),
    )
