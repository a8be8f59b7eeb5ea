"""Parts of a failed batch while more items wait than a batch holds, also beside the halves of version 0.1.0."""

import hashlib

import pytest
from msgspec.structs import replace

from jobrunner.broker.calls import batches
from jobrunner.broker.scripts import load
from jobrunner.client.batches import Batches
from jobrunner.errors import BatchLost

RAW, CLEAN = "orders/raw", "orders/clean"
LEASE_S = 30.0
MENDED = b"""
local function mend_range(read)
  local size, first = number(redis.call('HGET', batch_key(read.list), 'size')), 0
  if not size then return end
  for half in string.gmatch(string.sub(id, #read.list + 1), '%.([12])') do
    local left = math.floor(size / 2)
    if half == '1' then size = left else first, size = first + left, size - left end
  end
  first, size = exact(first), exact(size)
  redis.call('HSET', batch, 'first', first, 'size', size)
  read.first, read.size = first, size
end
if read.state == 'open' and read.list ~= id then mend_range(read) end

"""
"""How version 0.1.0 computes the range of a part when it claims one, behind the replies of a claim that takes none."""


@pytest.fixture
def raw_orders(broker, keys, client, clock):
    """The batches of queue orders/raw, on a stopped clock."""
    clock.set()
    return Batches(broker, keys.queue(RAW))


def finish(lease, to="clean"):
    """Moves all members on."""
    lease.stage_all("n", [word for one in lease.members(0, lease.size) for word in (one, to, b"1", "")], after=0)
    lease.decide(["n"], rest="dropped")
    while not lease.advance().done:
        pass


