"""Publishes the settings that queues and stations are declared with, when a worker starts and with each heartbeat. The
other shards of a queue get those of its first one. Heartbeats publish pipelines, too, where they are missing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from jobrunner.broker.broker import Broker, run_each_of_nodes, run_each_or_errors
from jobrunner.broker.call import Call, texts
from jobrunner.broker.calls import events, queues
from jobrunner.broker.calls.shards import UNKNOWN
from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client, keys_of
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.partitions import align
from jobrunner.client.settings_hash import settings_named
from jobrunner.errors import NO_ANSWER, JobrunnerError
from jobrunner.jobs.declared_queues import DeclaredQueue, published_by, publishing
from jobrunner.logs import SafeLogger
from jobrunner.worker.shards import read_shard_counts
from jobrunner.worker.startup import tried_once

_MISFIT = "declared settings do not fit a queue with partitions"
_AWAY = "declared settings have not reached all partitions: the server of some is away"
_log = SafeLogger("jobrunner.worker")


def publish_declared(client: Client, heartbeat_s: float, served: Iterable[str] = ()) -> dict[str, str]:
    """Publishes the declared queues and the settings of the stations of `served` ones, registers them, and logs which
    settings that changed. A queue that is refused, as one of its keys is damaged, is logged and does not keep the
    worker from starting. Returns the queues of which the server of some shards is away, with the place of their
    declaration. Raises ServerError."""
    if not (declared := published_by(served)):
        return {}
    keys = keys_of(client)
    with tried_once(client) as broker:
        away: dict[str, str] = {}
        (registered,) = run_each_of_nodes(broker, [_registering(keys, declared)])
        if isinstance(registered, NO_ANSWER):
            _log.warning("declared queues are not registered", error=str(registered))
            away = {one.name: one.place for one in declared}
        elif isinstance(registered, JobrunnerError):  # as a newer version writes here
            raise registered
        news: list[Call[None]] = []
        replies = run_each_of_nodes(broker, publishing(keys, declared, heartbeat_s))
        for one, changed in zip(declared, replies, strict=True):
            if isinstance(changed, JobrunnerError):
                if isinstance(changed, NO_ANSWER):
                    away[one.name] = one.place
                _log.warning("declared settings are not published", queue=one.name, error=str(changed), place=one.place)
            elif changed:
                _log_published(one, changed)
                news.append(_configured(keys, one, changed))
        run_each_or_errors(broker, news)  # an event holds nothing up
        return away | _align_all(broker, keys, {one.name: one.place for one in declared if one.name not in away})


def _registering(keys: Keys, declared: Iterable[DeclaredQueue]) -> Call[bool]:
    """Registers these queues, and those of their dead letters."""
    named = [name for one in declared for name in (one.name, one.settings.get("dead_letter_queue")) if name]
    return queues.register_queues(keys, named)


class Declarations:
    """Publishes the declared settings again with each heartbeat. When that changes some, as a newer release was rolled
    back or the server has lost them, the other shards of the queue get them, too: only its first one is published to.
    So do those of the queues that are `unaligned`, with the place of their declaration.
    """

    def __init__(
        self, broker: Broker, keys: Keys, served: Collection[str], heartbeat_s: float,
        unaligned: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._broker = broker
        self._keys = keys
        self._served = served
        self._heartbeat_s = heartbeat_s
        self._asked: list[DeclaredQueue] = []
        self._unaligned = dict(unaligned or {})

    def asking(self) -> list[Call[Any]]:
        """Calls that publish the settings, and the pipelines that are missing; the server may refuse any of them."""
        self._unaligned.update((one.name, one.place) for one in self._asked)  # the reply was lost
        self._asked = published_by(self._served)
        calls = publishing(self._keys, self._asked, self._heartbeat_s)
        pipelines = dict.fromkeys(one.publishes for one in self._asked if one.publishes is not None)
        return [
            *(replace(call, read=lambda reply: texts(reply or []), may_fail=True) for call in calls),
            *(publish(self._keys) for publish in pipelines),
        ]

    def take(self, replies: Sequence[list[str]]) -> None:
        """Takes in which settings changed. What an outage keeps from other shards follows with the next heartbeat."""
        news: list[Call[None]] = []
        for one, changed in zip(self._asked, replies, strict=False):
            if changed:
                _log_published(one, changed)
                news.append(_configured(self._keys, one, changed))
                self._unaligned[one.name] = one.place
        self._asked = []
        if news:
            with suppress(*NO_ANSWER):  # an event holds nothing up
                self._broker.run_many(news)
        if self._unaligned:
            run_each_or_errors(self._broker, [_registering(self._keys, published_by(self._served))])
        for name, place in list(self._unaligned.items()):
            try:
                run_operation(self._broker, align(QueueRef(self._keys, None, name, 0)))
            except NO_ANSWER as error:
                if self._broker.is_away(error):
                    return
                continue  # of a cluster it may be one node
            except JobrunnerError as error:
                _log.warning(_MISFIT, queue=name, error=str(error), place=place)
            del self._unaligned[name]


def _log_published(one: DeclaredQueue, changed: list[str]) -> None:
    _log.info("declared settings published", queue=one.name, settings=settings_named(changed), place=one.place)


def _configured(keys: Keys, one: DeclaredQueue, changed: list[str]) -> Call[None]:
    """The event that declared settings were published that changed these fields."""
    details = {f"set_{name}": str(one.settings.get(name)) for name in settings_named(changed)}
    return events.note(keys, "queue_configured", queue=one.name, by=events.who(), place=one.place, **details)


def align_stations(client: Client, names: Iterable[str]) -> dict[str, str]:
    """Gives the shards of these queues the settings of their stations, where their pipeline has partitions. A queue
    that is refused is logged and does not keep the worker from starting. Returns those that are left, as their server
    is away. Raises ServerError."""
    with tried_once(client) as broker:
        return _align_all(broker, keys_of(client), {name: "" for name in names if "/" in name})


def _align_all(broker: Broker, keys: Keys, places: Mapping[str, str]) -> dict[str, str]:
    """Gives the shards of these queues, by the place of their declaration, the settings that they have. Those without
    other shards cost one round trip for all. Returns the ones that are left, as their server is away."""
    counts = zip(places, read_shard_counts(broker, keys, list(places)), strict=True)
    return {
        name: places[name] for name, found in counts
        if found is UNKNOWN or (found.served > 1 and not align_queue(broker, keys, name, place=places[name]))
    }  # fmt: skip


def align_queue(broker: Broker, keys: Keys, name: str, **more: object) -> bool:
    """Gives the shards of a queue the settings it has; False when the server of some is away. That is logged, with
    `more`, and so is a refusal."""
    try:
        run_operation(broker, align(QueueRef(keys, None, name, 0)))
    except NO_ANSWER as error:
        _log.warning(_AWAY, queue=name, error=str(error), **more)
        return False
    except JobrunnerError as error:
        _log.warning(_MISFIT, queue=name, error=str(error), **more)
    return True
