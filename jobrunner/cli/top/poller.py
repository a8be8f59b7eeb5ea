"""Runs reads and actions of the live view in threads, so that a slow server never blocks the keyboard.

One thread reads, another one acts, so that requeueing 50 000 tasks does not freeze the view.
"""

import logging
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from queue import SimpleQueue

from jobrunner.broker.broker import run_each_or_errors
from jobrunner.broker.calls import tasks as task_calls
from jobrunner.cli.events import note
from jobrunner.cli.top.state import Screen, ServerRequest, lists_groups, settled
from jobrunner.client.client import Client, broker_of, encryption_of, keys_of
from jobrunner.client.encryption import decrypted_record
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.task import TaskRef, cancel, check_place
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError, ServerUnavailable, UsageError
from jobrunner.etl.graph import end_queues, published
from jobrunner.inspector.attempts import with_beginnings
from jobrunner.inspector.error_groups import ErrorGroups, read_groups
from jobrunner.inspector.live_rates import LiveRates, live_rates_of
from jobrunner.inspector.live_snapshot import LiveSnapshot, look
from jobrunner.inspector.search import matching, search
from jobrunner.inspector.search_filter import Filter
from jobrunner.inspector.snapshot import waiting_once
from jobrunner.inspector.task_rows import first_rows

Change = Callable[[Screen], Screen]
"""A change of the screen by an answer of the server, applied to the present screen."""
TASKS_SHOWN = 500
"""Most tasks read of each state: the next to run first; of dead tasks the latest."""

_GROUPS_KEPT_S = 5.0
"""Seconds before error groups are read again: a queue may have some hundred groups, too many bytes for each refresh."""


def groups_of(client: Client, seen: LiveSnapshot) -> ErrorGroups:
    """The groups of errors of all queues, in one round trip. Raises ServerError."""
    return read_groups(client, seen.with_failures)


def ends_of(client: Client) -> frozenset[str]:
    """The queues of pipelines that need no worker; empty while the cluster node with this list is unreachable. One
    round trip. Raises ServerError."""
    (graphs,) = run_each_or_errors(broker_of(client), [published(keys_of(client))])
    if isinstance(graphs, ServerUnavailable):
        return frozenset()
    if isinstance(graphs, JobrunnerError):
        raise graphs
    return end_queues(graphs.values())


