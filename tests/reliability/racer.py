"""A process that enqueues unique tasks as fast as it can: ``python -m tests.reliability.racer URL PREFIX KEYS FILE``.

Ends when the file appears, and prints how many enqueues were new and how many found one that was there.
"""

import json
import random
import sys
from collections import Counter
from pathlib import Path

from jobrunner import Client
from jobrunner.client.current import use
from jobrunner.errors import DuplicateTask
from tests.reliability.jobs import KINDS_OF_UNIQUE


def main(url: str, prefix: str, keys: str, over: str) -> None:
    """Races."""
    use(Client(url, prefix, retry_timeout=30))
    found: Counter[str] = Counter()
    print("ready", flush=True)
    while not Path(over).exists():
        job, key = random.choice(KINDS_OF_UNIQUE), random.randrange(int(keys))
        try:
            task = job(key=key).enqueue()
            found[task.id] += 1
        except DuplicateTask:
            found["raised"] += 1
    print(json.dumps({"calls": sum(found.values()), "ids": [one for one in found if one != "raised"]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
