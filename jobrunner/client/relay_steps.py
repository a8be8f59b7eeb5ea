"""The relay as a part of other operations."""

from jobrunner.broker.keys import Keys
from jobrunner.client.relay import relaying
from jobrunner.client.steps import Steps


def relayed(keys: Keys, tag: str) -> Steps[bool]:
    """Tells the joins that wait of the ends of tasks that lie in the outbox of a tag. Returns False."""
    return (yield from relaying(keys, tags=[tag]))
