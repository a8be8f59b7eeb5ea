"""An attacker who can write to the server but has no key: only tasks that were enqueued run, as they were enqueued.

Each attack runs next to healthy tasks, which must succeed, and on encrypted as well as on signed tasks.
"""

import asyncio
import base64
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner import Client, Item, Job, PeriodicJob, Unique, Worker, chain, group, job
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import broker_of, encryption_of, keys_of
from jobrunner.client.operations.flow_relay import relay
from jobrunner.clock import from_ms
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.errors import DecryptionFailed, EncryptionError, NotEncrypted
from jobrunner.etl import Pipeline
from jobrunner.jobs.build import build_task, definition_of, published
from jobrunner.jobs.enqueue_options import EnqueueOptions
from jobrunner.jobs.registry import find
from jobrunner.periodic import read_definition
from tests.security import attacks
from tests.security.attacks import FIELDS, NASTY
from tests.security.conftest import KEY, OTHER, Connect

ran: list[Any] = []


@job(name="vault.pay", queue="vault", max_attempts=1)
class Pay(Job):
    """Pays."""

    to: str
    amount: int = 1

    def run(self) -> str:
        ran.append(("pay", self.to, self.amount, dict(self.task.headers)))
        return f"paid {self.to}"


@job(name="vault.refund", queue="vault", max_attempts=1)
class Refund(Job):
    """Has the parameters of Pay."""

    to: str
    amount: int = 1

    def run(self) -> None:
        ran.append(("refund", self.to, self.amount))


@job(name="vault.quote", queue="vault/quotes", max_attempts=1)
class Quote(Job):
    """A job of a pipeline's queue."""

    to: str

    def run(self) -> None:
        ran.append(("quote", self.to))


@job(name="vault.balance", queue="vault", unique=Unique(by=["to"], on_clash="replace"), max_attempts=1)
class Balance(Job):
    """The last one counts."""

    to: str
    amount: int = 1

    def run(self) -> None:
        ran.append(("balance", self.to, self.amount))


@job(name="vault.ship", queue="vault", max_attempts=1)
class Ship(Job):
    """A step after others that ignores their results."""

    what: str

    def run(self) -> None:
        ran.append(("ship", self.what))


@job(name="vault.tell", queue="vault", max_attempts=1)
class Tell(Job):
    """A step that records its parameters."""

    def run(self) -> list[Any]:
        ran.append(("tell", *self.task.results))
        return list(self.task.results)


@job(name="vault.silent", queue="vault", max_attempts=1)
class Silent(Job):
    """A step without a result."""

    def run(self) -> None:
        ran.append("silent")


@job(name="vault.tell_async", queue="vault", max_attempts=1)
class TellAsync(Job):
    """The same as a coroutine."""

    async def run(self) -> None:
        ran.append(("async", *self.task.results))


@job(name="vault.tick", queue="ticks", every=timedelta(seconds=1), max_attempts=1)
class Tick(PeriodicJob):
    """Fires."""

    to: str = "ann"

    def run(self) -> None:
        ran.append(("tick", self.to))


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def work(client: Client, *queues: str) -> None:
    Worker(client=client, queues=queues or ["vault"]).run(burst=True)


def multiply(client: Client, raw: redis.Redis, of: str, new: str, **changed: bytes) -> None:
    keys = keys_of(client).queue("vault")
    attacks.line_up(raw, keys, new, raw.hgetall(keys.task(of)), {k.encode(): v for k, v in changed.items()})


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_a_task_can_be_edited_so_that_something_else_runs(
    encrypting: Client, raw: redis.Redis, field: str
) -> None:
    honest = {("pay", "ann", 1, ()), ("pay", "bob", 1_000_000, ())}
    mine, yours = Pay(to="ann").enqueue(), Pay(to="bob", amount=1_000_000).enqueue()
    keys = keys_of(encrypting).queue("vault")
    of_mine, of_yours = (raw.hgetall(keys.task(one.id)) for one in (mine, yours))
    values = [*NASTY, of_yours.get(field.encode(), b""), of_mine[b"payload"], of_mine[b"encoding"]]
    for number, value in enumerate(values):
        multiply(encrypting, raw, mine.id, f"copied-{number}", **{field: value})
        one = Pay(to="ann").enqueue()
        raw.hset(keys.task(one.id), field, value)

    work(encrypting)

    assert {(what, to, amount, tuple(headers)) for what, to, amount, headers in ran} == honest
    found = Counter(one[1] for one in ran)
    assert found["bob"] == 1
    assert found["ann"] <= 1 + len(values)


