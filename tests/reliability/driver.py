"""A driver of batches in a process of its own, without Spark: a sink into files, one for each batch, for R41.

It does as a station's driver does: fills up what is new, has the batch confirmed if its client has a durability, renews
before it writes, writes under the id of the batch in place of what is there, and hands back or reports what it cannot
do.
"""

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

from jobrunner import Client
from jobrunner.broker.call import command
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.client.client import broker_of, keys_of
from jobrunner.errors import BatchLost, ServerError

LEASE_S = 2.0
BAD, MISFIT = "bad", "misfit"
"""Payloads: a record that the function raises for, and one that does not fit."""


def written(folder: Path) -> list[str]:
    """The ids of all items in the sink. The file of a whole batch does not count once one of its halves wrote."""
    names = sorted(path.stem for path in folder.glob("*.json"))
    whole = {name for name, behind in pairwise(names) if behind.startswith(f"{name}.")}
    return [one for name in names if name not in whole for one in json.loads((folder / f"{name}.json").read_text())]


def main(url: str, prefix: str, queue: str, folder: str, batch: str, work_s: str, durability: str) -> None:
    """Takes batches until its parent is gone. `work_s`: how long the function takes for a batch."""
    parent, size = os.getppid(), int(batch)
    client = Client(url, prefix, retry_timeout=0, durability=durability)
    batches = Batches(broker_of(client), keys_of(client).queue(queue))
    while os.getppid() == parent:
        try:
            lease = batches.take(size, lease_s=LEASE_S)
            if lease is None:
                time.sleep(0.02)
            elif lease.state == "open":
                _run(client, batches, lease, Path(folder), size, float(work_s))
            else:
                _roll(lease)
        except BatchLost:
            continue
        except ServerError:
            time.sleep(0.05)


def _run(client: Client, batches: Batches, lease: BatchLease, folder: Path, size: int, work_s: float) -> None:
    if lease.is_new and lease.size < size:
        batches.top_up(lease, size - lease.size)
    if client.settings.durability != "none":
        lease.confirm()  # a server that forgot the batch would hand its items out under another id
    members = lease.members(0, lease.size)
    keys = keys_of(client).queue(lease.queue)
    calls = [command("HGET", keys.task(one), "payload", read=json.loads) for one in members]
    payloads = broker_of(client).run_many(calls)
    if BAD in payloads:
        lease.fail("ValueError: cannot read it", delay_s=0)
        return
    fit = [one for one, payload in zip(members, payloads, strict=True) if payload != MISFIT]
    draft = folder / f"{lease.id}.{os.getpid()}.draft"
    draft.write_text(json.dumps(fit))
    time.sleep(work_s)  # the work of the batch
    lease.renew()  # another attempt may have begun: then write nothing more
    draft.rename(folder / f"{lease.id}.json")
    rows = [(one, "out", b"1", "") if payload != MISFIT else (one, "", b"it does not fit", "")
            for one, payload in zip(members, payloads, strict=True)]  # fmt: skip
    nonce = f"{os.getpid()}.{lease.epoch}"
    lease.stage_all(nonce, [word for row in rows for word in row], after=0)
    lease.decide([nonce], rest="dropped")
    _roll(lease)


def _roll(lease: BatchLease) -> None:
    while not lease.advance().done:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
