"""Damaged data on the server: R20."""

import os
import time
from contextlib import suppress

from jobrunner import RateLimit
from jobrunner.client.batches import Batches
from jobrunner.client.client import broker_of, keys_of
from jobrunner.errors import JobrunnerError
from jobrunner.task import Task, new_id
from tests.acceptance.fleet import children_of
from tests.acceptance.jobs_for_tests import Work
from tests.reliability.mutations import Damage, Damager, kinds
from tests.reliability.readers import Onlookers
from tests.reliability.rows.points import enqueue_of_all_kinds, life
from tests.reliability.scenario import Findings, scenario
from tests.reliability.stage import PREFIX, QUEUE, Stage
from tests.support.queue_audit import problems, strays
from tests.support.waiting import wait_for

_CALM = "calm"
_MISFITS = (
    ("Unknown", b"{}"), ("Work", b'{"n":"x"}'), ("Work", b"\xff\xfe"), ("Work", b"{bad"), ("Work", b"[1]"),
    ("Work", b""), ("Work", b'{"n":[]}'), ("Work", b'{"n":1e999}'), ("\N{SNOWMAN}" * 50, b"{}"), ("Work", b"null"),
)  # fmt: skip
_WINDOW_S = 0.4


@scenario(
    "R20", short={"mutations": 60, "together": 12, "looks": 5}, full={"mutations": 500, "together": 4, "looks": 3}
)
def damaged(stage: Stage, findings: Findings, mutations: int, together: int, looks: int, seed: int = 20) -> None:
    """Keys of every kind, and tasks, are damaged: fields, types, members, texts, numbers.

    Workers, commands and pages fail only with errors of the package; none is busier than before. A damaged task ends;
    undamaged tasks are done, at once in other queues; repaired keys work again.
    """
    run = _Run(stage, findings, seed)
    while len(run.made) < mutations:
        run.strike(min(together, mutations - len(run.made)), looks)
        stage.say(f"{len(run.made)} of {mutations} mutations, {stage.ended():,} done")
    run.end()
    run.judge()


