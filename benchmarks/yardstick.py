"""The limits of the server and this interpreter without features: the yardsticks for jobrunner's figures.

- The bare enqueue: one task is one script call of one HSET and one ZADD, through redis-py's ordinary client.
- The bare bulk enqueue: the same in one script call for a thousand tasks.
- The prototype loop: leases, batches and a pool of threads on two more scripts, and nothing else. No retries,
  hooks, limits, priorities, results, renewal of leases, reconnecting or wake-ups.

`python -m benchmarks.yardstick many noop N` and `work` are the prototype's two processes.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from threading import Semaphore, Thread
from time import sleep
from typing import Any

import msgspec
from redis import Redis

from benchmarks.ledger import recorder

WAITING, PENDING, TASK = "bare:waiting", "bare:pending", "bare:task:"
URL = "BENCHMARK_URL"
BULK = 1_000
THREADS = 10
BATCH = 1_000
LOW_WATER = 2 * BATCH
"""Below, the fetcher asks for more: the threads must stay busy while it waits for the interpreter's lock."""

ENQUEUE = """
local now = redis.call('TIME')
local place = now[1] * 1000000 + now[2]
local places, last = {}, 0
for i = 1, #ARGV, 3 do
  redis.call('HSET', KEYS[2] .. ARGV[i], 'type', ARGV[i + 1], 'params', ARGV[i + 2])
  places[last + 1], places[last + 2] = place, ARGV[i]
  last = last + 2
end
redis.call('ZADD', KEYS[1], unpack(places))
"""
RESERVE = """
local popped = redis.call('ZPOPMIN', KEYS[1], ARGV[1])
local deadline = redis.call('TIME')[1] + 30
local tasks, last = {}, 0
for i = 1, #popped, 2 do
  local id = popped[i]
  local fields = redis.call('HMGET', KEYS[3] .. id, 'type', 'params')
  tasks[last + 1], tasks[last + 2], tasks[last + 3] = id, fields[1], fields[2]
  last = last + 3
  popped[i], popped[i + 1] = deadline, id
end
if last > 0 then redis.call('ZADD', KEYS[2], unpack(popped)) end
return tasks
"""
COMMIT = """
local keys = {}
for i = 1, #ARGV do keys[i] = KEYS[2] .. ARGV[i] end
redis.call('DEL', unpack(keys))
return redis.call('ZREM', KEYS[1], unpack(ARGV))
"""


def bare_enqueue(redis: Redis) -> Callable[[int], object]:
    """Returns the call that enqueues one task; made once, as a program would."""
    digest = redis.script_load(ENQUEUE)
    evalsha = redis.evalsha

    def enqueue(n: int) -> object:
        return evalsha(digest, 2, WAITING, TASK, f"{n:012d}", "noop", f"[{n}]")

    return enqueue


def bare_enqueue_many(redis: Redis, tasks: int) -> None:
    """Enqueues the tasks 0 to `tasks` - 1, a thousand in each round trip."""
    digest = redis.script_load(ENQUEUE)
    for start in range(0, tasks, BULK):
        numbers = range(start, min(start + BULK, tasks))
        redis.evalsha(digest, 2, WAITING, TASK, *(word for n in numbers for word in (f"{n:012d}", "noop", f"[{n}]")))


def bare_left(redis: Any) -> int:
    """Tasks on the server that are not committed."""
    return int(redis.zcard(WAITING) + redis.zcard(PENDING))


class PrototypeLoop:
    """A fetcher that commits and reserves in one round trip, and threads that run what it brought."""

    def __init__(self, connection: Any, jobs: dict[bytes, Callable[..., object]]) -> None:
        self._connection = connection
        self._jobs = jobs
        self._todo: deque[tuple[bytes, bytes, bytes]] = deque()
        self._done: deque[bytes] = deque()
        self._arrived = Semaphore(0)
        self._reserve, self._commit = (self._load(script) for script in (RESERVE, COMMIT))

    def run(self) -> None:
        for _ in range(THREADS):
            Thread(target=self._work, daemon=True).start()
        while True:
            self._turn()

    def _turn(self) -> None:
        commands = [*self._commits(), *self._reservation()]
        if not commands:
            sleep(0.0005)
            return
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        for _ in commands:
            reply = self._connection.read_response()
            if isinstance(reply, list):
                self._hand_out(reply)

    def _commits(self) -> Iterator[tuple[object, ...]]:
        done = [self._done.popleft() for _ in range(min(len(self._done), BATCH))]
        if done:
            yield ("EVALSHA", self._commit, 2, PENDING, TASK, *done)

    def _reservation(self) -> Iterator[tuple[object, ...]]:
        if len(self._todo) < LOW_WATER:
            yield ("EVALSHA", self._reserve, 3, WAITING, PENDING, TASK, BATCH)

    def _hand_out(self, reply: list[bytes]) -> None:
        words = iter(reply)
        self._todo.extend(zip(words, words, words, strict=True))
        if reply:
            self._arrived.release(THREADS)
        elif not self._done:
            sleep(0.001)

    def _work(self) -> None:
        decode, jobs, todo, done = msgspec.json.decode, self._jobs, self._todo, self._done
        while True:
            self._arrived.acquire()
            while todo:
                try:
                    task, kind, params = todo.popleft()
                except IndexError:
                    break
                jobs[kind](*decode(params))
                done.append(task)

    def _load(self, script: str) -> object:
        self._connection.send_command("SCRIPT", "LOAD", script)
        return self._connection.read_response()


def main(command: str, _task: str = "noop", tasks: str = "0") -> None:
    redis = Redis.from_url(os.environ[URL])
    if command == "many":
        bare_enqueue_many(redis, int(tasks))
        return
    connection = redis.connection_pool.get_connection()
    PrototypeLoop(connection, {b"noop": recorder()}).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
