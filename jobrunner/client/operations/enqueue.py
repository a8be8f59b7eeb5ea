"""From pushed items to tasks, to the calls that enqueue them, and from the replies to what became of them."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from jobrunner.broker.call import SLICE_BYTES, Call, sliced
from jobrunner.broker.calls import new_tasks, queues
from jobrunner.broker.confirmed_writes import OF_SOME
from jobrunner.broker.keys import Keys, QueueKeys, check_is_text, check_own_id
from jobrunner.broker.shards import in_partition_of, is_shard, shard_names, whole_queue
from jobrunner.client.encryption import encrypted_task, encrypted_tasks
from jobrunner.client.item import Item, check_partition, write_headers, write_payload
from jobrunner.client.operations import capacity
from jobrunner.client.operations.operation import InThread, Operation
from jobrunner.client.operations.routing import Routes
from jobrunner.client.outgoing import sending_of
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.errors import (
    InvalidName,
    JobrunnerError,
    OutcomeUnknown,
    ServerUnavailable,
    UsageError,
)
from jobrunner.formatting import describe
from jobrunner.option_names import check_options
from jobrunner.payload_store.stored_payloads import StoredPayloads
from jobrunner.retry import lease_ms, milliseconds
from jobrunner.settings import DEFAULT_RESULT_LIMIT, Duration, check_whole
from jobrunner.task import Task, check_priority, check_size, due, new_id


class QueueRef:
    """A queue by name, without a connection."""

    def __init__(
        self,
        keys: Keys,
        encryption: PayloadEncryption | None,
        name: str,
        payload_limit: int,
        result_limit: int = DEFAULT_RESULT_LIMIT,
        routes: Routes | None = None,
    ) -> None:
        check_is_text(name)
        self.name = name
        self.keys = keys.queue(name)
        self.all_keys = keys
        self.encryption = encryption
        self.payload_limit = payload_limit
        self.result_limit = result_limit
        self.whole_name = whole_queue(name)
        """The name of the queue that people know."""
        self.is_shard = is_shard(name)
        self.routes = None if self.is_shard else routes
        """What the client knows of shards; None where there are none."""
        self._shards: dict[str, QueueRef] = {name: self}
        self.ready: list[QueueRef] = []
        """Shards that gave all that was reserved from them; those at the front come next."""
        self.balancer: Any = None
        """Lets slices follow the load when this program reserves (see shard_leases.py)."""
        self.turn = 0
        self.targets: set[str] = set()
        """Full names of queues that items may move to, as far as that was looked up."""

    def shard(self, name: str) -> "QueueRef":
        """A shard of this queue by its name, which may be the queue's own."""
        if name not in self._shards:
            self._shards[name] = QueueRef(
                self.all_keys, self.encryption, name, self.payload_limit, self.result_limit
            )  # fmt: skip
        return self._shards[name]

    def first_shards(self, count: int) -> "list[QueueRef]":
        """The first shards of this queue, itself at the front."""
        return [self.shard(name) for name in shard_names(self.name, count)]

    def neighbour(self, name: str) -> QueueKeys:
        """The keys of another queue of the same pipeline, by short or full name: of the shard in the same partition.
        Raises UsageError for any other."""
        if not isinstance(name, str):
            raise InvalidName(f"queue name {describe(name)} is not allowed: give a text")
        full = name if "/" in name or "/" not in self.name else f"{self.keys.tag}/{name}"
        keys = self.all_keys.queue(full if "@" in full else in_partition_of(self.name, full))
        if keys.tag != self.keys.tag:
            raise UsageError(
                f"queue {full!r} is not of pipeline {whole_queue(self.keys.tag)!r}: a move is atomic within one only"
            )
        return keys

    def task(self, item: Item) -> Task:
        """The task that is enqueued for an item. Raises UsageError."""
        if self.is_shard:
            raise InvalidName(
                f"queue {self.name!r} is a shard: push to {self.whole_name!r}, whose client chooses the shard"
            )
        delay_ms, at_ms = due(item.in_, item.at)
        raw, encoding = write_payload(item.payload, self.payload_limit)
        if item.max_attempts is not None:
            check_whole(item.max_attempts, "max_attempts", minimum=0)
        if item.max_stalled is not None:
            check_whole(item.max_stalled, "max_stalled", minimum=0)
        return Task(
            id=new_id(self.keys.tag) if item.id is None else check_own_id(item.id, self.keys.tag),
            queue=self.name,
            payload=raw,
            encoding=encoding,
            priority=None if item.priority is None else check_priority(item.priority),
            delay_ms=delay_ms,
            at_ms=at_ms,
            keepalive_ms=lease_ms(item.keepalive),
            max_attempts=item.max_attempts,
            max_stalled=item.max_stalled,
            expires_in_ms=None if item.expires_in is None else milliseconds(item.expires_in, "expires_in"),
            key=None if item.partition is None else check_partition(item.partition),
            headers=None if item.headers is None else write_headers(item.headers),
            sending="" if item.id is None else sending_of(self.name, item.id),
        )


BATCH = 1000
_STORED_AT_ONCE = 256
_TRIES = 20
"""How often a payload is encrypted again for the task whose place it takes; more than once only in a race."""