@pytest.mark.timeout(600)
@settings(max_examples=15)
@given(data=st.data())
def test_no_mixture_of_the_fields_of_several_tasks_runs_as_what_nobody_enqueued(
    encrypting: Client, raw: redis.Redis, data: st.DataObject
) -> None:
    raw.flushdb()
    ran.clear()
    encrypting._routes.registered.clear()
    keys = keys_of(encrypting).queue("vault")
    given_ids = [Pay(to="ann").enqueue().id, Refund(to="bob", amount=5).enqueue().id, Balance(to="cid").enqueue().id]
    stored = [raw.hgetall(keys.task(one)) for one in given_ids]
    names = sorted({name for one in stored for name in one} | {b"headers", b"then", b"results"})
    pieces = [value for one in stored for value in one.values()]
    into = data.draw(st.sampled_from(given_ids))
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=5, unique=True)):
        drawn = data.draw(
            st.one_of(
                st.sampled_from(pieces),
                st.builds(lambda a, b: a + b" " + b, st.sampled_from(pieces), st.sampled_from([*pieces, b"lock:x"])),
                st.binary(max_size=60),
            )
        )
        raw.hset(keys.task(into), name, drawn)

    work(encrypting)

    left = Counter([("pay", "ann", 1, ()), ("refund", "bob", 5), ("balance", "cid", 1)])
    assert not Counter((*one[:3], ()) if one[0] == "pay" else one for one in ran) - left
    assert all(not one[3] for one in ran if one[0] == "pay")


def test_the_attack_that_worked_before_a_third_word_in_encoding(encrypting: Client, raw: redis.Redis) -> None:
    mine, yours = Pay(to="ann").enqueue(), Pay(to="bob", amount=1_000_000).enqueue()
    keys = keys_of(encrypting).queue("vault")
    theirs = raw.hgetall(keys.task(yours.id))
    for number in range(3):
        encoding = theirs[b"encoding"] + b" " + yours.id.encode()
        multiply(encrypting, raw, yours.id, f"forged-{number}", encoding=encoding)
    raw.hset(
        keys.task(mine.id),
        mapping={"payload": theirs[b"payload"], "encoding": theirs[b"encoding"] + b" " + yours.id.encode()},
    )

    work(encrypting)

    assert ran == [("pay", "bob", 1_000_000, {})]
    assert mine.error.startswith("DecryptionFailed: ")


def test_who_puts_the_last_state_of_a_replaced_task_under_new_ids_runs_nothing(
    encrypting: Client, raw: redis.Redis
) -> None:
    first = Balance(to="ann", amount=1).enqueue()
    before = raw.hgetall(keys_of(encrypting).queue("vault").task(first.id))
    second = Balance(to="ann", amount=2).enqueue()
    assert second.id == first.id
    keys = keys_of(encrypting).queue("vault")
    for number, fields in enumerate((before, raw.hgetall(keys.task(first.id)))):
        raw.hset(keys.task(f"again-{number}"), mapping=fields | {b"id": b"again"})
        raw.zadd(keys.waiting, {f"again-{number}": 1})

    work(encrypting)

    assert ran == [("balance", "ann", 2)]


def test_replacing_works_for_many_locks_at_once_and_for_asyncio_and_after_a_plain_one(
    connect: Connect, kind: str
) -> None:
    connect()
    Balance(to="plain", amount=1).enqueue()
    client = connect(payload_keys=[KEY], payload_encryption=kind, require_encryption=True)
    Balance.enqueue_many([Balance(to=str(n), amount=1) for n in range(40)])
    handles = Balance.enqueue_many([Balance(to=str(n), amount=2) for n in range(40)])

    async def again() -> None:
        from jobrunner.client.loop_clients import current_async_client

        await Balance(to="7", amount=3).aenqueue()
        await current_async_client().close()

    asyncio.run(again())
    Balance(to="plain", amount=2).enqueue(in_=0)

    work(client)

    assert len({one.id for one in handles}) == 40
    wanted = {("balance", str(n), 3 if n == 7 else 2) for n in range(40)} | {("balance", "plain", 2)}
    assert sorted(ran) == sorted(wanted)


