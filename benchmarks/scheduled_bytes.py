"""The memory of a scheduled task beyond its payload, and what it would be with fewer fields or shorter ids.

    python -m benchmarks.scheduled_bytes                  # 50,000 tasks in each layout, a minute
    python -m benchmarks.scheduled_bytes --tasks 1000000

The first row is of tasks that jobrunner enqueued; the others are hashes of the same fields and entries of a sorted set,
written by plain commands, each on a fresh server. Table to stdout, in Markdown. Exit code: 0; 2 on misuse.
"""

import argparse
import secrets
import sys
from collections.abc import Collection, Sequence

from benchmarks.server import PrivateServer

_QUEUE = "bench"
_PAYLOAD = '{"n":35972}'
_DUE_MS = 1_795_680_668_263
_AT_ONCE = 2000
_FIELDS = {
    "id": "", "place": "", "payload": _PAYLOAD, "enqueue_time": "1795677068262.729", "retry_count": "0",
    "queue": _QUEUE, "type": "Noop", "more": "1",
}  # fmt: skip
_NEEDLESS = ("id", "retry_count", "more", "place", "enqueue_time")
"""Fields whose value follows from the key, from the score in the sorted set, or from their absence."""
LAYOUTS: Sequence[tuple[str, Collection[str], bool]] = (
    ("the same by plain commands", (), False),
    *((f"without `{name}`", (name,), False) for name in _NEEDLESS),
    ("without all of these", _NEEDLESS, False),
    ("with ids of 16 characters", (), True),
    ("with such ids and without all of these", _NEEDLESS, True),
)


def enqueued(server: PrivateServer, tasks: int) -> float:
    """Bytes a task, of tasks that jobrunner enqueues."""
    from benchmarks.noop_jobs import Noop
    from jobrunner import configure

    server.renew()
    with configure(server.url):
        Noop(n=1).enqueue()
        before = _used(server)
        Noop.enqueue_many([Noop(n=35972) for _ in range(tasks)], in_=3600)
        return (_used(server) - before) / tasks - len(_PAYLOAD)


def written(server: PrivateServer, tasks: int, without: Collection[str], has_short_ids: bool) -> float:
    """Bytes a task, of tasks without these fields."""
    server.renew()
    scheduled = f"jobrunner:{{{_QUEUE}}}:{_QUEUE}:scheduled"
    server.redis.zadd(scheduled, {"first": 1})
    before = _used(server)
    for first in range(0, tasks, _AT_ONCE):
        with server.redis.pipeline(transaction=False) as sent:
            for number in range(first, min(first + _AT_ONCE, tasks)):
                due = _DUE_MS + number + 0.499
                one = secrets.token_urlsafe(12) if has_short_ids else f"01a216b185fc0045{secrets.token_hex(6)}-{_QUEUE}"
                fields = _FIELDS | {"id": one, "place": f"{due:.3f}"}
                kept = {name: value for name, value in fields.items() if name not in without}
                sent.hset(f"jobrunner:{{{_QUEUE}}}:task:{one}", mapping=kept)
                sent.zadd(scheduled, {one: due})
            sent.execute()
    return (_used(server) - before) / tasks - len(_PAYLOAD)


def _used(server: PrivateServer) -> float:
    # A connection that sent much keeps its buffer for some seconds: a few tasks would seem to need twice as much.
    server.redis.connection_pool.disconnect()
    return float(server.redis.info("memory")["used_memory"])


def main(asked: Sequence[str]) -> int:
    """Exit code: 0; 2 on misuse."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.scheduled_bytes", description=__doc__)
    options.add_argument("--tasks", type=int, default=50_000, help="in each layout (default %(default)s)")
    tasks = options.parse_args(asked).tasks
    if tasks < 1:
        options.error(f"--tasks {tasks}: give 1 or more")
    with PrivateServer() as server:
        print("| layout | bytes |\n|---|---|")
        print(f"| enqueued by jobrunner | {enqueued(server, tasks):.0f} |", flush=True)
        for name, without, has_short_ids in LAYOUTS:
            print(f"| {name} | {written(server, tasks, without, has_short_ids):.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
