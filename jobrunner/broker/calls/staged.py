"""Calls that look up what was staged of a batch that is not decided yet."""

from collections.abc import Sequence
from typing import Any

from jobrunner.broker.call import Call, command
from jobrunner.broker.keys import QueueKeys


def nonces(keys: QueueKeys, batch_id: str, epoch: int, *, prefix: str) -> Call[list[str]]:
    """Those that begin with `prefix`, of the holder of that epoch, sorted."""
    start = f"{epoch}."

    def read(reply: Any) -> list[str]:
        names = (raw.decode() for raw in reply)
        return sorted(name.removeprefix(start) for name in names if name.startswith(start + prefix))

    return command("SMEMBERS", _key(keys, batch_id, ":nonces"), read=read)


def staged_ids(keys: QueueKeys, batch_id: str, epoch: int, nonce: str) -> Call[list[str]]:
    """The ids of the rows under one nonce, in order."""
    rows = _key(keys, batch_id, f":rows:{epoch}.{nonce}")
    return command("LRANGE", rows, 0, -1, read=lambda reply: [raw.decode() for raw in reply[::4]])


def existing(keys: QueueKeys, ids: Sequence[str]) -> list[Call[bool]]:
    """For each id whether there is a task of it that is not over: only the hashes of those have an end of life."""
    return [command("PTTL", keys.task(one), read=lambda left: left == -1) for one in ids]


def _key(keys: QueueKeys, batch_id: str, of: str) -> bytes:
    return keys.batch + (batch_id + of).encode()