def enqueue_call(keys: Keys, encryption: PayloadEncryption | None, sent: list[Task], limit: int) -> Call[Any]:
    """The call that enqueues tasks of one queue, or one unique task; with keys, encrypted. Raises PayloadTooLarge."""
    for task in sent:
        if len(task.payload) > limit:
            check_size(task.payload, limit)
    queue = keys.queue(sent[0].queue)
    if encryption is None and sent[0].lock is None:
        is_one = len(sent) == 1 and new_tasks.is_plain(sent[0])
        return new_tasks.enqueue_plain(queue, sent[0]) if is_one else new_tasks.enqueue(queue, sent)
    if encryption is None:
        return new_tasks.enqueue_unique(queue, sent[0])
    if sent[0].lock is not None:
        return _unique_call(queue, encryption, sent[0], sent[0].id, queue)
    return new_tasks.enqueue(queue, encrypted_tasks(encryption, queue, sent))


def _unique_call(
    queue: QueueKeys, encryption: PayloadEncryption | None, task: Task, owner_id: str, owner_queue: QueueKeys
) -> Call[Any]:
    """Enqueues a unique task. Its payload is encrypted for the task with that id in `owner_queue`: this task, or the
    task that it replaces."""
    if encryption is None:
        return new_tasks.enqueue_unique(queue, task)
    encrypted = encrypted_task(encryption, owner_queue, task, owner_id=owner_id)
    if encrypted is task:
        return new_tasks.enqueue_unique(queue, task)
    return new_tasks.enqueue_unique(queue, encrypted, bound_to=(owner_id, owner_queue.name))


Placed = tuple[str, bool]
"""The id of the task that is there after a call, and whether the call made it."""


def placed(task: Task, reply: Any) -> Placed:
    """Maps the reply of an enqueue to (id, is_new). Raises DuplicateTask for a clash that should."""
    if task.lock is None:
        return task.id, is_new(task, reply[0])
    word, task_id = reply[:2]
    if word == "clash" and task.lock.on_clash == "raise":
        raise new_tasks.locked(whole_queue(task.queue), task_id)
    return str(task_id), word == "new" or (word == "exists" and is_new(task, said=False))


def is_new(task: Task, said: bool) -> bool:
    """Whether a task is new that the server says so of. An id that jobrunner made is there already only when it was
    sent before and the reply was lost, so it is."""
    return said or not task.sending


def no_task(sent: object) -> UsageError:
    """The error for what is given to `Client.enqueue` and is no Task."""
    named = getattr(sent, "__name__", "") if hasattr(sent, "definition") else sent
    name = named if isinstance(named, str) and named.isidentifier() else "add"
    return UsageError(
        f"enqueue({describe(sent)}): a client sends Tasks; a job sends itself: {name}.enqueue(…), "
        "SendMail(…).enqueue(), or from the command line jobrunner enqueue NAME; "
        "for a payload without a job: client.queue(…).push(…)"
    )


def check_one_task(sent: object, more: Sequence[object], unknown: Iterable[str], where: str) -> None:
    """Raises the error for further arguments of `Client.enqueue`: UsageError, as for a function and its arguments, or
    UnknownOption."""
    if not isinstance(sent, Task):
        raise no_task(sent)
    if more:
        raise UsageError(f"{where} sends one task and got {1 + len(more)} arguments: send many with enqueue_many([…])")
    check_options(unknown, ("task", "wait"), f"option of {where}")


class EnqueueBatch:
    """Up to BATCH tasks as calls: `before`, of the registry of queues, and `written`, for each queue and unique task.

    `known` are queues that are in the registry. `before` is empty when all are.
    """

    def __init__(
        self,
        keys: Keys,
        encryption: PayloadEncryption | None,
        sent: Sequence[Task],
        limit: int,
        known: AbstractSet[str] = frozenset(),
    ) -> None:
        self.keys = keys
        self._encryption = encryption
        self._sent = sent
        self.new_queues = {task.queue for task in sent} - known
        self.before: list[Call[Any]] = queues.register(keys, sorted(self.new_queues)) if self.new_queues else []
        self._parts = _parts_of(sent)
        parts = [[sent[position] for position in part] for part in self._parts]
        self.written = [(keys.queue(part[0].queue), enqueue_call(keys, encryption, part, limit)) for part in parts]

    def parts(self) -> list[tuple[QueueKeys, list[Task]]]:
        """The tasks of each call of `written`, with its queue."""
        tasks_of = ([self._sent[position] for position in part] for part in self._parts)
        return [(queue, part) for (queue, _), part in zip(self.written, tasks_of, strict=True)]

    def unique(self, replies: list[Any]) -> Iterator[tuple[int, Task]]:
        """The unique tasks among `replies`, each with where its reply is."""
        first = len(replies) - len(self._parts)
        for at, part in enumerate(self._parts, first):
            if self._sent[part[0]].lock is not None:
                yield at, self._sent[part[0]]

    def encrypted_again(self, task: Task, reply: Any) -> tuple[QueueKeys, Call[Any]]:
        """The call that enqueues a unique task once more, and its queue. Its payload had to be encrypted for another
        task, whose place it takes, as the reply says."""
        queue, owner_queue = self.keys.queue(task.queue), self.keys.queue(reply.queue)
        return queue, _unique_call(queue, self._encryption, task, reply.id, owner_queue)

    def placed(self, replies: list[Any]) -> list[Placed]:
        """Maps the replies to (id, is_new), one per task. Raises DuplicateTask."""
        if len(self._parts) == 1 and self._sent[0].lock is None and False not in replies[-1]:
            return [(task.id, True) for task in self._sent]
        found: list[Placed] = [("", False)] * len(self._sent)
        for part, reply in zip(self._parts, replies[len(replies) - len(self._parts) :], strict=True):
            first = self._sent[part[0]]
            if first.lock is not None:
                found[part[0]] = placed(first, reply)
                continue
            if False not in reply:
                for position in part:
                    found[position] = self._sent[position].id, True
                continue
            for position, said in zip(part, reply, strict=True):
                task = self._sent[position]
                found[position] = task.id, is_new(task, said)
        return found