def test_a_payload_that_replaces_is_encrypted_for_the_queue_that_its_task_is_in(encrypting: Client) -> None:
    """Queues of one pipeline share their locks."""
    two = encrypting.queue("line/two")

    def task(amount: int, queue: str) -> Any:
        return build_task(definition_of(Balance), Balance(to="ann", amount=amount), EnqueueOptions(queue=queue))

    held_id = encrypting.enqueue(task(1, "line/two")).id
    assert encrypting.enqueue(task(2, "line/one")).id == held_id

    work(encrypting, "line/one", "line/two")

    assert ran == [("balance", "ann", 2)]
    assert two.counts()["dead"] == 0


def test_another_key_and_none_are_no_way_round(raw: redis.Redis, connect: Connect, kind: str) -> None:
    attackers: tuple[dict[str, Any], ...] = ({}, {"payload_keys": [OTHER], "payload_encryption": kind})
    forged = []
    for options in attackers:
        attacker = connect(**options)
        task = Pay(to="eve", amount=9).enqueue()
        forged.append(raw.hgetall(keys_of(attacker).queue("vault").task(task.id)))
    client = connect(payload_keys=[KEY], payload_encryption=kind, require_encryption=True)
    for fields in forged:
        mine = Pay(to="ann").enqueue()
        raw.hset(keys_of(client).queue("vault").task(mine.id), mapping=fields | {b"id": mine.id.encode()})

    work(client)

    assert ran == []
    counts = client.queue("vault").counts()
    waits = counts["scheduled"] + counts["waiting"]  # a second after it was handed back it is promoted
    assert (counts["dead"], waits) == (2, 2), "plain: dead; of the other key: they wait for it"


def test_signed_text_cannot_take_the_place_of_ciphertext_nor_the_other_way_round(
    connect: Connect, raw: redis.Redis
) -> None:
    """Downgrade: a signed payload that an attacker has read is not accepted as an encrypted one of that task."""
    signing = connect(payload_keys=[KEY], payload_encryption="sign", require_encryption=True)
    signed = Pay(to="ann").enqueue()
    encrypting = connect(payload_keys=[KEY], require_encryption=True)
    encrypted = Pay(to="bob").enqueue()
    keys = keys_of(signing).queue("vault")
    one, two = (raw.hgetall(keys.task(task.id)) for task in (signed, encrypted))
    for name in (b"payload", b"encoding"):
        raw.hset(keys.task(signed.id), name, two[name])
        raw.hset(keys.task(encrypted.id), name, one[name])
        work(encrypting)
        assert ran == []
        for task, fields in ((signed, one), (encrypted, two)):
            raw.hset(keys.task(task.id), mapping=fields)
            raw.zrem(keys.dead, task.id)
            raw.zadd(keys.waiting, {task.id: 1})
    work(encrypting)
    assert sorted(one[1] for one in ran) == ["ann", "bob"]


def test_results_are_those_of_the_task_that_was_asked_for(encrypting: Client, raw: redis.Redis) -> None:
    mine, yours = Pay(to="ann").enqueue(), Pay(to="bob").enqueue()
    work(encrypting)
    keys = keys_of(encrypting).queue("vault")
    theirs = raw.hget(keys.task(yours.id), "result")
    for forged in (theirs, b'"forged"', theirs.replace(yours.id.encode(), mine.id.encode()), b"{}", b"\xff"):
        raw.hset(keys.task(mine.id), "result", forged)
        with pytest.raises(EncryptionError):
            mine.result(timeout=0)
    assert yours.result(timeout=0) == "paid bob"


def members_of(raw: redis.Redis) -> dict[bytes, dict[bytes, bytes]]:
    return {key: raw.hgetall(key) for key in raw.scan_iter("*:join:*")}


