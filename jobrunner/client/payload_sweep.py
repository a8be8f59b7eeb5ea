"""Deletes objects of a payload store that no task refers to any more.

The scripts that end tasks know nothing of stores, and many tasks end by expiry. So the sweep checks the hash of the
task that the object's key names. Invariant: an object is deleted only when that hash is gone or has another reference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import in_slices
from jobrunner.broker.calls import tasks
from jobrunner.broker.keys import Keys, QueueKeys, check_id, check_tag
from jobrunner.clock import unix_ms
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.errors import InvalidName, InvalidOption, ServerError
from jobrunner.logs import SafeLogger
from jobrunner.payload_store.reference import ObjectOwner, owner_of, refers_to
from jobrunner.payload_store.store import PayloadStore
from jobrunner.payload_store.stored_payloads import StoredPayloads

GRACE_S = 86_400.0
"""A younger object may belong to an enqueue that is still under way, such as one that waits for room in a full
queue."""
_AT_ONCE = 100
"""A store may take a tenth of a second to delete an object."""
_log = SafeLogger("jobrunner.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Counts of objects: all, objects younger than the grace, used objects, unused objects, and the unused objects that
    could not be deleted."""

    objects: int
    young: int
    used: int
    unused: int
    left: int = 0


NOTHING_SWEPT = SweepResult(objects=0, young=0, used=0, unused=0)


def store_of(encryption: PayloadEncryption | None) -> PayloadStore:
    """The payload store of a client. Raises InvalidOption where none is configured."""
    if isinstance(encryption, StoredPayloads):
        return encryption.store
    raise InvalidOption("no payload store is configured; set JOBRUNNER_PAYLOAD_STORE to the URL that producers use")


def sweeping(
    broker: Broker, keys: Keys, store: PayloadStore, *, grace_s: float = GRACE_S, deletes: bool = True
) -> Iterator[SweepResult]:
    """Checks every object of the prefix, and deletes unused objects older than `grace_s`. It yields the counts so far
    every few seconds, however large the store, and at last the counts of the whole sweep. Raises
    PayloadStoreUnavailable, ServerError."""
    found = NOTHING_SWEPT
    left: dict[str, str] = {}
    before_ms = unix_ms() - grace_s * 1000
    for folder in store.folders():
        ours = [(key, owner) for key in folder if (owner := owned(key)) is not None]
        old = [key for key, owner in ours if owner.written_ms <= before_ms]
        found = replace(found, objects=found.objects + len(ours), young=found.young + len(ours) - len(old))
        yield found
        for some in in_slices(old, _AT_ONCE):
            garbage = unused_objects(broker, keys, some)
            if deletes:
                left |= store.delete(garbage)
            used, unused = found.used + len(some) - len(garbage), found.unused + len(garbage)
            found = replace(found, used=used, unused=unused, left=len(left))
            yield found
    if left:
        kept, error = next(iter(left.items()))
        _log.warning("the payload store keeps objects", objects=len(left), first=kept, error=error)
    yield found


def unused_objects(broker: Broker, keys: Keys, objects: Sequence[str]) -> list[str]:
    """The objects that their tasks do not refer to. An object counts as used when that is unknown, as for a damaged
    task or with a node that is away. Raises ServerError when the whole server is away."""
    by_tag: dict[str, list[tuple[str, str]]] = {}
    for key in objects:
        if (owner := owned(key)) is not None:
            by_tag.setdefault(owner.tag, []).append((key, owner.task_id))
    unused: list[str] = []
    for tag, some in by_tag.items():
        try:
            unused += _unused_of(broker, keys.queue(tag), some)
        except ServerError as error:
            if broker.is_away(error):
                raise
            _log.warning("it is not known whether objects are used", tag=tag, objects=len(some), error=str(error))
    return unused


def _unused_of(broker: Broker, queue: QueueKeys, some: Sequence[tuple[str, str]]) -> list[str]:
    if not broker.run(tasks.how_many_exist(queue, [task_id for _, task_id in some])):  # usually one command is enough
        return [key for key, _ in some]
    found = broker.run_many([tasks.stored_payload(queue, task_id) for _, task_id in some])
    pairs = zip(some, found, strict=True)
    return [key for (key, _), (raw, encoding) in pairs if not refers_to(raw, encoding, key)]


def owned(key: str) -> ObjectOwner | None:
    """The task of an object; None for a file that jobrunner did not write, which is never deleted."""
    owner = owner_of(key)
    try:
        if owner is not None:
            check_tag(owner.tag)
            check_id(owner.task_id)
    except InvalidName:
        return None
    return owner
