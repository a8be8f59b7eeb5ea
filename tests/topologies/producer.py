"""A producer as a process: ``python -m tests.topologies.producer '{"url": …, "prefix": …, "queues": […]}'``.

Enqueues one task after another until its input ends, and notes each in the ledger after the enqueue has returned. What
was not acknowledged is sent again under the same id, as the error says.
"""

import itertools
import json
import os
import sys
import threading

from jobrunner import Client
from jobrunner.errors import JobrunnerError, OutcomeUnknown, ServerUnavailable
from jobrunner.task import Task
from tests.acceptance.ledger import record

_LONGEST_NOTE = 200


def main(url: str, prefix: str, queues: list[str], **options: object) -> None:
    """Produces."""
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    with Client(url, prefix, **options) as client:
        for number, queue in zip(itertools.count(), itertools.cycle(queues), strict=False):
            if stop.is_set():
                return
            task = Task(id=f"{os.getpid()}.{number}", queue=queue, type="Work", payload=b'{"n": 1, "seconds": 0.002}')
            while not _is_sent(client, task):
                if stop.is_set():
                    return
            record("sent", task.id, note=queue)


def _is_sent(client: Client, task: Task) -> bool:
    try:
        client.enqueue(task)
    except (OutcomeUnknown, ServerUnavailable) as error:
        record("unsent", task.id, note=str(error).replace(" ", "_")[:_LONGEST_NOTE])
        return False
    except JobrunnerError as error:
        record("refused", task.id, note=str(error).replace(" ", "_")[:_LONGEST_NOTE])
        raise
    return True


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