@pytest.mark.parametrize("step", [Tell, TellAsync])
@pytest.mark.parametrize("forgery", ["plain", "another member's", "swapped", "cut", "longer", "none", "another flow's"])
def test_a_step_is_given_the_results_of_the_steps_before_it_or_it_does_not_run(
    encrypting: Client, raw: redis.Redis, forgery: str, step: type[Job]
) -> None:
    other = chain(group(Pay(to="other-1"), Pay(to="other-2")), Tell()).enqueue()
    chain(group(Pay(to="ann"), Pay(to="bob")), step()).enqueue()
    keys = keys_of(encrypting).queue("vault")
    for lease in encrypting.queue("vault").reserve(4):
        lease.commit(result=lease.payload.decode())
    relay(broker_of(encrypting), keys_of(encrypting), tags=["vault"])
    waiting = [one.decode() for one in raw.zrange(keys.waiting, 0, -1)]
    of_other, mine = sorted(waiting, key=lambda one: b"other" not in opened(encrypting, one))
    results = raw.hget(keys.task(mine), "results")
    forged = forge(forgery, results, raw.hget(keys.task(of_other), "results"))
    raw.hset(keys.task(mine), "results", forged)

    work(encrypting)

    assert encrypting.task(mine).state == "dead"
    assert encrypting.task(mine).error.startswith(("DecryptionFailed: ", "NotEncrypted: "))
    assert [one[0] for one in ran] == ["tell"]
    assert "other-1" in str(other.result(timeout=30)[0])


def opened(client: Client, task_id: str) -> bytes:
    """The results that a step receives, decrypted."""
    from jobrunner.client.flow_results import decrypted_results, receive

    received = receive(broker_of(client), keys_of(client).queue("vault"), task_id)
    assert received is not None
    return str(decrypted_results(encryption_of(client), *received, None)).encode()


def forge(how: str, results: bytes, others: bytes) -> bytes:
    first, second = (bytes(one) for one in msgspec.json.decode(results, type=list[msgspec.Raw]))
    return {
        "plain": b'["forged",' + second + b"]",
        "another member's": b"[" + first + b"," + first + b"]",
        "swapped": b"[" + second + b"," + first + b"]",
        "cut": b"[" + first + b"]",
        "longer": b"[" + first + b"," + second + b"," + second + b"]",
        "none": b"[null," + second + b"]",
        "another flow's": others,
    }[how]


def test_a_step_does_not_run_before_those_before_it_also_when_it_never_looks_at_their_results(
    encrypting: Client, raw: redis.Redis
) -> None:
    """The attacker enqueues the step that a join prepared, with and without forged results."""
    chain(Pay(to="ann"), Ship(what="gold")).enqueue()
    chain(Silent(), Ship(what="silver")).enqueue()
    keys = keys_of(encrypting).queue("vault")
    for join in members_of(raw).values():
        if b"f:payload" in join:
            task_id = join[b"id"]
            fields = {name[2:]: value for name, value in join.items() if name.startswith(b"f:")}
            for extra in ({}, {b"results": b"[null]", b"outcomes": b'["succeeded"]'}, {b"results": b"[]"}):
                raw.delete(keys.task(task_id.decode()))
                raw.hset(keys.task(task_id.decode()), mapping=fields | extra | {b"id": task_id, b"more": b"1"})
                raw.zadd(keys.waiting, {task_id: 1})
                raw.zrem(keys.dead, task_id)
                raw.zremrangebyscore(keys.waiting, 2, "+inf")  # those before it are held back
                work(encrypting)
                assert ran == []


@pytest.mark.timeout(600)
def test_flows_of_every_shape_run_encrypted(encrypting: Client) -> None:
    def result_of(flow: Any) -> Any:
        work(encrypting)
        return flow.result(timeout=30)

    paid = ["paid a", "paid b"]
    two = group(Pay(to="a"), Pay(to="b"))
    assert result_of(chain(two, Tell()).enqueue()) == paid
    assert result_of(chain(two, group(Tell(), Tell())).enqueue()) == [paid, paid]
    assert result_of(chain(group(two, Pay(to="c")), Tell()).enqueue()) == [paid, "paid c"]
    assert result_of(chain(group(chain(Pay(to="x"), two), two), Tell()).enqueue()) == [paid, paid]
    assert result_of(chain(group(), Tell()).enqueue()) == []
    assert result_of(chain(Pay(to="x"), group(), Tell()).enqueue()) == []
    assert result_of(chain(group(group(), Pay(to="c")), Tell()).enqueue()) == [[], "paid c"]
    assert result_of(chain(Silent(), Tell()).enqueue()) == [None]
    assert result_of(chain(Silent(), Silent()).enqueue()) is None
    ran.clear()
    group(Pay(to="a"), chain(two, Tell()), on_complete=Tell(), on_success=Tell(), on_dead=Tell()).enqueue()
    work(encrypting)
    assert [one for one in ran if one[0] == "tell"] == [
        ("tell", *paid), ("tell", "paid a", paid), ("tell", "paid a", paid),
    ]  # fmt: skip