@pytest.fixture
def halve(raw, keys, clock):
    """halve(lease): splits a batch that is held as version 0.1.0 does, in two parts named `.1` and `.2`."""
    queue = keys.queue(RAW)

    def name(batch):
        return queue.batch + batch.encode()

    def run(lease):
        read = raw.hgetall(name(lease.id))
        first, size = int(read[b"first"]), int(read[b"size"])
        for half, (begin, count) in enumerate([(first, size // 2), (first + size // 2, size - size // 2)], start=1):
            kept = {key: read[key] for key in (b"queue", b"number", b"list", b"hold")}
            kept |= {b"state": "open", b"epoch": 0, b"ends": 0, b"failures": 2, b"expiries": 0, b"error": "no"}
            raw.hset(name(f"{lease.id}.{half}"), mapping=kept | {b"first": begin, b"size": count})
            raw.zadd(queue.batches, {f"{lease.id}.{half}": clock.ms})
        raw.hincrby(name(read[b"list"].decode()), "users", 1)
        raw.hset(name(lease.id), "state", "split")
        if read[b"list"].decode() != lease.id:
            raw.pexpire(name(lease.id), 86_400_000)
        raw.zrem(queue.batches, lease.id)

    return run


@pytest.fixture
def halved(raw_orders, client, halve):
    """halved(10, 4): (a batch of the first items, of which version 0.1.0 made halves; the ids of all items)"""

    def run(items, batch):
        ids = client.queue(RAW).push_many(range(items))
        lease = raw_orders.take(batch, lease_s=LEASE_S)
        halve(lease)
        return lease, ids

    return run


def drive(raw_orders, batch, poison, *, dies=lambda lease: False, clock=None):
    """A driver's loop: fills up what is new, fails what has poison in it, moves the rest. Returns the members of each
    batch that was decided."""
    decided = []
    while lease := raw_orders.take(batch, lease_s=LEASE_S):
        if lease.is_new and lease.size < batch:
            raw_orders.top_up(lease, batch - lease.size)
        members = lease.members(0, lease.size)
        assert len(members) == lease.size
        if dies(lease):
            clock.advance(LEASE_S * 1000)
        elif poison.isdisjoint(members):
            finish(lease)
            decided.append(members)
        else:
            lease.fail("no such airport", delay_s=0)
    return decided


def nothing_left(raw, keys):
    """Whether no key of a batch is left but tombstones, which expire."""
    found = list(raw.scan_iter(match=keys.queue(RAW).batch + b"*", count=1000))
    return all(raw.type(key) == b"hash" and raw.pttl(key) > 0 for key in found)


def test_a_half_is_not_new_and_takes_no_more_items(raw_orders, client, halved, broker, keys, raw):
    whole, _ = halved(10, 4)
    half = raw_orders.take(4, lease_s=LEASE_S)
    assert (half.id, half.epoch, half.size) == (f"{whole.id}.1", 1, 2)
    assert not half.is_new

    with pytest.raises(BatchLost, match=r"takes no more items"):
        raw_orders.top_up(half, 2)

    assert half.size == 2
    assert client.queue(RAW).counts()["waiting"] == 6
    assert not raw.exists(batches.member_list(keys.queue(RAW), half.id))


def test_a_batch_is_new_until_it_was_handed_out_again(raw_orders, client):
    client.queue(RAW).push_many(range(3))
    lease = raw_orders.take(1, lease_s=LEASE_S)
    assert lease.is_new
    assert raw_orders.top_up(lease, 2) == 2
    lease.release()
    assert not raw_orders.take(1, lease_s=LEASE_S).is_new


def split(raw_orders, client, items, batch):
    """(a batch of the first items that was split at its first failure, the ids of all items)"""
    ids = client.queue(RAW).push_many(range(items))
    lease = raw_orders.take(batch, lease_s=LEASE_S)
    assert lease.fail("no such airport", delay_s=3600, fate="blamed") == "split"
    return lease, ids


def test_parts_of_a_batch_are_named_by_their_range_and_cover_it(raw_orders, client):
    """Few wide parts of a large batch, single members of the smallest."""
    for size, parts in ((10_001, 16), (10_000, 4), (9, 4), (8, 8), (2, 2)):
        whole, ids = split(raw_orders, client, size, size)
        leases = [raw_orders.take(size, lease_s=LEASE_S) for _ in range(parts)]
        leases.sort(key=lambda lease: lease.first)
        assert [lease.id for lease in leases] == [f"{whole.id}.p{n}of{parts}" for n in range(1, parts + 1)]
        assert [one for lease in leases for one in lease.members(0, size)] == ids
        assert {lease.failures for lease in leases} == {1}
        assert not any(lease.is_new for lease in leases)
        for lease in leases:
            finish(lease)


def test_an_error_of_a_row_is_final_for_the_item_that_is_alone_when_it_is_poison(raw_orders, client, raw, keys, audit):
    split(raw_orders, client, 3, 3)
    leases = [raw_orders.take(3, lease_s=LEASE_S) for _ in range(3)]
    fates = ("failed", "blamed", "poison")
    assert [one.fail("no", delay_s=0, fate=fate) for one, fate in zip(leases, fates, strict=True)] == [
        "again", "again", "dead"
    ]  # fmt: skip
    assert client.queue(RAW).counts()["dead"] == 1
    drive(raw_orders, 9, set())
    assert nothing_left(raw, keys)
    audit(RAW)


def test_a_batch_is_split_uncounted_where_no_item_is_to_blame(raw_orders, client):
    client.queue(RAW).push_many(range(2))
    lease = raw_orders.take(2, lease_s=LEASE_S)
    assert lease.fail("no", delay_s=0, fate="divided") == "split"
    part = raw_orders.take(2, lease_s=LEASE_S)
    assert (part.size, part.failures) == (1, 0)
    assert part.fail("no", delay_s=3600, fate="divided") == "again"
    assert raw_orders.take(2, lease_s=LEASE_S).id != part.id


@pytest.mark.parametrize("version", ["this one", "0.1.0"])
def test_drivers_of_two_versions_finish_parts_and_halves_of_one_another(
    raw_orders, client, raw, keys, audit, halve, monkeypatch, version
):
    """Version 0.1.0 takes ranges of all parts for those of halves, and leaves them alone without the size."""
    whole, ids = split(raw_orders, client, 40, 40)
    first = raw_orders.take(40, lease_s=LEASE_S)
    halve(first)
    halve(raw_orders.take(40, lease_s=LEASE_S))
    assert raw.hget(keys.queue(RAW).batch + whole.id.encode(), "size") is None
    if version == "0.1.0":
        script = load("batch_claim")
        begin = script.source.index(b"if set == batches and (number(read.hold)")
        source = script.source[:begin] + MENDED + script.source[begin:]
        changed = replace(script, source=source, sha=hashlib.sha1(source).hexdigest().encode())
        monkeypatch.setitem(batches._claim.__dict__, "script", changed)

    decided = drive(raw_orders, 40, {ids[0], ids[17]})

    moved = [one for members in decided for one in members]
    assert sorted([*moved, ids[0], ids[17]]) == ids
    assert nothing_left(raw, keys)
    audit(RAW)


def test_a_batch_that_version_0_1_0_halved_has_its_halves_split_in_parts(raw_orders, client, halved, raw, keys, audit):
    _, ids = halved(40, 40)
    assert raw_orders.take(40, lease_s=LEASE_S).fail("no", delay_s=0, fate="blamed") == "split"

    decided = drive(raw_orders, 40, {ids[30]})

    assert sorted([*(one for members in decided for one in members), ids[30]]) == ids
    assert nothing_left(raw, keys)
    audit(RAW)


def test_one_poison_item_costs_no_other_its_place_while_more_wait_than_a_batch_holds(
    raw_orders, client, raw, keys, audit
):
    ids = client.queue(RAW).push_many(range(20_000))
    poison = ids[617]

    decided = drive(raw_orders, 1000, {poison})

    moved = [one for members in decided for one in members]
    assert len(moved) == len(set(moved))
    assert sorted([*moved, poison]) == ids
    assert client.queue(RAW).counts() | {"dead": 1, "waiting": 0, "pending": 0} == client.queue(RAW).counts()
    assert client.queue(CLEAN).counts()["waiting"] == 19_999
    assert nothing_left(raw, keys)
    audit(RAW)
    audit(CLEAN)


def test_halves_of_a_batch_whose_drivers_die_run_once_while_more_wait(raw_orders, client, raw, keys, audit, clock):
    client.queue(RAW).configure(max_attempts=2)
    ids = client.queue(RAW).push_many(range(50))
    deaths = []

    def dies(lease):
        if lease.root == lease.id and not deaths[1:]:
            deaths.append(lease.id)
            return True
        return False

    decided = drive(raw_orders, 8, set(), dies=dies, clock=clock)

    assert len(set(deaths)) == 1
    moved = [one for members in decided for one in members]
    assert sorted(moved) == ids
    assert nothing_left(raw, keys)
    audit(RAW)


def test_two_drivers_with_poison_a_death_and_a_lost_lease_end_each_item_once(
    broker, raw_orders, client, raw, keys, audit, clock
):
    """Two drivers of one queue take turns; one of them dies with batches in hand, and one comes back too late."""
    ids = client.queue(RAW).push_many(range(3000))
    poison, misfit = {ids[70], ids[71], ids[1500]}, ids[900]
    other = Batches(broker, keys.queue(RAW))
    late, moved, turn = [], [], 0
    while True:
        turn += 1
        lease = (raw_orders if turn % 2 else other).take(100, lease_s=LEASE_S)
        assert lease is None or lease.state == "open", "a good item became dead"
        if lease is None and not late:
            break
        if lease is None or turn % 11 == 0:  # it hangs: its lease ends, and another driver has the batch meanwhile
            clock.advance(LEASE_S * 1000)
            for one in late:
                with pytest.raises(BatchLost):
                    one.decide([], rest="dropped")
            late = [lease] if lease else []
            continue
        members = lease.members(0, lease.size)
        if not poison.isdisjoint(members):
            lease.fail("no such airport", delay_s=0)
            continue
        fates = {one: ("", b"misfit") if one == misfit else ("clean", b"1") for one in members}
        lease.stage_all("n", [word for one, fate in fates.items() for word in (one, *fate, "")], after=0)
        lease.decide(["n"], rest="dropped")
        while not lease.advance().done:
            pass
        moved += members
    assert sorted([*moved, *poison]) == ids
    assert sorted(client.queue(RAW).ids("dead")) == sorted([*poison, misfit])
    assert client.queue(CLEAN).counts()["waiting"] == 3000 - 4
    assert client.queue(RAW).counts()["pending"] == 0
    assert nothing_left(raw, keys)
    audit(RAW)


def test_a_row_of_one_half_for_an_item_of_the_other_leaves_nobody_behind(raw_orders, client, halved, raw, keys, audit):
    """Halves share one number, so such a row counts; the half that sent it must still end its own members."""
    _, ids = halved(4, 4)
    left, right = raw_orders.take(4, lease_s=LEASE_S), raw_orders.take(4, lease_s=LEASE_S)
    left.stage("n", [word for one in ids[2:] for word in (one, "clean", b"1", "")])
    left.decide(["n"], rest="dropped")
    while not left.advance().done:
        pass

    finish(right)

    assert client.queue(RAW).counts()["pending"] == 0
    assert client.queue(CLEAN).counts()["waiting"] == 2
    assert client.queue(RAW).totals()["dropped"] == 2
    assert nothing_left(raw, keys)
    audit(RAW)


def test_a_part_says_whether_another_one_was_decided(client, raw_orders):
    client.queue(RAW).push_many(range(2))
    whole = raw_orders.take(2, lease_s=LEASE_S)
    assert whole is not None
    whole.fail("ValueError: no", delay_s=0.0, fate="divided")

    first = raw_orders.take(1, lease_s=LEASE_S)
    assert first is not None
    assert not first.others_worked
    first.stage("n", [first.members(0, 1)[0], "clean", b"1", ""], after=0)
    first.decide({"n": 1}, rest="succeeded")

    second = raw_orders.take(1, lease_s=LEASE_S)
    assert second is not None
    assert second.others_worked
