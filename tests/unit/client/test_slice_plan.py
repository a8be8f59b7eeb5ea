"""Which shard gives slices to which, by what was read of them."""

import pytest

from jobrunner.broker.calls.slices import ShardSlices
from jobrunner.client.operations.slice_plan import Giving, Usage, fair_shares, plan


def shard(
    inflight: int | None = None, waiting: int = 0, pending: int = 0, *, tokens: int | None = None, level: int = 0,
    hold: int | None = None, enqueued: int = 0, interval_s: int = 1, is_paused: bool = False,
) -> ShardSlices:  # fmt: skip
    return ShardSlices(
        1, inflight, tokens, hold, interval_s * 1_000_000, inflight, tokens, is_paused, waiting, pending, level,
        enqueued, [],
    )  # fmt: skip


def planned(*shards: ShardSlices, turn_s: float = 0.0, before: tuple[ShardSlices, ...] = ()) -> dict[int, Giving]:
    usage = Usage()
    if before:
        usage.note(9.0, before)
    usage.note(10.0, shards)
    return plan(shards, usage, 10.0, turn_s)


@pytest.mark.parametrize(
    ("total", "demands", "shares"),
    [
        (8, [100, 0, 0, 0], [8, 0, 0, 0]),
        (8, [100, 1, 100, 0], [4, 1, 3, 0]),
        (8, [1, 2, 3, 0], [1, 2, 3, 0]),
        (9, [9, 9, 9, 9], [3, 2, 2, 2]),
        (0, [5, 5], [0, 0]),
    ],
)
def test_shares_are_fair_and_nobody_gets_more_than_it_needs(total: int, demands: list[int], shares: list[int]) -> None:
    assert fair_shares(total, demands, [3, 2, 1, 0], 0) == shares


def test_where_there_is_not_one_for_each_they_take_turns() -> None:
    seen = [fair_shares(3, [9] * 16, [0] * 16, turn) for turn in range(16)]
    assert all(sum(shares) == 3 for shares in seen)
    assert {sum(column) for column in zip(*seen, strict=True)} == {3}, "each has its turn as often as the others"


def test_nothing_moves_while_no_shard_is_held_up() -> None:
    assert planned(shard(2, waiting=5, pending=1), shard(30)) == {}
    assert planned(shard(2, waiting=0, pending=2), shard(30)) == {}
    assert planned(shard(2, waiting=5, pending=2, is_paused=True), shard(30)) == {}
    assert planned(shard(tokens=2, waiting=1, level=1), shard(tokens=30, level=30)) == {}


def test_the_busy_shard_gets_all_that_others_do_not_use() -> None:
    busy, used, idle = shard(2, waiting=90, pending=2), shard(8, pending=3), shard(8)
    assert planned(busy, used, idle) == {1: Giving({0: (5, 0)}), 2: Giving({0: (8, 0)})}


def test_a_shard_keeps_what_it_used_and_one_for_what_may_come() -> None:
    busy, quiet, trickle = shard(2, waiting=90, pending=2), shard(8), shard(8, enqueued=4)
    found = planned(busy, quiet, trickle, before=(busy, shard(8, pending=5), shard(8, enqueued=3)))
    assert found == {1: Giving({0: (3, 0)}), 2: Giving({0: (7, 0)})}


def test_a_saturated_shard_holds_back_leases_for_one_that_has_nothing() -> None:
    full, starved = shard(8, waiting=90, pending=8), shard(0, waiting=3)
    assert planned(full, starved) == {0: Giving({}, hold=5)}
    assert planned(shard(8, waiting=90, pending=6, hold=5), starved) == {0: Giving({1: (2, 0)}, hold=5)}
    assert planned(shard(8, waiting=90, pending=5, hold=5), starved) == {0: Giving({1: (3, 0)})}
    assert planned(shard(8, waiting=90, pending=5, hold=5), shard(0)) == {0: Giving({})}, "the hold ends"


def test_two_saturated_shards_share_evenly_and_stay_so() -> None:
    assert planned(shard(4, waiting=9, pending=4), shard(4, waiting=90, pending=4)) == {}
    assert planned(shard(5, waiting=9, pending=5), shard(4, waiting=90, pending=4)) == {}


def test_tokens_go_where_tasks_wait_by_what_comes_in_the_interval() -> None:
    busy, idle = shard(tokens=2, waiting=90), shard(tokens=30, level=30)
    assert planned(busy, idle) == {1: Giving({0: (0, 30)})}
    trickle = shard(tokens=30, level=30, enqueued=5)
    assert planned(busy, trickle, before=(busy, shard(tokens=30, enqueued=3))) == {1: Giving({0: (0, 28)})}
    one_waits = shard(tokens=0, waiting=1, interval_s=3600)
    assert planned(one_waits, shard(tokens=30, waiting=90, interval_s=3600)) == {1: Giving({0: (0, 15)})}


def test_both_limits_move_in_one_gift() -> None:
    busy = shard(1, waiting=9, pending=1, tokens=1)
    assert planned(busy, shard(3, tokens=4, level=4)) == {1: Giving({0: (3, 4)})}
