"""The operations on a whole queue, shared by Queue and AsyncQueue: their calls and results."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

from jobrunner.broker.call import Call, whole
from jobrunner.broker.calls import events, leases, new_tasks, queues, tasks
from jobrunner.broker.calls import search as search_calls
from jobrunner.broker.keys import QueueKeys, check_id
from jobrunner.client.encryption import decrypted_record, encrypted_task
from jobrunner.client.item import Item, check_known, check_verdict, read_headers, read_payload
from jobrunner.client.item_record import ItemRecord, Popped, item_record
from jobrunner.client.operations import capacity
from jobrunner.client.operations.enqueue import QueueRef, batches, is_new
from jobrunner.client.operations.flow_relay import relaying
from jobrunner.client.operations.operation import Operation, ask, noting
from jobrunner.client.settings_hash import SettingOrigin, read_origins, write_settings
from jobrunner.encryption.cipher import EncryptionContext, allow_forward, decrypt_payload
from jobrunner.errors import EncryptionError, InvalidOption, NotReserved, PayloadStoreError, TaskGone, UsageError
from jobrunner.formatting import describe
from jobrunner.retry import milliseconds
from jobrunner.settings import Duration, check_whole
from jobrunner.task import Task, TaskState
from jobrunner.task_record import TaskRecord

OnClash = Literal["existing", "raise"] | Callable[[list[str]], object]
"""The behaviour of a push whose id already exists."""
Progress = Callable[[int], None]
"""Called with the number of items done so far."""
STATES = queues.STATES
_PURGEABLE = ("waiting", "scheduled", "dead", "done")
_READ_AT_ONCE = 1000
_PUSHED_AT_ONCE, _PUSHED_BYTES = 100_000, 64 << 20
"""The most items and payload bytes in one push: a push is one script, and more would block the server for seconds."""


def tasks_of(ref: QueueRef, payloads: Iterable[Any]) -> list[Task]:
    """The pushed items, validated. Raises UsageError for more items or bytes than one push may have."""
    made = [ref.task(item if isinstance(item, Item) else Item(item)) for item in _several(payloads)]
    _check_size(made)
    return made


def _several(payloads: Iterable[Any]) -> Iterable[Any]:
    """Raises UsageError for a single payload: a text would be pushed letter by letter, a dict key by key."""
    if isinstance(payloads, (str, bytes, Mapping)) or not isinstance(payloads, Iterable):
        raise UsageError(f"payloads={describe(payloads)}: give a list of payloads, or push this one by push(…)")
    return payloads


def batches_of(ref: QueueRef, payloads: Iterable[Any]) -> Iterator[list[Task]]:
    """The pushed items, validated, in slices for one push each. Raises UsageError, PayloadTooLarge."""
    made = (ref.task(item if isinstance(item, Item) else Item(item)) for item in _several(payloads))
    return batches(made, ref.payload_limit, encryption=ref.encryption)


def push_many(
    ref: QueueRef, pushed: Sequence[Task], wait: Duration, on_clash: OnClash, *, just_registered: bool = False
) -> Operation[list[str]]:
    """Returns the ids. With `on_clash` "raise", an existing id raises DuplicateTask, and nothing is added."""
    if pushed:
        clash = on_clash if isinstance(on_clash, str) else "existing"
        parts = _by_shard(ref, pushed)
        if clash == "raise" and sum(any(task.sending for task in part) for _, part in parts) > 1:
            raise InvalidOption(
                f"on_clash='raise' for ids in several partitions of queue {ref.name!r}: it adds all or none, and that "
                "holds within one partition only; push these items one by one, or give on_clash a callable"
            )
        calls = [(keys, push_call(ref, keys, part, clash)) for keys, part in parts]
        replies = yield from capacity.write_parts(
            ref.all_keys, ref.routes, lambda: parts, [], calls, wait, just_registered=just_registered
        )
        tell_clashes(chain.from_iterable(part for _, part in parts), chain.from_iterable(replies), on_clash)
    return [task.id for task in pushed]


def push_call(ref: QueueRef, keys: QueueKeys, pushed: Sequence[Task], clash: str = "existing") -> Call[list[bool]]:
    """The call that adds tasks to the shard with these keys."""
    if ref.encryption is not None:
        pushed = [encrypted_task(ref.encryption, keys, task) for task in pushed]
    return new_tasks.enqueue(keys, pushed, clash=clash)


def tell_clashes(pushed: Iterable[Task], flags: Iterable[bool], on_clash: OnClash) -> None:
    """Calls `on_clash`, if it is callable, with the ids that existed already, if any."""
    if callable(on_clash) and (
        known := [task.id for task, flag in zip(pushed, flags, strict=True) if not is_new(task, flag)]
    ):
        on_clash(known)


def _check_size(pushed: Sequence[Task]) -> None:
    if len(pushed) <= 1:  # payload_limit bounds a single item
        return
    size = sum(len(task.payload) for task in pushed)
    if len(pushed) > _PUSHED_AT_ONCE or size > _PUSHED_BYTES:
        raise UsageError(
            f"push_many of {len(pushed):,} items with {size / (1 << 20):,.1f} MiB of payloads: all or none is one step "
            f"of the server, which serves nobody meanwhile; push up to {_PUSHED_AT_ONCE:,} items and "
            f"{_PUSHED_BYTES >> 20} MiB at a time. Nothing was pushed"
        )


def _by_shard(ref: QueueRef, pushed: Sequence[Task]) -> list[tuple[QueueKeys, Sequence[Task]]]:
    """The tasks by their shards; one part for a queue without partitions."""
    if ref.routes is None or ref.name not in ref.routes.routers:
        return [(ref.keys, pushed)]
    found: dict[str, list[Task]] = {}
    for task in pushed:
        found.setdefault(task.queue, []).append(task)
    return [(ref.shard(name).keys, part) for name, part in found.items()]


def waits_for_reply(on_clash: OnClash) -> bool:
    """Whether the push reports clashes, so that the buffer must not postpone it. Raises InvalidOption."""
    if on_clash in ("existing", "raise") or callable(on_clash):
        return on_clash != "existing"
    raise InvalidOption(
        f"on_clash={describe(on_clash)}: choose 'existing' or 'raise', or give a callable that takes ids"
    )


def not_made(name: str, client: str, given: object) -> UsageError:
    """The error for a queue that is made from its name, as in RQ or BullMQ."""
    queue = given if isinstance(given, str) else "mail"
    shown = "" if given is None else describe(given)
    return UsageError(
        f"{name}({shown}): a queue comes from a client, {client}().queue({queue!r}); a job names its own, "
        f"@job(queue={queue!r})"
    )


def pop(ref: QueueRef, n: int) -> Operation[list[Popped]]:
    """Returns the items taken out of the queue."""
    check_whole(n, "n", minimum=1, maximum=1000)
    taken = None
    while taken is None:
        taken = yield from ask(leases.pop(ref.keys, n))
    return [_popped(ref, *raw) for raw in taken]


def _popped(
    ref: QueueRef,
    raw_id: bytes,
    type_: bytes | None,
    raw: bytes | None,
    headers: bytes | None,
    encoding: bytes | None,
    then: bytes | None = None,
    retry_count: bytes | None = None,
) -> Popped:
    found: Any
    try:
        if ref.encryption is not None or encoding:
            of = (raw_id.decode("utf-8", "replace"), (type_ or b"").decode("utf-8", "replace"))
            context = EncryptionContext(*of, ref.keys.tag, ref.name, headers or b"", then or b"")
            found = read_payload(*decrypt_payload(ref.encryption, raw or b"", encoding, context)[:2])
        else:
            found = read_payload(raw, encoding)
    except (EncryptionError, PayloadStoreError, ValueError) as error:
        found = error
    tries = whole(retry_count)
    return Popped(raw_id.decode("utf-8", "replace"), read_headers(headers), raw or b"", found, tries + 1, tries)


def delete(ref: QueueRef, task_id: str, *, force: bool = False) -> Operation[bool]:
    """Returns whether the item existed. Raises NotReserved, UsageError."""
    if force:
        raise UsageError("force=True is for a queue: delete(force=True) without an id; an item needs none")
    word = yield from ask(tasks.delete(ref.keys, check_id(task_id)))
    check_known(word, task_id)
    if word == "not_reserved":
        raise NotReserved(
            f"task {task_id} is not deleted: delete(id) acknowledges a reserved task, and this one has no "
            f"lease; to cancel a waiting task: client.task({task_id!r}, queue={ref.name!r}).cancel()"
        )
    return check_verdict(word, task_id) != "gone"


def run_now(ref: QueueRef, task_id: str) -> Operation[bool]:
    """Returns whether the item was scheduled and waits now. Raises TaskGone."""
    replies, record = yield [
        tasks.run_now(ref.keys, [check_id(task_id)]),
        tasks.show(ref.all_keys, task_id, queue=ref.name),
    ]
    check_known(replies[0], task_id)
    was_scheduled: bool = replies == ["ok"]
    if not was_scheduled and record is None:
        raise TaskGone(f"no task {task_id} in queue {ref.name!r}: it never was, or it finished and is no longer kept")
    return was_scheduled


def counts(ref: QueueRef) -> Operation[dict[str, int]]:
    """Returns the number of items in each state."""
    found = yield from ask(queues.counts(ref.keys))
    return {state: getattr(found, state) for state in STATES}


def totals(ref: QueueRef) -> Operation[dict[str, int]]:
    """Returns the totals of the queue by name."""
    return (yield from ask(queues.counts(ref.keys))).totals


def is_paused(ref: QueueRef) -> Operation[bool]:
    """Returns whether the queue is paused."""
    return (yield from ask(queues.counts(ref.keys))).paused


def pause(ref: QueueRef, for_: Duration | None) -> Operation[None]:
    """Pauses the queue for `for_`; None: until it is resumed."""
    length_ms = milliseconds(for_, "for_")
    event = events.note(ref.all_keys, "queue_paused", queue=ref.name, by=events.who(), for_ms=length_ms or "")
    yield from _switched(
        ref, queues.configure(ref.keys, {"paused": 1 if length_ms is None else f"+{length_ms}"}), event
    )


def resume(ref: QueueRef) -> Operation[None]:
    """Resumes the queue."""
    event = events.note(ref.all_keys, "queue_resumed", queue=ref.name, by=events.who())
    yield from _switched(ref, queues.configure(ref.keys, {"paused": ""}), event)


def configure(
    ref: QueueRef, options: Mapping[str, Any], *, by: str = "", changed: Iterable[str] = ()
) -> Operation[None]:  # fmt: skip
    """Changes settings by hand: `by` is the name of a person, by default that of this process. `changed`: fields that
    an earlier step of the same change has written."""
    who = by or events.who()
    wanted = queues.configure(ref.keys, write_settings(options, ref.name), by=who, changed=changed)
    if options.get("dead_letter_queue"):
        allow_forward(ref.name, options["dead_letter_queue"])
        yield queues.register_if_room(ref.all_keys, [options["dead_letter_queue"]])  # a death adds it to no registry
    details = {f"set_{name}": str(value) for name, value in options.items()}
    event = events.note(ref.all_keys, "queue_configured", queue=ref.name, by=who, **details)
    yield from _switched(ref, wanted, event)


def origins(ref: QueueRef) -> Operation[dict[str, SettingOrigin]]:
    """Returns the origins of settings that are declared or were changed by hand."""
    return read_origins((yield from ask(queues.origins(ref.keys))))


def ids(ref: QueueRef, state: str, limit: int, start: int) -> Operation[list[str]]:
    """Returns at most `limit` ids of one state, from position `start` on."""
    check_state(state)
    check_whole(limit, "limit", minimum=1, maximum=10_000)
    check_whole(start, "start", minimum=0)
    return (yield from ask(queues.ids(ref.keys, state, start=start, count=limit)))


def list_tasks(ref: QueueRef, state: str, limit: int, after: str | None) -> Operation[tuple[list[ItemRecord], bool]]:
    """Returns one page of records, which is empty only at the end of the list, and whether there may be more: a page is
    also short when tasks leave the state meanwhile."""
    check_state(state)
    check_whole(limit, "limit", minimum=1, maximum=_READ_AT_ONCE)
    behind = None if after is None else check_id(after)
    page = yield from ask(search_calls.page(ref.keys, state, after=behind, count=limit))
    if page is None:
        raise TaskGone(f"task {after} is not {state} any more, so no page comes after it; begin again without after=")
    first, found = page
    while found:
        answers = yield [tasks.show(ref.all_keys, task_id, queue=ref.name) for task_id in found]
        if records := [record for record in answers if record is not None and is_still(record, state)]:
            shown = [item_record(decrypted_record(ref.encryption, record, fetches=False)) for record in records]
            return shown, len(found) == limit
        first += len(found)
        found = yield from ask(queues.ids(ref.keys, state, start=first, count=limit))
    return [], False


def purge(ref: QueueRef, state: str, progress: Progress | None = None) -> Operation[int]:
    """Returns the number of deleted items."""
    if state not in _PURGEABLE:
        raise InvalidOption(f"state {describe(state)} cannot be purged: choose one of {', '.join(_PURGEABLE)}")
    total = 0
    while gone := (yield from ask(queues.purge(ref.keys, state))):
        total += gone
        if progress is not None:
            progress(total)
    if total:
        yield from noting(events.queue_purged(ref.all_keys, ref.whole_name, state, total))
    yield from relaying(ref.all_keys, tags=[ref.keys.tag])  # also when nothing is left as the first reply was lost
    return total


def _switched(ref: QueueRef, *wanted: Call[Any]) -> Operation[None]:
    """Sends calls that may be the first on their queue, and that work on a full server."""
    yield [*queues.register_if_room(ref.all_keys, [ref.name]), *wanted]


def is_still(record: TaskRecord, state: str) -> bool:
    """Whether the task is still in `state`, in which its id was listed. The id of a history entry that outlived its
    task may be that of a new task, which waits or is dead."""
    if state == "done":
        return record.state in (TaskState.SUCCEEDED, TaskState.CANCELLED)
    return record.state == state


def check_state(state: str) -> str:
    """Returns the state. Raises InvalidOption for an unknown state."""
    if state not in STATES:
        raise InvalidOption(f"state {describe(state)}: choose one of {', '.join(STATES)}")
    return state
