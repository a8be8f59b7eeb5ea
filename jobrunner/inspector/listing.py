"""Full records of tasks."""

from collections.abc import Iterable, Iterator
from itertools import islice

from jobrunner.broker.calls import tasks
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.errors import JobrunnerError
from jobrunner.task import TaskRecord

STATES = ("pending", "waiting", "scheduled", "dead")
_IDS_AT_ONCE = 10_000
_RECORDS_AT_ONCE = 100
"""Few enough that their payloads, up to 1 MiB each, fit into memory."""


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
    found = broker_of(client).run_each([tasks.show(keys_of(client), task_id, queue=queue) for task_id in ids])
    return [record for record in found if record is not None and not isinstance(record, JobrunnerError)]


def dead_ids(client: Client, queue: str) -> list[str]:
    """Ids of all tasks that are dead now, the longest dead first. Raises InvalidName."""
    asked, found = client.queue(queue), list[str]()
    while page := asked.ids("dead", limit=_IDS_AT_ONCE, start=len(found)):
        found += page
    return found


def dead_like(
    client: Client, queue: str, ids: Iterable[str], *, job: str | None = None, error: str | None = None
) -> Iterator[TaskRecord]:
    """Those of these tasks that are dead, of that job, and have that text in their last error, whatever its case.

    Reads `ids` and the server as it goes, so it may be stopped early.
    """
    rest, text = iter(ids), (error or "").casefold()
    while some := list(islice(rest, _RECORDS_AT_ONCE)):
        for record in read_tasks(client, queue, some):
            if record.state == "dead" and job in (None, record.type) and text in record.error.casefold():
                yield record