class ServerPoller:
    """Lifecycle: `start`, then `read` and `act` at any time; answers arrive in `answers`; `stop`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._live_rates: LiveRates | None = None
        self._groups: ErrorGroups | None = None
        self._ends: frozenset[str] = frozenset()
        self._groups_until_s = 0.0
        self._reads = SimpleQueue[Callable[[], Change] | None]()
        self._acts = SimpleQueue[Callable[[], Change] | None]()
        # A failed action becomes a message, which stays until the next key: the next read clears errors of reads only.
        acts, reads = (self._acts, lambda error: _told(f"failed: {error}")), (self._reads, _trouble)
        self._acting = threading.Thread(target=self._serve, args=acts, name="top-acts", daemon=True)
        self._threads = [threading.Thread(target=self._serve, args=reads, name="top-looks", daemon=True), self._acting]
        self.answers = SimpleQueue[Change]()
        self.bell, self._rope = os.pipe()
        """A pipe that is readable when there is an answer."""
        self.reading = False
        self._at_hand: tuple[str, str] | None = None
        """The current action and its target, until the audit log has them."""
        self._noting = threading.Lock()

    def start(self) -> None:
        """Starts the threads."""
        # Without a handler, a warning about a failed audit log entry would go to stderr, over the view.
        logging.getLogger("jobrunner.audit").addHandler(logging.NullHandler())
        os.set_blocking(self._rope, False)
        for thread in self._threads:
            thread.start()

    def read(self, screen: Screen) -> None:
        """Reads the overview and the content of the page."""
        self.reading = True
        self._reads.put(lambda: self._look(screen))

    def act(self, wish: ServerRequest) -> None:
        """Queues an action; it runs after the current one."""
        self._acts.put(lambda: self._act(wish))

    def break_off(self) -> None:
        """Writes an action without an answer yet into the audit log, as nothing waits for the answer any more."""
        self._note("broke off: it may be done, or a part of it")

    def stop(self, timeout_s: float | None = None) -> bool:
        """Waits for the current action; returns False when it still runs after `timeout_s`."""
        self._reads.put(None)
        self._acts.put(None)
        self._acting.join(timeout_s)
        return not self._acting.is_alive()

    def _serve(self, asked: "SimpleQueue[Callable[[], Change] | None]", failed: Callable[[str], Change]) -> None:
        while (one := asked.get()) is not None:
            try:
                with waiting_once() if asked is self._reads else nullcontext():
                    change = one()
            except JobrunnerError as error:
                change = failed(str(error))
            except Exception as error:  # damaged data: without this thread the view would freeze
                change = failed(f"{type(error).__name__}: {error}")
            self.answers.put(change)
            try:
                os.write(self._rope, b".")
            except BlockingIOError:  # the pipe is full, so the reader wakes anyway
                continue

    def _look(self, screen: Screen) -> Change:
        try:
            seen = look(self._client)
            live_rates = self._live_rates = self._live_rates or live_rates_of(self._client)
            live_rates.add(seen)
            rates = {queue.name: live_rates.rates(queue.name) for queue in seen.queues}
            total = live_rates.total()
            if screen.page == "tasks" and screen.tasks is None:
                self._groups_until_s = 0.0  # a list of dead tasks opens with fresh groups
            groups = self._known_groups(seen)
            page = self._page(replace(screen, groups=groups))
        finally:
            self.reading = False
        ends, trouble = self._ends, "; ".join(seen.problems)
        return lambda now: settled(
            page(replace(now, look=seen, rates=rates, total=total, groups=groups, ends=ends, trouble=trouble))
        )

    def _known_groups(self, seen: LiveSnapshot) -> ErrorGroups:
        if self._groups is None or monotonic() >= self._groups_until_s:
            self._groups_until_s = monotonic() + _GROUPS_KEPT_S
            self._groups, self._ends = groups_of(self._client, seen), ends_of(self._client)
        return self._groups

    def _page(self, asked: Screen) -> Change:
        if asked.page == "tasks" and lists_groups(asked):
            return lambda now: replace(now, tasks=()) if _same_list(now, asked) else now
        if asked.page == "tasks" and asked.queue is not None and asked.state == "dead" and asked.group:
            return self._tasks_of_group(asked, asked.queue, asked.group)
        if asked.page == "tasks" and asked.queue is not None:
            workers = asked.look.workers if asked.look else ()
            rows = first_rows(self._client, asked.queue, [asked.state], count=TASKS_SHOWN).get(asked.state, [])
            found = tuple(with_beginnings(rows, workers))
            return lambda now: replace(now, tasks=found) if _same_list(now, asked) else now
        if asked.page == "task" and asked.task is not None:
            record = broker_of(self._client).run(task_calls.show(keys_of(self._client), asked.task, queue=asked.queue))
            if record is not None:
                record = decrypted_record(encryption_of(self._client), record, fetches=False)
            hides = self._client.redaction()
            return lambda now: (
                replace(now, record=record, gone=record is None, redaction=hides) if now.task == asked.task else now
            )
        return lambda now: now

    def _tasks_of_group(self, asked: Screen, queue: str, group: str) -> Change:
        wanted = Filter(queue=queue, state="dead", group=group)
        found = search(self._client, wanted, limit=TASKS_SHOWN)
        note = f"of the last {found.searched:,} dead" if found.timed_out else ""
        return lambda now: replace(now, tasks=tuple(found.tasks), note=note) if _same_list(now, asked) else now

    def _act(self, wish: ServerRequest) -> Change:
        self._at_hand = _audited(wish)
        try:
            outcome = self._carried_out(wish)
        except UsageError:  # before anything was sent
            self._at_hand = None
            raise
        except Exception:
            self.break_off()
            raise
        self._note(outcome)
        self._groups_until_s = 0.0
        return _told(outcome)

    def _note(self, outcome: str) -> None:
        with self._noting:
            if self._at_hand is not None:
                note(self._client, *self._at_hand, outcome)
                self._at_hand = None

    def _carried_out(self, wish: ServerRequest) -> str:
        """Runs the action; returns the outcome."""
        queue = self._client.queue(wish.queue)
        if wish.act == "pause":
            queue.pause()
            return f"queue {wish.queue} is paused"
        if wish.act == "resume":
            queue.resume()
            return f"queue {wish.queue} is open"
        if wish.act == "requeue all":
            return f"requeued {queue.requeue_dead():,} of queue {wish.queue}"
        if wish.act == "requeue group":
            done = sum(
                queue.requeue_dead([place.id for place in some])
                for some in matching(self._client, Filter(queue=wish.queue, state="dead", group=wish.id))
                if some
            )
            return f"requeued {done:,} of queue {wish.queue}"
        if wish.act == "requeue":
            done = queue.requeue_dead([wish.id])
            return "requeued" if done else f"task {wish.id} is not dead any more"
        check_place(wish.id, wish.queue)
        place = TaskRef(keys_of(self._client), encryption_of(self._client), wish.id, wish.queue)
        # A task that died while the question was open is kept: cancelling it would delete it with its errors.
        cancelled = run_operation(broker_of(self._client), cancel(place, leave="dead"))
        return "cancelled, or asked to stop" if cancelled else f"task {wish.id} is over already, or dead"


def _audited(wish: ServerRequest) -> tuple[str, str]:
    """The action and its target in the form of the audit log."""
    if wish.act in ("pause", "resume"):
        return f"queue.{wish.act}", wish.queue
    if wish.act == "requeue all":
        return "dead.requeue", wish.queue
    if wish.act == "requeue group":
        return "dead.requeue", f"{wish.queue} group={wish.id}"
    return f"task.{wish.act}", f"{wish.queue} {wish.id}"


def _same_list(now: Screen, asked: Screen) -> bool:
    return (now.queue, now.state, now.group) == (asked.queue, asked.state, asked.group)


def _told(message: str) -> Change:
    return lambda now: replace(now, message=message)


def _trouble(message: str) -> Change:
    return lambda now: replace(now, trouble=message)
