"""Names of all queues, read in slices: many of them at once would hold the server up."""

from jobrunner.broker.calls import queues
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.operation import Operation, ask


def queue_names(keys: Keys) -> Operation[list[str]]:
    """Returns the full names of all queues, sorted. Queues created or deleted during the scan may be missing."""
    found: set[str] = set()
    cursor = 0
    while True:
        cursor, names = yield from ask(queues.registered(keys, cursor))
        found.update(names)
        if not cursor:
            return sorted(found)