def test_a_callback_gets_what_there_is_and_nothing_forged(encrypting: Client, raw: redis.Redis) -> None:
    encrypting.queue("vault").configure(max_attempts=1)
    group(Pay(to="a"), Pay(to="b"), on_complete=Tell()).enqueue()
    keys = keys_of(encrypting).queue("vault")
    bad, good = encrypting.queue("vault").reserve(2)
    bad.rollback(error="no")
    good.commit(result="b")
    relay(broker_of(encrypting), keys_of(encrypting), tags=["vault"])
    (callback,) = [one.decode() for one in raw.zrange(keys.waiting, 0, -1)]
    work(encrypting)
    assert ran[-1] == ("tell", None, "b")
    raw.zadd(keys.waiting, {callback: 1})
    raw.persist(keys.task(callback))
    raw.hset(keys.task(callback), "outcomes", b'["succeeded","succeeded"]')
    ran.clear()
    work(encrypting)
    assert ran == []


def test_items_do_not_open_in_another_queue_of_their_pipeline(encrypting: Client, raw: redis.Redis) -> None:
    first, second = encrypting.queue("line/raw"), encrypting.queue("line/checked")
    item = first.push({"n": 1}, id="mine")
    other = second.push({"n": 2}, id="yours")
    keys = keys_of(encrypting).queue("line/checked")
    raw.zrem(keys_of(first).waiting, item)
    raw.zadd(keys.waiting, {item: 1})
    raw.hset(keys.task(item), "queue", "line/checked")

    moved, own = second.reserve(2)

    assert (own.id, own.payload) == (other, {"n": 2})
    with pytest.raises(DecryptionFailed, match="encrypted or signed for queue 'line/raw' and is in 'line/checked'"):
        _ = moved.payload


def test_a_job_does_not_run_as_the_item_of_a_station_nor_an_item_as_a_job(encrypting: Client, raw: redis.Redis) -> None:
    line = Pipeline("vault-line", client=encrypting)

    @line.sink("end")
    def end(item: Any) -> None:
        ran.append(("station", item.payload))

    task = Quote(to="ann").enqueue()
    item = line.push("end", {"to": "eve"})
    keys, ends = keys_of(encrypting).queue("vault/quotes"), keys_of(encrypting).queue("vault-line/end")
    raw.zadd(ends.waiting, {task.id: 1})
    raw.hset(ends.task(task.id), mapping=raw.hgetall(keys.task(task.id)) | {b"queue": b"vault-line/end"})
    raw.hset(ends.task(str(item)), "type", "vault.quote")

    work(encrypting, "vault/quotes", "vault-line/end")

    assert ran == [("quote", "ann")]


def test_the_dead_of_a_queue_open_where_this_program_says_they_go_and_not_where_the_server_says(
    encrypting: Client, raw: redis.Redis
) -> None:
    first, dead, other = (encrypting.queue(f"deadline/{name}") for name in ("first", "dead", "other"))
    first.configure(max_attempts=1, dead_letter_queue="deadline/dead")
    first.push_many([Item("a", id="a"), Item("b", id="b")])
    first.reserve(1)[0].rollback(error="no")
    raw.hset(keys_of(first).settings, "dead_letter_queue", "deadline/other")
    first.reserve(1)[0].rollback(error="no")

    assert [one.payload for one in dead.reserve(2)] == ["a"]
    (moved,) = other.reserve(2)
    with pytest.raises(DecryptionFailed):
        _ = moved.payload


def test_payloads_open_in_every_partition_of_a_pipeline_also_where_its_dead_go(encrypting: Client) -> None:
    first = encrypting.queue("parted/first")
    first.configure(partitions=4, max_attempts=1, dead_letter_queue="parted/dead")
    first.push_many(range(64))
    while taken := first.reserve(10):
        first.move_many(taken[:5], "next")
        first.rollback_many(taken[5:])

    for name in ("next", "dead"):
        leases = encrypting.queue(f"parted/{name}").reserve(64)
        assert len({lease.queue for lease in leases}) > 1
        assert all(isinstance(lease.payload, int) for lease in leases)