class _Run:
    """Victims, who may be damaged for good, and neighbours, who may not suffer."""

    def __init__(self, stage: Stage, findings: Findings, seed: int) -> None:
        self.stage, self.findings = stage, findings
        self.made: list[Damage] = []
        self._damager = Damager(stage.raw, PREFIX, seed)
        self._victims: set[str] = set()
        self._misfits: set[str] = set()
        self._neighbours: set[str] = set()
        self._refused = 0
        self._calls: list[float] = []
        self._busiest: list[str] = []
        self._cpu: list[float] = []
        self._slowest_s = 0.0
        self._life = life(stage) | {"unknown_grace": 0}
        self._workers = [
            stage.fleet.start_one(**self._life),
            stage.fleet.start_one(**self._life | {"modules": ["tests.acceptance.jobs_for_tests"], "queues": [_CALM]}),
        ]
        self._people = Onlookers(stage.client)
        self._fill()
        self._quiet_calls, self._quiet_cpu = self._measured(1.0)

    def _fill(self) -> None:
        """Creates keys of as many kinds as the package's operations create."""
        client = self.stage.client
        client.queue(QUEUE).configure(history=3600, history_max=50, max_attempts=3)
        client.queue("turns").configure(
            fair=True, rate_per_partition=RateLimit(max_tokens=5, interval=60),
            rate=RateLimit(max_tokens=50, interval=60), max_inflight_per_partition=2,
        )  # fmt: skip
        turns = client.queue("turns")
        for n in range(6):
            turns.push(n, partition=f"k{n % 3}")
        turns.reserve(3, keepalive=600)
        client.queue("bulk").push_many(range(8))
        batches = Batches(broker_of(client), keys_of(client).queue("bulk"))
        batches.take(3, lease_s=600)
        opened = batches.open(lease_s=600)
        opened.stage("1", [b"x", b"bulk", b"1", b'{"new":1}'])
        enqueue_of_all_kinds(self.stage, 0)
        wait_for(lambda: self.stage.client.queue(QUEUE).counts()["done"] >= 5, timeout_s=30)

    def strike(self, count: int, looks: int) -> None:
        """Makes `count` mutations at once, checks the rest meanwhile, and repairs them."""
        victims = self._new_victims()
        made = [self._damager.mutate([self._hash(one) for one in victims]) for _ in range(count)]
        self.made += made
        self._resume()
        self._enqueue(_CALM, 3)
        self._enqueue(QUEUE, 3)
        self._enqueue_misfit()
        began = time.monotonic()
        self._await_calm(made)
        self._slowest_s = max(self._slowest_s, time.monotonic() - began)
        time.sleep(0.1)  # else reports of the last tasks would be measured, too
        calls, cpu = self._measured(_WINDOW_S)
        if calls >= max(self._calls, default=0):
            self._busiest = [f"{one.kind} {one.how}" for one in made]
        self._calls.append(calls)
        self._cpu.append(cpu)
        seen = len(self._people.unforeseen)
        self._people.look(victims[0], looks)
        for complaint in self._people.unforeseen[seen:]:
            self.stage.say(f"{complaint} after {[(one.kind, one.how) for one in made]}\n")
        for one in reversed(made):
            if one.repair is not None:
                one.repair()
        self._resume()
        self._enqueue(QUEUE, 1)

    def _new_victims(self) -> list[str]:
        """Some that run, some in line, some due soon, some dead, some done."""
        queue, keys = self.stage.client.queue(QUEUE), keys_of(self.stage.client).queue(QUEUE)
        running = [Work(seconds=0.5).enqueue().id for _ in range(2)]
        with suppress(AssertionError):
            wait_for(lambda: self.stage.ledger.times("start").keys() >= set(running), timeout_s=5)
        queue.pause()
        ids = running + [Work().enqueue(in_=n / 5).id for n in range(4)]
        self._victims.update(ids)
        over = [*self.stage.raw.zrange(keys.dead, -3, -1), *self.stage.raw.zrange(keys.done, -3, -1)]
        return ids + [one.decode(errors="replace") for one in over if one.decode(errors="replace") in self._victims]

    def _resume(self) -> None:
        with suppress(JobrunnerError):
            self.stage.client.queue(QUEUE).resume()

    def _enqueue(self, queue: str, count: int) -> None:
        for _ in range(count):
            try:
                self._neighbours.add(Work().enqueue(queue=queue).id)
            except JobrunnerError:
                self._refused += 1

    def _enqueue_misfit(self) -> None:
        """A task of an unknown job, or with parameters that its job does not take; it must end dead for that reason."""
        type_, payload = _MISFITS[len(self._misfits) % len(_MISFITS)]
        task = Task(id=new_id(QUEUE), queue=QUEUE, type=type_, payload=payload, max_attempts=1)
        with suppress(JobrunnerError):
            self._misfits.add(self.stage.client.enqueue(task).id)

    def _hash(self, task: str) -> bytes:
        return keys_of(self.stage.client).queue(QUEUE).task(task)

    def _await_calm(self, made: list[Damage]) -> None:
        calm = {one for one in self._neighbours if one.endswith(f"-{_CALM}")}
        try:
            wait_for(lambda: self.stage.ledger.times("end").keys() >= calm, timeout_s=20)
        except AssertionError:
            self.findings.equals(f"queue {_CALM} goes on after {[(one.kind, one.how) for one in made]}", False, True)

    def _measured(self, seconds: float) -> tuple[float, float]:
        """Calls of scripts a second, and share of a processor that the workers use, without any load."""
        calls, cpu, began = self._script_calls(), self._cpu_s(), time.monotonic()
        time.sleep(seconds)  # the span that is measured
        took = time.monotonic() - began
        return (self._script_calls() - calls) / took, (self._cpu_s() - cpu) / took

    def _script_calls(self) -> int:
        stats = self.stage.raw.info("commandstats")
        return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))

    def _cpu_s(self) -> float:
        pids = [pid for worker in self._workers for pid in (worker.pid, *children_of(worker.pid))]
        return sum(map(_cpu_s, pids))

    def end(self) -> None:
        """Repairs and finishes everything that is left: the last step of the row."""
        self.stage.client.queue(QUEUE).resume()
        for queue in (QUEUE, _CALM):
            self._enqueue(queue, 20)
        with suppress(AssertionError):  # what is left then is for the verdict to find
            wait_for(lambda: not (self._unfinished() or self._left() or self._left(_CALM)), timeout_s=60)

    def _unfinished(self) -> set[str]:
        return self._neighbours - self.stage.ledger.times("end").keys()

    def _left(self, queue: str = QUEUE) -> list[str]:
        """Tasks of a queue that have not ended and are not due in a far future that the damage set."""
        keys, raw = keys_of(self.stage.client).queue(queue), self.stage.raw
        ids = [*raw.zrange(keys.waiting, 0, -1), *raw.zrange(keys.pending, 0, -1)]
        soon = (time.time() + 3600) * 1000
        ids += raw.zrangebyscore(keys.scheduled, "-inf", soon)
        return [repr(one) for one in ids]

    def judge(self) -> None:
        """The verdict."""
        findings, stage = self.findings, self.stage
        every = kinds(PREFIX)
        hit = {one.kind for one in self.made}
        findings.note("mutations", len(self.made))
        if len(self.made) >= 5 * len(every):
            findings.equals("kinds of keys that were not damaged", sorted({kind.name for kind in every} - hit), [])
        findings.note("kinds of keys damaged", f"{len(hit)} of {len(every)}")
        starts, ends = stage.ledger.times("start"), stage.ledger.times("end")
        calm = {one for one in self._neighbours if one.endswith(f"-{_CALM}")}
        findings.equals("workers that exited", sum(not worker.alive for worker in self._workers), 0)
        findings.equals("answers that were not foreseen", self._people.unforeseen[:5], [])
        findings.equals("neighbours that were not done", len(self._neighbours - ends.keys()), 0)
        findings.equals("of other queues, begun more than once", sum(starts[one] > 1 for one in calm), 0)
        findings.at_most("s until another queue's tasks were done", round(self._slowest_s, 2), 5)
        findings.equals("damaged tasks still in line or in hand", self._left(), [])
        findings.equals("misfits that did not die with a reason", self._without_reason(self._misfits), [])
        findings.equals("dead without a reason", self._without_reason(self._dead()), [])
        calm_keys = keys_of(stage.client).queue(_CALM)
        findings.equals("problems of another queue's books", problems(stage.raw, calm_keys), [])
        findings.equals("strays of another queue", strays(stage.raw, calm_keys), [])
        findings.at_most("calls of scripts a second without load", round(max(self._calls)), 300)
        findings.at_most("processors used meanwhile", round(max(self._cpu), 2), 0.5 + self._quiet_cpu)
        lines = [len(worker.log.read_text(errors="replace").splitlines()) for worker in self._workers]
        findings.at_most("lines of logs for each mutation", round(sum(lines) / len(self.made), 1), 20)
        self._note()

    def _dead(self) -> set[str]:
        """Damaged tasks that died, but for those whose reason was damaged, or all that they have."""
        spoilt = {one.key for one in self.made if one.how.startswith("error") or one.how.endswith((" gone", " type"))}
        members = self.stage.raw.zrange(keys_of(self.stage.client).queue(QUEUE).dead, 0, -1)
        ids = {one.decode(errors="replace") for one in members} & self._victims
        return {one for one in ids if self._hash(one) not in spoilt}

    def _without_reason(self, tasks: set[str]) -> list[str]:
        """Which of them are not dead, or do not say why."""
        dead = keys_of(self.stage.client).queue(QUEUE).dead
        raw = self.stage.raw
        return [one for one in sorted(tasks) if not (raw.zscore(dead, one) and raw.hget(self._hash(one), "error"))]

    def _note(self) -> None:
        self.findings.note("calls of scripts a second and processors before", [
            round(self._quiet_calls), round(self._quiet_cpu, 2)])  # fmt: skip
        self.findings.note("most calls after damage of", self._busiest)
        self.findings.note("refused to the producer", self._refused)
        self.findings.note("answers", dict(self._people.answers))
        self.findings.note("pages that said they could not be shown", dict(self._people.refused))
        self.findings.note("damaged tasks", len(self._victims))
        totals = self.stage.client.queue(QUEUE).totals()
        self.findings.note("totals", {name: totals.get(name) for name in ("dead", "orphaned", "recovered", "failed")})


def _cpu_s(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            words = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


ROWS = (damaged,)
