"""Operations on periodic jobs, shared by Client, AsyncClient, the command line and the dashboard."""

from jobrunner.broker.calls import events
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.operation import Operation, ask
from jobrunner.errors import UnknownJob
from jobrunner.formatting import describe
from jobrunner.periodic import PeriodicDefinition, read_definition

_NAMED = 10


def published(keys: Keys, name: str) -> Operation[PeriodicDefinition]:
    """Returns the definition that a worker published. Raises UnknownJob, naming those that are known."""
    found = yield from ask(leader_calls.periodics(keys))
    readable = {one: definition for one, raw in found.items() if (definition := read_definition(raw)) is not None}
    if not isinstance(name, str) or name not in readable:
        raise UnknownJob(f"no periodic job {describe(name)} was published; {_known(sorted(readable))}")
    return readable[name]


def switch(keys: Keys, name: str, *, enabled: bool) -> Operation[None]:
    """Has the ticks of a periodic job fire, or pass by. Raises UnknownJob."""
    job = yield from published(keys, name)
    kind = "periodic_enabled" if enabled else "periodic_disabled"
    yield [
        leader_calls.enable_periodic(keys.queue(job.queue), job.name, enabled=enabled),
        events.note(keys, kind, queue=job.queue, job=job.name, by=events.who()),
    ]


def _known(names: list[str]) -> str:
    if not names:
        return "no worker published any yet"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"known are {', '.join(names[:_NAMED])}{more}"