def test_replays_and_corrected_payloads_are_made_only_of_payloads_that_open(
    encrypting: Client, raw: redis.Redis
) -> None:
    queue = encrypting.queue("corrected")
    queue.configure(max_attempts=1, history=60)
    first, second = queue.push_many([Item("a", id="first"), Item("b", id="second")])
    for lease in queue.reserve(2):
        lease.rollback(error="no") if lease.id == first else lease.commit()
    raw.hset(keys_of(queue).task(first), "type", "vault.pay")
    raw.hset(keys_of(queue).task(second), "headers", '{"x":"y"}')

    with pytest.raises(DecryptionFailed):
        queue.requeue_dead([first], payload={"to": "eve"})
    with pytest.raises(DecryptionFailed):
        queue.replay(second)


def test_a_leader_encrypts_no_parameters_that_nobody_with_the_keys_published(
    encrypting: Client, raw: redis.Redis, connect: Connect, clock: Any, kind: str
) -> None:
    now = clock.set()
    definition = find("vault.tick")
    assert definition is not None
    mine = published([definition], encryption_of(encrypting))
    assert published([definition], encryption_of(encrypting)) == mine
    edited = msgspec.json.decode(mine["vault.tick"])
    edited["payload"] = base64.b64encode(b'{"to":"eve"}').decode()
    for forged in (published([definition]), {"vault.tick": msgspec.json.encode(edited)}):
        broker_of(encrypting).run(leader_calls.define_periodics(keys_of(encrypting), forged))
        fire = PeriodicTicks(broker_of(encrypting), keys_of(encrypting), encryption_of(encrypting))
        fire.step(1, from_ms(now))
        clock.advance(1000)
        fire.step(1, from_ms(now + 1000))
        assert encrypting.queue("ticks").counts()["waiting"] == 0
        read = read_definition(forged["vault.tick"])
        if read is not None:
            with pytest.raises(EncryptionError):
                read.task("id", encryption_of(encrypting))

    broker_of(encrypting).run(leader_calls.define_periodics(keys_of(encrypting), mine))
    fire.reread()
    now = clock.set(now + 2000)
    fire.step(1, from_ms(now))
    clock.advance(1000)
    fire.step(1, from_ms(now + 1000))
    work(encrypting, "ticks")
    assert set(ran) == {("tick", "ann")}


def test_what_the_first_format_encrypted_is_dead_and_says_what_to_do(encrypting: Client, raw: redis.Redis) -> None:
    task = Pay(to="ann").enqueue()
    neighbour = Pay(to="bob").enqueue()
    raw.hset(keys_of(encrypting).queue("vault").task(task.id), "encoding", " aes:34750f98")

    work(encrypting)

    assert "first format" in task.error
    assert neighbour.result(timeout=0) == "paid bob"


def test_every_byte_counts_of_what_runs(encrypting: Client, raw: redis.Redis) -> None:
    keys = keys_of(encrypting).queue("vault")
    task = Pay(to="ann").enqueue()
    stored = raw.hgetall(keys.task(task.id))
    raw.delete(keys.task(task.id), keys.waiting)
    flips = 0
    for name, at in [(field, n) for field in (b"payload", b"encoding") for n in range(len(stored[field]))]:
        changed = bytearray(stored[name])
        changed[at] ^= 1 << (at % 7)
        flips += 1
        raw.hset(keys.task(task.id), mapping=stored | {name: bytes(changed)})
        raw.zadd(keys.waiting, {task.id: 1})
        raw.zrem(keys.dead, task.id)
        for lease in encrypting.queue("vault").reserve(9):
            with pytest.raises(EncryptionError):
                _ = lease.payload
            lease.commit()
    assert ran == []
    assert flips > 80


def test_require_encryption_is_what_refuses_the_plain(encrypting: Client, raw: redis.Redis) -> None:
    task = Pay(to="ann").enqueue()
    key = keys_of(encrypting).queue("vault").task(task.id)
    raw.hset(key, mapping={"payload": b'{"to":"eve","amount":9}', "encoding": b""})

    work(encrypting)

    assert ran == []
    assert task.error.startswith("NotEncrypted: ")
    with pytest.raises(NotEncrypted):
        encrypting.queue("vault").requeue_dead([task.id], payload={"to": "eve"})
    assert base64.b64decode(KEY) != base64.b64decode(OTHER)