def _parts_of(sent: Sequence[Task]) -> list[Sequence[int]]:
    """The positions of what one call sends: of the tasks of each queue, and of each unique task."""
    together: dict[str, list[int]] = {}
    unique: list[int] = []
    for position, task in enumerate(sent):
        if task.lock is None:
            together.setdefault(task.queue, []).append(position)
        else:
            unique.append(position)
    return [*together.values(), *([position] for position in unique)]


def write(
    batch: EnqueueBatch, wait: Duration, routes: Routes, *, just_registered: bool = False
) -> Operation[list[Any]]:  # fmt: skip
    """Sends a batch; returns its replies. Waits for room in full queues. Raises QueueFull."""
    replies = yield from capacity.write_parts(
        batch.keys, routes, batch.parts, batch.before, batch.written, wait, just_registered=just_registered
    )
    try:
        for at, task in batch.unique(replies):
            replies[at] = yield from _encrypted_again(batch, task, replies[at], wait)
    except JobrunnerError as error:
        if len(batch.written) > 1:  # the others were added
            error.args = (f"{error}. {OF_SOME}", *error.args[1:])
            if isinstance(error, ServerUnavailable):
                raise OutcomeUnknown(*error.args) from error
        raise
    return replies


def _encrypted_again(batch: EnqueueBatch, task: Task, reply: Any, wait: Duration) -> Operation[Any]:
    """Sends a unique task again for as long as its payload is encrypted for another task than that whose place it
    takes. Returns the last reply."""
    for _ in range(_TRIES):
        if reply.word != "encrypt_for":
            return reply
        again = yield InThread(partial(batch.encrypted_again, task, reply))
        (reply,) = yield from capacity.write([], [again], wait)
    raise JobrunnerError(
        f"the task that {task.type!r} would take the place of changed {_TRIES} times meanwhile; nothing was changed: "
        "enqueue it again"
    )


def enqueueing(
    keys: Keys,
    encryption: PayloadEncryption | None,
    sent: Sequence[Task],
    limit: int,
    wait: Duration,
    routes: Routes,
    *,
    just_registered: bool,
) -> Operation[list[Placed]]:
    """Sends up to BATCH tasks; returns (id, is_new) for each. Waits for room in full queues. Raises QueueFull,
    PayloadTooLarge, PayloadStoreUnavailable, DuplicateTask."""
    made = partial(EnqueueBatch, keys, encryption, sent, limit, routes.registered)
    # A store is written to as the batch is made, and may take its time.
    batch: EnqueueBatch = (yield InThread(made)) if isinstance(encryption, StoredPayloads) else made()
    return batch.placed((yield from write(batch, wait, routes, just_registered=just_registered)))


def batches(
    sent: Iterable[Task], limit: int, most: int = BATCH, *, encryption: PayloadEncryption | None = None
) -> Iterator[list[Task]]:
    """Slices of up to `most` tasks, and of a MiB of payloads and headers. Raises PayloadTooLarge before any of `most`
    tasks is given when one of them has more than `limit`.

    Payloads that go to the payload store of `encryption` cost the server nothing; a slice of them has up to 256 MiB, as
    this process holds it.
    """
    if not isinstance(sent, Iterable):
        raise UsageError(f"enqueue_many({describe(sent)}): give a list, or another iterable, of tasks")
    above = encryption.store.above if isinstance(encryption, StoredPayloads) else None
    size = _size if above is None else partial(_size_beside_store, above)
    rest = iter(sent)
    while some := list(itertools.islice(rest, most)):
        for task in some:
            try:
                if len(task.payload) > limit:
                    check_size(task.payload, limit)
            except AttributeError:
                raise no_task(task) from None
        if sum(map(size, some)) <= SLICE_BYTES:
            yield some
        else:
            yield from sliced(some, size, most=most)


def _size(task: Task) -> int:
    return len(task.payload) + len(task.headers or b"")


def _size_beside_store(above: int, task: Task) -> int:
    size = _size(task)
    return size if len(task.payload) <= above or not task.type else size // _STORED_AT_ONCE
