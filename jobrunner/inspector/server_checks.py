"""What is looked at on the server: whether it can be reached, is safe for tasks, and has workers for its queues."""

from collections.abc import Iterator

from jobrunner.broker.call import command
from jobrunner.broker.calls.server import ServerFacts
from jobrunner.client.client import Client
from jobrunner.clock import unix_ms
from jobrunner.errors import ServerError
from jobrunner.inspector.check import Check, fail, ok, warn
from jobrunner.inspector.overview import QueueView, latency_ms, queue_views, server_facts

_OLDEST = (6, 2)
_SLOW_MS = 20.0
_SKEWED_MS = 2000.0
_NEARLY_FULL = 0.8


def check_server(client: Client) -> Iterator[Check]:
    """Looks at the server; ends after the first check when it cannot be reached."""
    try:
        latency_ms(client)  # opens the connection, which is not to be measured
        slow_ms = latency_ms(client)
    except ServerError as error:
        yield fail("server", "cannot be reached", str(error))
        return
    yield reached_check(slow_ms)
    facts = server_facts(client)
    if facts is None:
        yield warn("settings", "this user may not ask for them (INFO)", "allow +info, or look at maxmemory-policy")
    else:
        yield from facts_checks(facts)
    yield clock_check(client)
    yield from work_checks(client)


def reached_check(slow_ms: float) -> Check:
    """How long an answer takes."""
    if slow_ms <= _SLOW_MS:
        return ok("server", f"answers in {slow_ms:.1f} ms")
    return warn("server", f"answers in {slow_ms:.0f} ms", "run workers near it: every batch of tasks waits so long")


def facts_checks(facts: ServerFacts) -> Iterator[Check]:
    """Version, eviction, memory, and what survives a restart."""
    name = f"{facts.name} {facts.version}"
    recent = _version(facts.version) >= _OLDEST
    yield ok("version", name) if recent else fail("version", name, "use Redis 6.2 or later, or Valkey")
    policy = facts.maxmemory_policy or "unknown"
    if facts.evicts:
        yield fail("eviction", f"maxmemory-policy is {policy}: tasks may be deleted", "set it to noeviction")
    else:
        yield ok("eviction", f"maxmemory-policy is {policy}")
    if facts.maxmemory and facts.used_memory > _NEARLY_FULL * facts.maxmemory:
        share = f"{facts.used_memory / facts.maxmemory:.0%} of maxmemory is used"
        yield warn("memory", share, "raise maxmemory, or purge what is dead: a full server takes no tasks")
    else:
        yield ok("memory", f"{facts.used_memory / 2**20:.0f} MiB used")
    if facts.aof:
        yield ok("durability", "the append-only file is on")
    else:
        yield warn("durability", "the append-only file is off: a crash of the server loses tasks", "set appendonly yes")


def clock_check(client: Client) -> Check:
    """How far the clock of this machine is from that of the server."""
    before = unix_ms()
    server_ms = client.broker.run(command("TIME", read=lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000))
    skew_ms = server_ms - (before + unix_ms()) / 2
    if abs(skew_ms) <= _SKEWED_MS:
        return ok("clock", f"{abs(skew_ms):.0f} ms from the server's")
    return warn("clock", f"{abs(skew_ms) / 1000:.1f} s from the server's", "synchronise both (NTP): at=… would be off")


def work_checks(client: Client) -> Iterator[Check]:
    """Whether somebody works: queues without a worker, dead tasks, periodic jobs that nobody knows."""
    workers = client.workers()
    found = queue_views(client, workers)
    yield ok("workers", f"{len(workers)} at work") if workers else warn("workers", "none", "jobrunner work MODULE")
    yield from (check for queue in found for check in queue_checks(queue))
    for job in client.periodics():
        if not job.served:
            yield warn("periodic", f"{job.name} is not fired: no worker knows it", "start a worker with its module")


def queue_checks(queue: QueueView) -> Iterator[Check]:
    """What is wrong with one queue."""
    undone = queue.waiting + queue.scheduled + queue.pending
    if queue.problem:
        yield fail("queue", f"{queue.name}: cannot be read", queue.problem)
    if undone and not queue.workers:
        yield warn("queue", f"{queue.name}: {undone} to do and no worker", f"jobrunner work MODULE -q {queue.name}")
    if queue.paused:
        yield warn("queue", f"{queue.name}: paused", f"jobrunner queues resume {queue.name}")
    if queue.dead:
        yield warn("queue", f"{queue.name}: {queue.dead} dead", f"jobrunner dead list {queue.name}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
