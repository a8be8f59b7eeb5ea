"""Each row of the table "feature | with partitions" of docs/queues.md, tried."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from jobrunner import Client, Item, RateLimit, queue
from jobrunner.broker.calls.queues import configure
from jobrunner.broker.calls.shards import CHANGED_FIELD
from jobrunner.broker.keys import tag_of_id
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.queue import Queue
from jobrunner.errors import InvalidOption, QueueFull, UsageError
from jobrunner.task import Lock, Task, new_id

pytestmark = pytest.mark.timeout(60)
_PAGE = (Path(__file__).parents[3] / "docs" / "queues.md").read_text("utf-8")
_TABLE = _PAGE.partition("| feature | with partitions |\n|---|---|\n")[2].partition("\n\n")[0]
ROWS = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", _TABLE, re.MULTILINE))
N = 4


@pytest.fixture
def mail(client: Client) -> Queue:
    made = client.queue("mail")
    made.configure(partitions=N)
    return made


def spread_over(ids: list[str]) -> int:
    return len({tag_of_id(one) for one in ids})


def let_producers_learn(client: Client, queue: str) -> None:
    """The number of partitions changed long ago."""
    broker_of(client).run(configure(keys_of(client).queue(queue), {CHANGED_FIELD: 1}))


def _push(_: Client, mail: Queue) -> None:
    assert spread_over([mail.push(n) for n in range(32)] + mail.push_many(range(64))) == N
    assert mail.counts()["waiting"] == 96


def _order(_: Client, mail: Queue) -> None:
    mail.push_many([Item([key, n], partition=f"k{key}") for n in range(20) for key in range(5)])
    seen: dict[int, list[int]] = {}
    while taken := mail.reserve(7):
        for lease in taken:
            seen.setdefault(lease.payload[0], []).append(lease.payload[1])
        mail.commit_many(taken)
    assert list(seen.values()) == [list(range(20))] * 5


def _keys(_: Client, mail: Queue) -> None:
    mail.configure(max_inflight_per_partition=2, fair=True)
    mail.push_many([Item(key, partition=f"k{key}") for _ in range(10) for key in range(6)])
    held = []
    while taken := mail.reserve(20):
        held += taken
    assert Counter(lease.payload for lease in held) == dict.fromkeys(range(6), 2)


def _own_ids(client: Client, mail: Queue) -> None:
    assert [mail.push(1, id="a"), mail.push(2, id="a")] == ["a", "a"]
    assert client.task("a", queue="mail").record().payload == b"1"
    with pytest.raises(InvalidOption, match="several partitions"):
        mail.push_many([Item(1, id=f"i{n}") for n in range(20)], on_clash="raise")


def _unique(client: Client, _: Queue) -> None:
    lock = Lock(digest="d", lasts="finished", ttl_ms=60_000, on_clash="existing")
    made = [Task(id=new_id("mail"), queue="mail", payload=b"{}", type="j", lock=lock) for _ in range(2)]
    assert len({client.enqueue(one).id for one in made}) == 1
    with pytest.raises(InvalidOption, match="is unique by parameters that its key"):
        client.enqueue(Task(id=new_id("mail"), queue="mail", payload=b"{}", type="j", lock=lock, key="k"))


def _leases(_: Client, mail: Queue) -> None:
    mail.push_many(range(64))
    taken = mail.reserve(8)
    assert taken[0].extend()
    assert taken[0].release()
    assert taken[1].rollback(delay=0)
    assert taken[2].commit()
    assert mail.delete(taken[3].id)
    assert len(mail.pop(3)) == 3


def _times(client: Client, mail: Queue) -> None:
    later = [mail.push(n, in_=3600) for n in range(16)]
    assert spread_over(later) == N
    assert mail.counts()["scheduled"] == 16
    assert mail.run_now(later[0])
    assert client.task(later[1]).cancel()
    urgent = mail.push("urgent", priority=2)
    assert urgent in {lease.id for lease in mail.reserve(50)}


def _whole(client: Client, mail: Queue) -> None:
    mail.push_many(range(64))
    assert mail.counts()["waiting"] == mail.totals()["enqueued"] == client.stats()["mail"].waiting == 64
    assert len(mail.ids("waiting")) == len(mail.tasks("waiting")) == 64
    mail.pause()
    assert mail.reserve(10) == []
    mail.resume()
    assert mail.purge("waiting") == 64
    with pytest.raises(UsageError, match="has 4 partitions"):
        mail.delete()
    mail.configure(partitions=1)
    with pytest.raises(UsageError, match="had other partitions a minute ago"):
        mail.delete()
    let_producers_learn(client, "mail")
    assert mail.delete()


def _dead(_: Client, mail: Queue) -> None:
    mail.configure(max_attempts=1, history=60)
    mail.push_many(range(32))
    taken = mail.reserve(16)
    mail.rollback_many(taken, error="boom")
    assert mail.requeue_dead() == len(taken)
    (lease, *_) = mail.reserve(1)
    lease.commit()
    assert [record.id for record in mail.history()] == [lease.id]
    assert tag_of_id(mail.replay(lease.id)) == lease.queue


def _limits(_: Client, mail: Queue) -> None:
    mail.configure(max_inflight=6, rate=RateLimit(5, per=3600))
    mail.push_many([Item(n, partition=f"k{n}") for n in range(60)])
    assert sum(len(mail.reserve(7)) for _ in range(9)) == 5
    with pytest.raises(InvalidOption, match="more leases are held"):
        mail.configure(max_inflight=3)


def _max_size(_: Client, mail: Queue) -> None:
    mail.configure(max_size=50)
    mail.push_many(range(40))
    with pytest.raises(QueueFull):
        mail.push_many(range(11))
    assert mail.counts()["waiting"] <= 50


def _pipelines(client: Client, _: Queue) -> None:
    shop = client.queue("shop/raw")
    shop.configure(partitions=N, max_attempts=1, dead_letter_queue="shop/failed")
    shop.push_many(range(64))
    while taken := shop.reserve(16):
        shop.move_many(taken[:8], "clean")
        shop.rollback_many(taken[8:])
    assert client.queue("shop/clean").counts()["waiting"] + client.queue("shop/failed").counts()["waiting"] == 64


def _refused_declaration(_: Client, __: Queue) -> None:
    with pytest.raises(InvalidOption, match="is set on the server and not declared"):
        queue("declared", partitions=N)


_ELSEWHERE = "tests/worker/test_shards.py"
TRIED: dict[str, Callable[[Client, Queue], None] | str] = {
    "push, `push_many`, jobs": _push,
    "order within a priority": _order,
    "`partition_by`, `fair`": _keys,
    "ids of your own": _own_ids,
    "`unique` jobs": _unique,
    "reserve, commit": _leases,
    "priorities, `in_`": _times,
    "counts, totals": _whole,
    "dead tasks, requeue": _dead,
    "flows, periodic jobs": _ELSEWHERE,
    "`max_per_worker`, drain": _ELSEWHERE,
    "encryption, payload store": _push,
    "`max_inflight`, `rate`": _limits,
    "`max_size`": _max_size,
    "pipelines, `move`": _pipelines,
    "stations on Spark": "tests/spark/test_pipeline_partitions.py",
    "other settings declared": _ELSEWHERE,
    "declaring `partitions`": _refused_declaration,
}


@pytest.mark.parametrize("feature", ROWS)
def test_each_feature_works_or_is_refused_as_the_page_says(client: Client, mail: Queue, feature: str) -> None:
    (tried,) = [one for name, one in TRIED.items() if feature.startswith(name)]
    assert ROWS[feature].startswith("refused") == (getattr(tried, "__name__", "").startswith("_refused"))
    if isinstance(tried, str):
        assert (Path(__file__).parents[3] / tried).is_file()
    else:
        tried(client, mail)


def test_the_table_is_read() -> None:
    assert len(ROWS) == len(TRIED)
