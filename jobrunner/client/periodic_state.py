"""Changes of a periodic job's state, except its ticks, which the leader fires."""

from jobrunner.broker.call import whole
from jobrunner.broker.calls import events
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls.server import server_time
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.operations.operation import Operation, ask
from jobrunner.client.records import published
from jobrunner.clock import from_ms
from jobrunner.periodic import PeriodicDefinition


def switch(keys: Keys, name: str, *, enabled: bool) -> Operation[None]:
    """Enables or disables the ticks of a periodic job. Raises UnknownJob."""
    job = yield from published(keys, name)
    yield from bring_state(keys, job.state, job.queue)
    if enabled:
        yield from _pass_ticks(keys, job)
    kind = "periodic_enabled" if enabled else "periodic_disabled"
    yield [
        leader_calls.enable_periodic(keys.queue(job.queue), job.state, enabled=enabled),
        events.note(keys, kind, queue=job.queue, job=job.name, by=events.who()),
    ]


def bring_state(keys: Keys, name: str, queue: str) -> Operation[None]:
    """Moves the state of a periodic job (disabled, last tick, counts) to its new queue after a deploy moved the job.
    May be repeated from any point."""
    before = yield from ask(leader_calls.periodic_queue(keys, name))
    if before == queue:
        return
    if before is not None:
        yield from _move_state(keys.queue(before), keys.queue(queue), name)
    yield [leader_calls.note_periodic_queue(keys, name, queue)]


def _move_state(source: QueueKeys, target: QueueKeys, name: str) -> Operation[None]:
    moved, found = yield [leader_calls.periodic_state(one, name) for one in (source, target)]
    if whole(found.get("last")) > whole(moved.get("last")):  # a leader of an older version ticked there
        moved = {"disabled": moved["disabled"]} if "disabled" in moved else {}
    elif moved and "disabled" in found and "disabled" not in moved:  # left from an earlier time on that queue
        yield [leader_calls.enable_periodic(target, name, enabled=True)]
    moved.pop("task", None)  # the task is in the other queue
    if moved:
        yield [leader_calls.set_periodic_state(target, name, moved)]
    yield [leader_calls.delete_periodic_state(source, name)]


def _pass_ticks(keys: Keys, job: PeriodicDefinition) -> Operation[None]:
    """Skips the ticks that passed while a job was disabled, also when no leader ran to record them."""
    queue = keys.queue(job.queue)
    state, now_ms = yield [leader_calls.periodic_state(queue, job.state), server_time()]
    last = state.get("last", b"")
    if "disabled" not in state or not 0 < whole(last) < now_ms:  # a damaged value is no tick
        return
    if passed := job.parsed().ticks_between(from_ms(whole(last)), from_ms(now_ms), 1):
        yield [leader_calls.anchor(
            queue, job.state, expected=last.decode(), to_ms=round(passed[-1].timestamp() * 1000), ahead_ms=None,
            epoch=whole(state.get("epoch")), schedule=job.schedule_digest,
        )]  # fmt: skip
