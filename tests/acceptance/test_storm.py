"""Random operations on every feature at once leave no inconsistency in any key, wake idle workers, and nothing stays.

`pytest -m slow tests/acceptance/test_storm.py` plays 2 000 examples; STORM_EXAMPLES sets another number.
"""

import itertools
import os
from collections.abc import Iterator
from random import Random

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.acceptance.storm import EACH, Step, first_problem
from tests.mutation.installed import install, own_text
from tests.support.examples import examples
from tests.support.server import Server

MANY = int(os.environ.get("STORM_EXAMPLES", "2000"))
_prefixes = itertools.count()
steps = st.lists(st.tuples(st.sampled_from(EACH), st.integers(0, 2**32 - 1)), min_size=30, max_size=90)


@pytest.fixture(autouse=True)
def _own_scripts() -> Iterator[None]:
    yield
    install({})


def played(server: Server, raw: redis.Redis, some: list[Step]) -> str:
    problem = first_problem(server.url, f"storm{next(_prefixes)}", raw, some)
    raw.flushall()
    return problem


@settings(max_examples=examples(30))
@given(some=steps)
def test_a_storm_leaves_every_key_as_it_must_be(some: list[Step], server: Server, raw: redis.Redis) -> None:
    assert played(server, raw, some) == ""


@pytest.mark.slow
@pytest.mark.timeout(7200)
@settings(max_examples=MANY)
@given(some=steps)
def test_many_storms_do(some: list[Step], server: Server, raw: redis.Redis) -> None:
    assert played(server, raw, some) == ""


@pytest.mark.parametrize(
    ("seed", "file", "right", "wrong", "finds"),
    [
        (0, "requeue.lua", "leave_group(", "local _ = (", "counts b'1' dead, and 0 are"),
        (0, "release.lua", "if #live > 0 then notify_worker(wake) end", "", "no hint woke an idle worker"),
        (7, "lib/task_leases.lua", "if #gone > 0 then redis.call('HDEL', prefix .. 'inflight', unpack(gone)) end", "",
         "are counted"),
    ],
)  # fmt: skip
def test_a_storm_finds_a_seeded_fault(
    seed: int, file: str, right: str, wrong: str, finds: str, server: Server, raw: redis.Redis
) -> None:
    assert right in own_text(file)
    install({file: own_text(file).replace(right, wrong)})
    problems = (played(server, raw, drawn(Random(number))) for number in range(seed, seed + 40))
    problem, _, _ = next(filter(None, problems), "").partition("\nafter:")
    assert finds in problem


def drawn(random: Random) -> list[Step]:
    return [(random.choice(EACH), random.getrandbits(32)) for _ in range(90)]
