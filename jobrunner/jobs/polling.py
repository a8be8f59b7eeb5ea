"""Jobs that poll for a batch: `@job(poll_every=5)` on a class with `next_batch()`.

A poll is a periodic job of its own, NAME.next_batch: the leader fires it, one worker at a time has it under a lease,
and no tick fires while it runs or waits for a retry. It enqueues the jobs that `next_batch` returns, with options
where it returns `cls(…).using(id=…)`.
"""

import inspect
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from jobrunner.errors import InvalidOption, UsageError
from jobrunner.formatting import describe
from jobrunner.jobs.build import BoundCall
from jobrunner.jobs.job import Job
from jobrunner.retry import Backoff, seconds
from jobrunner.settings import Duration

POLL = "next_batch"
_LONGEST_PAUSE_S = 300.0
_NEVER = timedelta(days=36_500)


def poll_options(name: str, queue: str, poll_every: Duration) -> dict[str, Any]:
    """The options of the periodic job that polls for the job `name`. Raises InvalidOption.

    A failing poll is retried without limit: after a death the next tick would add another task, and these would fill
    the dead set. So neither the defaults of all jobs nor the queue decide on its retries and its expiry; None declares
    that there is no limit.
    """
    every_s = seconds(poll_every, option="poll_every")
    if every_s <= 0:
        raise InvalidOption(f"job {name!r}: poll_every={describe(poll_every)}: give more than 0")
    backoff = Backoff(base=every_s, cap=max(every_s, _LONGEST_PAUSE_S))
    options = {"name": f"{name}.{POLL}", "queue": queue, "every": poll_every, "max_attempts": 0, "result_ttl": 0}
    return options | {"backoff": backoff, "retry_on": None, "max_stalled": None, "expires_in": _NEVER}


def poll_function(job: type[Job], name: str) -> Callable[[], Any]:
    """The function of the polling job; it returns how many tasks it enqueued. Raises InvalidOption for a class that has
    no class method `next_batch()` without parameters."""
    next_batch: Any = getattr(job, POLL, None)
    if not callable(next_batch):
        raise InvalidOption(
            f"job {name!r}: poll_every needs a class method next_batch(cls) that returns a list of {job.__name__}(…)"
        )
    try:
        inspect.signature(next_batch).bind()
    except TypeError as error:
        raise InvalidOption(
            f"job {name!r}: next_batch is called without arguments: {error}; make it a class method"
        ) from error

    def poll() -> int:
        found = _checked(job, name, next_batch())
        return len(job.enqueue_many(found)) if found else 0

    async def poll_async() -> int:
        found = _checked(job, name, await next_batch())
        return len(await job.aenqueue_many(found)) if found else 0

    found: Any = poll_async if inspect.iscoroutinefunction(next_batch) else poll
    found.__module__, found.__qualname__ = job.__module__, f"{job.__qualname__}.{POLL}"
    found.__doc__ = next_batch.__doc__ or f"Polls for tasks of {name}."
    return found  # type: ignore[no-any-return]


def _checked(job: type[Job], name: str, batch: "Iterable[Job | BoundCall[Any]] | None") -> "list[Job | BoundCall[Any]]":
    if batch is None:
        return []
    if isinstance(batch, (str, bytes, dict)) or not isinstance(batch, Iterable):
        raise UsageError(f"next_batch of job {name!r} returned {describe(batch)}; return a list of {job.__name__}(…)")
    found = list(batch)
    for one in found:
        if not isinstance(one, (Job, BoundCall)):
            raise UsageError(
                f"next_batch of job {name!r} returned {describe(one)} among its items; "
                f"return {job.__name__}(…) of each, or {job.__name__}(…).using(…)"
            )
    return found
