"""Measures how much memory and server time one packed field would save in place of the seven fields of a task.

    python -m benchmarks.packed_fields --rounds 5

Three layouts of the hash take turns on one server, under scripts that are alike but for the fields:

- *seven fields*: what jobrunner stores for a plain task;
- *packed*: `place`, which scripts set, and one field that the client packs with everything else;
- *packed, payload apart*: the same, with the payload in a field of its own.

The scripts do what the product's do to the sorted sets and counters, and none of its other duties, so the differences
are what the change could save at most. Times are processor time of the server per task.
"""

import argparse
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.results import Table, write_json
from benchmarks.server import PrivateServer

_QUEUE, _TYPE = "mail", "SendWelcome"
_BULK, _DRAIN = 1_000, 500
_SINGLES = 5_000
_MEASURES = ("bytes", "enqueue, µs", "enqueue in bulk, µs", "reserve, µs", "commit, µs")

_ENQUEUE = """
local now, width = tonumber(redis.call('TIME')[1]) * 1000, tonumber(ARGV[1])
local last, ready = tonumber(redis.call('GET', KEYS[2])) or 0, {}
for at = 2, #ARGV, width + 1 do
  local key = 't:' .. ARGV[at]
  if redis.call('EXISTS', key) == 0 then
    last = math.max(last + 1, now)
    %s
    ready[#ready + 1], ready[#ready + 2] = last, ARGV[at]
  end
end
for at = 1, #ready, 1000 do redis.call('ZADD', KEYS[1], unpack(ready, at, math.min(at + 999, #ready))) end
redis.call('SET', KEYS[2], last)
redis.call('HINCRBY', KEYS[3], 'enqueued', #ready / 2)
return #ready / 2
"""
_RESERVE = """
local ids, ends, numbers, reply = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1), {}, {}, {}
for n, id in ipairs(ids) do
  local task = redis.call('HMGET', 't:' .. id, %s)
  reply[n] = task
  ends[2 * n - 1], ends[2 * n], numbers[2 * n - 1], numbers[2 * n] = 1, id, n, id
end
if #ids == 0 then return reply end
redis.call('ZADD', KEYS[4], unpack(ends))
redis.call('ZADD', KEYS[5], unpack(numbers))
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #ids - 1)
return reply
"""
_COMMIT = """
local held, keys = redis.call('ZMSCORE', KEYS[5], unpack(ARGV)), {}
for n, id in ipairs(ARGV) do if held[n] then keys[#keys + 1] = 't:' .. id end end
redis.call('UNLINK', unpack(keys))
redis.call('ZREM', KEYS[4], unpack(ARGV))
redis.call('ZREM', KEYS[5], unpack(ARGV))
redis.call('HINCRBY', KEYS[3], 'succeeded', #keys)
return #keys
"""
_KEYS = ("waiting", "arrival", "counters", "pending", "leases")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a task is stored: the Lua that writes it, the fields that a reserve reads, and the words a client sends."""

    name: str
    write: str
    read: str
    words: Callable[[bytes], list[Any]]


def packed(payload: bytes = b"") -> bytes:
    """What a client would pack: lengths, queue and type; the key has the id, and `place` tells when it was enqueued."""
    return struct.pack(">BBI", len(_QUEUE), len(_TYPE), len(payload)) + _QUEUE.encode() + _TYPE.encode() + payload


LAYOUTS = (
    Layout(
        "seven fields",
        "redis.call('HSET', key, 'id', ARGV[at], 'place', last, 'payload', ARGV[at + 1], 'enqueue_time', now, "
        "'retry_count', '0', 'queue', ARGV[at + 2], 'type', ARGV[at + 3])",
        "'type', 'payload', 'enqueue_time', 'more'",
        lambda payload: [payload, _QUEUE, _TYPE],
    ),
    Layout(
        "packed",
        "redis.call('HSET', key, 'place', last, 't', ARGV[at + 1])",
        "'t', 'more'",
        lambda payload: [packed(payload)],
    ),
    Layout(
        "packed, payload apart",
        "redis.call('HSET', key, 'place', last, 't', ARGV[at + 1], 'payload', ARGV[at + 2])",
        "'t', 'payload', 'more'",
        lambda payload: [packed(), payload],
    ),
)


def measure(server: PrivateServer, layout: Layout, tasks: int, payload: bytes) -> dict[str, float]:
    """One turn: all measures of a layout."""
    redis = server.redis
    server.clear()
    enqueue = redis.register_script(_ENQUEUE % layout.write)
    reserve, commit = redis.register_script(_RESERVE % layout.read), redis.register_script(_COMMIT)
    width = len(layout.words(b""))

    def words(numbers: Sequence[int]) -> list[Any]:
        return [width, *(word for n in numbers for word in (_id(n), *layout.words(payload)))]

    singles = [words([n]) for n in range(_SINGLES)]
    bulks = [words(some) for some in _batches(range(_SINGLES, tasks), _BULK)]
    before = redis.info("memory")["used_memory"]
    found = {}
    found["enqueue, µs"] = _each(server, lambda: [enqueue(_KEYS, one) for one in singles], _SINGLES)
    found["enqueue in bulk, µs"] = _each(server, lambda: [enqueue(_KEYS, one) for one in bulks], tasks - _SINGLES)
    found["bytes"] = (redis.info("memory")["used_memory"] - before) / tasks
    found["reserve, µs"] = _each(server, lambda: _until_empty(reserve), tasks)
    ends = [[_id(n) for n in some] for some in _batches(range(tasks), _DRAIN)]
    found["commit, µs"] = _each(server, lambda: [commit(_KEYS, one) for one in ends], tasks)
    left = list(redis.scan_iter(match="t:*"))
    if left or redis.zcard("pending") or redis.hget("counters", "succeeded") != str(tasks).encode():
        raise SystemExit(f"VOID: {layout.name} left {len(left)} tasks")
    return found


def _id(number: int) -> str:
    return f"01a2150fa1a8{number:016x}"


def _batches(numbers: range, size: int) -> Iterator[Sequence[int]]:
    return (numbers[first : first + size] for first in range(0, len(numbers), size))


def _until_empty(reserve: Any) -> None:
    while reserve(_KEYS, [_DRAIN]):
        pass


def _each(server: PrivateServer, run: Callable[[], Any], count: int) -> float:
    before = server.usage()
    run()
    return (server.usage() - before).cpu_us / count


def main() -> int:
    """Prints the table."""
    asked = argparse.ArgumentParser(
        prog="python -m benchmarks.packed_fields", description=(__doc__ or "").splitlines()[0]
    )
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--tasks", type=int, default=50_000)
    asked.add_argument("--payload", type=int, default=10, help="bytes of a payload")
    asked.add_argument("--compact", type=int, default=512, help="hash-max-listpack-value (server default: 64)")
    asked.add_argument("--json", type=Path)
    given = asked.parse_args()
    load, turns = os.getloadavg()[0], {layout.name: list[dict[str, float]]() for layout in LAYOUTS}
    with PrivateServer() as server:
        server.redis.config_set("hash-max-listpack-value", given.compact)
        for number in range(given.rounds):
            for layout in LAYOUTS if number % 2 == 0 else reversed(LAYOUTS):
                turns[layout.name].append(measure(server, layout, given.tasks, b"x" * given.payload))
                print(f"round {number + 1}: {layout.name}", file=sys.stderr)
    if given.json:
        write_json(given.json, turns)
    found = {name: {one: median(turn[one] for turn in some) for one in _MEASURES} for name, some in turns.items()}
    plain = found[LAYOUTS[0].name]
    rows = []
    for name, medians in found.items():
        rows.append((name, *(f"{medians[one]:,.1f} ({medians[one] / plain[one]:.2f})" for one in _MEASURES)))
    print(Table(("layout", *_MEASURES), rows).text())
    print(f"payload of {given.payload} bytes, hash-max-listpack-value {given.compact}; load before: {load:.1f}")
    print(f"in brackets: ÷ {LAYOUTS[0].name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
