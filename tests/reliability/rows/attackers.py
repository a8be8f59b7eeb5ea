"""An attacker with the password of a producer, on a server whose payloads are encrypted: R42."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis

from jobrunner import Client
from jobrunner.client.client import keys_of
from jobrunner.client.current import pinned
from tests.acceptance.fleet import JOBS
from tests.reliability.checker import outside
from tests.reliability.jobs import Pay, Refund
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import PREFIX, QUEUE, Stage
from tests.security.attacks import FIELDS, NASTY, Fields, line_up
from tests.security.conftest import KEY, OTHER
from tests.security.roles import PASSWORD, grant

_ENCRYPTED: dict[str, Any] = {"payload_keys": [KEY], "require_encryption": True}
_WORKERS = _ENCRYPTED
_SPARED = 3
"""Each third task is not attacked."""


@scenario("R42", short={"tasks": 300, "rounds": 3}, full={"tasks": 1_000, "rounds": 40})
def attacked(stage: Stage, findings: Findings, tasks: int, rounds: int) -> None:
    """An attacker with a producer's password swaps, multiplies, replays, downgrades, cuts and edits encrypted tasks.

    Only tasks that a producer enqueued run, as the jobs and with the parameters and headers that they were enqueued
    with. A task that the attacker enqueues again under its own id may run again, and counts as a replay. Tasks that
    were not attacked run once.
    """
    grant(stage.raw, PREFIX)
    stage.give_up_s = 3.0  # an edited task may be due in years
    stage.fleet.start(2, modules=[JOBS, Pay.__module__], settings=_WORKERS, unknown_grace=0)
    with stage.server.connect(username="producer", password=PASSWORD) as raw:
        attacker = _Attacker(stage, raw)
        for number in range(rounds):
            attacker.play(tasks)
            stage.say(f"round {number + 1} of {rounds}")
    stage.stop_workers()

    ran = [(entry.task, entry.note) for entry in stage.ledger.entries("end")]
    times, enqueued = Counter(task for task, _ in ran), attacker.enqueued
    findings.note("tasks", len(enqueued))
    for kind, count in sorted(attacker.done.items()):
        findings.at_least(f"attacks: {kind}", count, 1)
    dead = stage.client.queue(QUEUE).counts()["dead"]
    findings.at_least("tasks that workers refused", dead, sum(attacker.done.values()) // 2)
    findings.equals("runs of what was not enqueued", sum(task not in enqueued for task, _ in ran), 0)
    findings.equals("runs as what was not enqueued", sum(enqueued.get(task, note) != note for task, note in ran), 0)
    again = {task for task, count in times.items() if count > 1}
    findings.equals("not attacked and not run", sum(times[task] == 0 for task in attacker.spared), 0)
    findings.equals("not attacked and run twice", len(again & attacker.spared - attacker.replayed), 0)
    findings.equals("run twice, and not put in line again under their ids", len(again - attacker.replayed), 0)
    findings.note("tasks that ran again, as they were put in line again", len(again))
    findings.equals("keys outside the prefix", outside(stage), [])


class _Attacker:
    """Has the permissions of a producer. `enqueued` are all honest tasks, with the ledger entry of each."""

    def __init__(self, stage: Stage, raw: redis.Redis) -> None:
        self.enqueued: dict[str, str] = {}
        self.spared: set[str] = set()
        self.replayed: set[str] = set()
        self.done = Counter[str]()
        self._stage = stage
        self._raw = raw
        self._keys = keys_of(stage.client).queue(QUEUE)
        self._rng = random.Random(42)
        self._old: list[tuple[str, Fields]] = []
        self._kinds: dict[str, Callable[[str, Fields], None]] = {
            "swap": self._swap, "multiply": self._multiply, "replay": self._replay,
            "replay under another id": self._revive, "downgrade": self._downgrade, "cut": self._cut, "edit": self._edit,
        }  # fmt: skip

    def play(self, tasks: int) -> None:
        """Honest producers enqueue tasks, the attacker changes them while they wait, and workers run the rest."""
        queue = self._stage.client.queue(QUEUE)
        queue.pause()
        ids = self._enqueue(tasks, **_ENCRYPTED)
        ids += self._enqueue(tasks // 10, **_ENCRYPTED, payload_encryption="sign")
        self._weaker = [*self._forge(), *(self._read(one) for one in ids[tasks : tasks + 2])]
        self._now = [(one, self._read(one)) for one in ids]
        for number, (task_id, fields) in enumerate(self._now):
            if number % _SPARED == 0:
                self.spared.add(task_id)
                continue
            kind = self._rng.choice(list(self._kinds))
            self._kinds[kind](task_id, fields)
            self.done[kind] += 1
        queue.resume()
        self._stage.drain()
        self._old = self._now

    def _enqueue(self, count: int, **options: Any) -> list[str]:
        rng = self._rng
        jobs = [rng.choice((Pay, Refund))(to=f"to{rng.randrange(99)}", amount=rng.randrange(999)) for _ in range(count)]
        with Client(self._stage.server.url, PREFIX, **options) as client, pinned(client):
            ids = [one.enqueue().id for one in jobs]
        for task_id, one in zip(ids, jobs, strict=True):
            self.enqueued[task_id] = f"{one.SIGN}{one.to}:{one.amount}:0"
        return ids

    def _forge(self) -> list[Fields]:
        """Tasks that the attacker enqueues as a producer does, plain and with a key of its own: none may run."""
        url = self._stage.server.url.replace("unix://", f"unix://producer:{PASSWORD}@")
        ids = []
        for options in ({}, {"payload_keys": [OTHER]}):
            with Client(url, PREFIX, **options) as client, pinned(client):
                ids.append(Pay(to="eve", amount=9).enqueue().id)
        return [self._read(one) for one in ids]

    def _read(self, task_id: str) -> Fields:
        found: Fields = self._raw.hgetall(self._keys.task(task_id))
        return found

    def _write(self, task_id: str, fields: Fields) -> None:
        self._raw.hset(self._keys.task(task_id), mapping=fields)

    def _new_id(self) -> str:
        return f"forged-{self._rng.getrandbits(64):x}"

    def _swap(self, task_id: str, fields: Fields) -> None:
        """Copies some fields of another task, of the same job or not."""
        _, other = self._rng.choice(self._now)
        names = self._rng.choice([(b"payload",), (b"payload", b"encoding"), (b"payload", b"encoding", b"type")])
        self._write(task_id, {name: other[name] for name in names})

    def _multiply(self, task_id: str, fields: Fields) -> None:
        """The same task under further ids, as it is and with the id in its hash."""
        for changed in ({}, {b"id": task_id.encode()}):
            line_up(self._raw, self._keys, self._new_id(), fields, changed)

    def _replay(self, task_id: str, fields: Fields) -> None:
        """An earlier task again, under its own id."""
        old_id, old = self._rng.choice(self._old or self._now)
        self.replayed.add(old_id)
        line_up(self._raw, self._keys, old_id, old)

    def _revive(self, task_id: str, fields: Fields) -> None:
        """An earlier task under a new id, and instead of a waiting task."""
        _, old = self._rng.choice(self._old or self._now)
        line_up(self._raw, self._keys, self._new_id(), old)
        self._write(task_id, {**old, b"id": task_id.encode()})

    def _downgrade(self, task_id: str, fields: Fields) -> None:
        """Plain text, text signed for another task, or text encrypted with another key instead of the ciphertext."""
        weaker = self._rng.choice(self._weaker)
        self._write(task_id, {name: weaker.get(name, b"") for name in (b"payload", b"encoding")})

    def _cut(self, task_id: str, fields: Fields) -> None:
        """The first bytes of the payload, or of the field that describes its encryption."""
        name = self._rng.choice((b"payload", b"encoding"))
        self._write(task_id, {name: fields[name][: self._rng.randrange(len(fields[name]))]})

    def _edit(self, task_id: str, fields: Fields) -> None:
        """Any field: values that a script would try, or the value of another task. Then the same under a further id."""
        name = self._rng.choice(FIELDS).encode()
        _, other = self._rng.choice(self._now)
        changed = {name: self._rng.choice([*NASTY, other.get(name, b"")])}
        self._write(task_id, changed)
        line_up(self._raw, self._keys, self._new_id(), fields, changed)


ROWS = (attacked,)
