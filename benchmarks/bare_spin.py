"""Two processes that only compute, at the same time: the limit of CPU-bound tasks on this machine at this time.

They take their tasks from one pipe, a read for each, so that neither has some left when the other has none. The
server only keeps their number until they are done.
"""

import os
import struct
import sys

from redis import Redis

from benchmarks.ledger import recorder
from benchmarks.produce import serve
from benchmarks.waits import compute

TASKS = "bare:spins"
_NUMBER = struct.Struct("<I")


def main(count: int) -> None:
    redis = Redis.from_url(os.environ["BENCHMARK_URL"])
    record, tasks = recorder(), int(redis.get(TASKS) or 0)
    tickets, box = os.pipe()
    for _ in range(count):
        if not os.fork():
            os.close(box)
            while ticket := os.read(tickets, _NUMBER.size):
                compute()
                record(_NUMBER.unpack(ticket)[0])
            os._exit(0)
    with os.fdopen(box, "wb") as out:
        out.write(b"".join(map(_NUMBER.pack, range(tasks))))
    for _ in range(count):
        os.wait()
    redis.delete(TASKS)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        main(int(sys.argv[2]))
    else:
        client = Redis.from_url(os.environ["BENCHMARK_URL"])
        serve(lambda _task, _number: client.incr(TASKS), lambda _task, numbers: client.set(TASKS, len(numbers)))
