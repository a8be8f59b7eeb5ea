"""The verdict on a run, from the ledger, the acknowledged tasks, and the server's counters."""

from collections import Counter

from jobrunner.client.client import keys_of
from tests.reliability.scenario import Findings
from tests.reliability.stage import PREFIX, QUEUE, Stage
from tests.support.queue_audit import census, problems, strays


def judge(
    stage: Stage, findings: Findings, *, more_starts: int, queue: str = QUEUE, dead: int = 0, again: int = 0
) -> None:
    """Checks a queue that was drained: nothing lost, nothing doubled beyond `more_starts`, counters that agree.

    `more_starts` is how many attempts may have begun beyond one for each task; `dead` how many tasks must be dead;
    `again` how many attempts may have begun twice under one number, as they do when the server forgets the first.
    """
    keys = keys_of(stage.client).queue(queue)
    starts = [(entry.task, entry.attempt) for entry in stage.ledger.entries("start")]
    ended = set(stage.ledger.times("end"))
    sets = census(stage.raw, keys)
    lost = stage.acknowledged - ended - set(sets["dead"])
    findings.note("tasks", len(stage.acknowledged))
    findings.equals("acknowledged tasks lost", len(lost), 0)
    findings.equals("tasks run that were not enqueued", len(ended - stage.acknowledged), 0)
    findings.at_most("attempts beyond one for each task", len(starts) - len({task for task, _ in starts}), more_starts)
    findings.at_most("attempts begun twice", sum(times - 1 for times in Counter(starts).values()), again)
    findings.equals("dead", len(sets["dead"]), dead)
    findings.equals("still there", sum(len(sets[state]) for state in ("waiting", "scheduled", "pending")), 0)
    findings.equals("problems of the books", problems(stage.raw, keys), [])
    findings.equals("keys that should not be", strays(stage.raw, keys), [])
    findings.equals("keys outside the prefix", outside(stage), [])


def outside(stage: Stage) -> list[str]:
    """Keys that are not below the prefix. The audit log is below `prefix/`, where workers cannot write."""
    root = (f"{PREFIX}:".encode(), f"{PREFIX}/".encode())
    return [repr(key) for key in stage.raw.scan_iter(count=1000) if not key.startswith(root)]
