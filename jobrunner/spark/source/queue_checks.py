"""Checks of the queues of a read, before anything is read of them."""

from collections.abc import Sequence

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.broker.keys import Keys
from jobrunner.broker.shards import is_shard, whole_queue
from jobrunner.errors import InvalidOption
from jobrunner.spark.source.options import ReadOptions


def check_queues(broker: Broker, options: ReadOptions, registered: Sequence[str]) -> None:
    """Raises InvalidOption for a queue that does not exist, a pattern that matches none, and a queue that is named for
    its history and keeps none: no row would come. A pattern may match queues without history. `registered`: the names
    of all queues."""
    if not options.needs_queues:
        return
    options.check_there(registered)
    if options.states != ("done",):
        return
    keys = Keys(options.prefix)
    named = [name for name in options.queues if name in registered]
    shards = [name for name in registered if is_shard(name) and whole_queue(name) in named]
    limits = [command("HMGET", keys.queue(one).settings, "history_ms", "history_max", read=_numbers) for one in named]
    entries = [command("EXISTS", keys.queue(one).done, read=int) for one in (*named, *shards)]
    found = broker.run_many([*limits, *entries])
    of_entries = zip((*named, *shards), found[len(named) :], strict=True)
    with_entries = {whole_queue(one) for one, has_entries in of_entries if has_entries}
    for name, kept in zip(named, found, strict=False):
        if not any(kept) and name not in with_entries:
            instead = "waits for that" if options.is_stream else "reads nothing instead"
            raise InvalidOption(
                f"queue {name!r} keeps no history, so no row would come: set configure(history=…) of it, or history= "
                f"where it is declared (missingQueues=ignore {instead})"
            )


def _numbers(reply: list[bytes | None]) -> list[float | None]:
    return [None if word is None else float(word) for word in reply]
