"""Judges leaders and periodic jobs: one worker leads at a time, and each tick becomes one task, in order, however many
leaders try."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.simulation.seen import Seen, Violation, queue_of_key
from tests.simulation.workers import KEYS

_ROUNDED_MS = 1.0
"""The first tick of an interval is the present, in whole ms."""
_LATEST_MS = 6000.0
"""After so long without a tick something keeps the job from it: twice its longest interval."""


@dataclass(slots=True)
class SeenJob:
    """What the replies so far imply of the periodic job of a run, and of who leads."""

    worker: bytes = b""
    ends: float = 0.0
    """Until when this worker leads."""
    epoch: int = 0
    acted: int = 0
    """The newest epoch under which a tick of the job was settled."""
    last: float = 0.0
    schedule: bytes = b""
    together: float = 0.0
    """Ticks up to this one are caught up together with the one that was fired last."""
    task: bytes = b""
    """The one that was fired last."""
    led_at: float = 0.0
    """When a leader last took or renewed its lead."""
    intervals_ms: dict[bytes, float] = field(default_factory=dict)
    """Of each schedule of the job, by its digest; none in a run without one."""
    makes_up_all: bool = False
    """Whether each tick that was missed is fired later."""


class _Observer(Protocol):
    """The part of an Observer that is used here."""

    ask: Callable[..., Any]
    now: Callable[[], float]
    tasks: dict[bytes, Seen]
    periodic: SeenJob


def take_leadership(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    job, now, (worker, ttl_ms, _), epoch = observer.periodic, observer.now(), args, int(reply[1])
    if not epoch:
        if job.worker == worker:
            job.ends = 0.0
        return
    is_held = job.ends > now
    if is_held and job.worker != worker:
        raise Violation(f"{worker.decode()} leads, while {job.worker.decode()} does")
    if epoch < job.epoch + (not is_held):
        raise Violation(f"{worker.decode()} leads under epoch {epoch}, and there was epoch {job.epoch}")
    job.worker, job.epoch, job.ends, job.led_at = worker, epoch, now + float(ttl_ms), now


def fire(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    _, _, tick_ms, epoch, task_id, priority, due_ms, overlap, schedule, together = args[:10]
    job, tick, word = observer.periodic, float(tick_ms), reply.decode()
    if word in ("missed", "fenced"):
        return
    if int(epoch) < job.acted:
        raise Violation(f"a tick was {word} by a leader of epoch {int(epoch)}, after one of epoch {job.acted}")
    if tick > observer.now() + _ROUNDED_MS:
        raise Violation(f"tick {tick:.0f} was {word} {tick - observer.now():.0f} ms early")
    if tick <= job.last:
        raise Violation(f"tick {tick:.0f} was {word} after tick {job.last:.0f}")
    _check_gap(job, tick, schedule)
    is_together = tick <= job.together
    if (observer.ask("HGET", keys[6], "disabled") is not None) != (word == "disabled"):
        raise Violation(f"tick {tick:.0f} was {word}; whether the job is disabled says otherwise")
    if word == "fired":
        if task_id in observer.tasks:
            raise Violation(f"{task_id.decode()} was enqueued twice")
        queue = queue_of_key(keys[0])
        if overlap == b"skip" and not is_together and _is_live(observer, job.task, queue):
            raise Violation(f"tick {tick:.0f} was fired, while {job.task.decode()} of an earlier one is not finished")
        observer.tasks[task_id] = Seen(
            queue, int(priority), len(observer.tasks), has_place=False, due=observer.now(), not_before=float(due_ms),
        )  # fmt: skip
        job.task, job.together = task_id, float(together)
    elif word == "skipped" and (overlap != b"skip" or is_together or not _may_live(observer, job.task)):
        raise Violation(f"tick {tick:.0f} was skipped, and task {job.task.decode()} does not keep it out")
    job.last, job.schedule, job.acted = tick, schedule, int(epoch)


def _check_gap(job: SeenJob, tick: float, schedule: bytes) -> None:
    """Ticks of one schedule are a whole number of intervals apart: one, when all that were missed are made up for."""
    if job.schedule != schedule:
        return
    steps = (tick - job.last) / job.intervals_ms[schedule]
    if steps != int(steps) or (steps > 1 and job.makes_up_all):
        raise Violation(f"tick {tick:.0f} comes {steps} intervals after tick {job.last:.0f}")


def anchor(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    _, _, to_ms, _, epoch, schedule = args
    job = observer.periodic
    if reply != b"anchored":
        return
    if int(epoch) < job.acted or float(to_ms) < job.last:
        raise Violation(f"the job was to go on from {float(to_ms):.0f}, epoch {int(epoch)}; it was at {job.last:.0f}")
    job.last = job.together = float(to_ms)
    job.schedule, job.acted = schedule, int(epoch)


def problems(observer: _Observer) -> Iterator[str]:
    """Yields what is wrong with the job at the end of a run, when a leader without faults has led for long."""
    job = observer.periodic
    is_published = job.intervals_ms and observer.ask("EXISTS", KEYS.periodics)
    if is_published and job.led_at - job.last > _LATEST_MS:
        yield f"the job ticked last at {job.last:.0f}, and a leader led until {job.led_at:.0f}"


def _is_live(observer: _Observer, task_id: bytes, queue: bytes) -> bool:
    """Whether a task of this queue is certainly not finished: it was never handed out, or its lease holds. One of
    another queue, which the job ran on before, keeps no tick out."""
    seen = observer.tasks.get(task_id)
    is_live = seen is not None and not seen.outcome and (not seen.lease or seen.ends > observer.now())
    return is_live and seen.queue == queue


def _may_live(observer: _Observer, task_id: bytes) -> bool:
    seen = observer.tasks.get(task_id)
    return seen is not None and not seen.outcome
