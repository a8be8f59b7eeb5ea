"""Tasks of a queue with all that is known of each."""

from jobrunner.broker.calls import tasks
from jobrunner.client.client import Client
from jobrunner.errors import JobrunnerError
from jobrunner.task import TaskRecord

STATES = ("pending", "waiting", "scheduled", "dead")


def list_tasks(client: Client, queue: str, state: str | None = None, *, limit: int = 100) -> list[TaskRecord]:
    """Tasks of one state, or of all four, first in line first; at most `limit`. Raises InvalidName, InvalidOption."""
    asked = client.queue(queue)
    ids: list[str] = []
    for one in STATES if state is None else (state,):
        if len(ids) < limit:
            ids += asked.ids(one, limit=limit - len(ids))
    return read_tasks(client, queue, ids)


def read_tasks(client: Client, queue: str, ids: list[str]) -> list[TaskRecord]:
    """The records of these tasks in one round trip, without those that are gone."""
    if not ids:
        return []
    found = client.broker.run_each([tasks.show(client.keys, task_id, queue=queue) for task_id in ids])
    return [record for record in found if record is not None and not isinstance(record, JobrunnerError)]
