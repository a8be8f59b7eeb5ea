"""Runs of the product against the simulated server are as they must be, and find the bugs that are seeded."""

import gc
import re
import subprocess
import sys

import pytest

from jobrunner.coordinator import coordinator as coordinator_module
from jobrunner.coordinator.coordinator import Coordinator
from tests.simulation.bugs import BUGS, Bug, server_with
from tests.simulation.many_runs import play_piece
from tests.simulation.network import FAULTS
from tests.simulation.parts import (
    CANCELLED,
    DELETED,
    LATE,
    RATES,
    RELEASED,
    STEPS_IN_SHARDS,
    TICKS,
    WITH_HISTORY,
    WRITES,
)
from tests.simulation.scenario import play
from tests.simulation.seeds import KEPT, kept_seeds
from tests.simulation.server import SimulatedServer
from tests.simulation.virtual_time import virtual_time

pytestmark = pytest.mark.processes

EVERYDAY = ("LEASE_NUMBER_NOT_COMPARED", "LIMIT_IGNORED", "PARTS_ARE_TOPPED_UP", "MOVED_AND_STILL_PENDING",
            "LOCK_NOT_LOOKED_AT", "SOME_ARE_ALL", "EXPIRY_NOT_COUNTED", "FULL_QUEUE_IGNORED", "LIMIT_OF_KEYS_IGNORED",
            "GIFT_STAYS_WITH_ITS_GIVER", "REQUEUED_THOUGH_NOT_DEAD", "PAUSE_IGNORED", "TOKENS_NOT_PAID",
            "PROMOTED_LATE", "LEAD_TAKEN_TWICE", "OVERLAP_IGNORED", "DELETED_WITH_A_TASK", "TRIMMED_WITHOUT_A_NOTE",
            "ROWS_COUNT_UNDECIDED", "EXPIRED_AND_HANDED_OUT", "DEAD_LETTERS_ARE_SPENT", "RATE_OF_KEYS_IGNORED",
            "TOKEN_OF_A_KEY_NOT_RETURNED", "STEPS_OF_SHARDS_NOT_POSTED", "CANCELLED_AND_TRIED_AGAIN",
            "SNOOZED_TASK_HOLDS_NO_LOCK", "WORKER_SLEEPS_OVER_A_DUE_TASK", "PAYLOAD_OF_ANOTHER", "TRIED_AGAIN_AT_ONCE",
            "REPLAYED_WITHOUT_ITS_PAYLOAD", "LOCK_BEFORE_ITS_OWN_ID")  # fmt: skip
"""Found soon; the others are slow together."""
_RARELY = (pytest.mark.slow, pytest.mark.timeout(600))
SEEDED = [pytest.param(name, marks=() if name in EVERYDAY else _RARELY) for name in BUGS]


def test_a_thousand_seeds_and_those_that_found_a_bug() -> None:
    broken, calls = play_piece([*kept_seeds(), *range(1000)])
    assert broken == []
    assert calls > 10_000, "the actors do not do what they did"


@pytest.mark.parametrize("seed", KEPT)
def test_a_kept_seed_still_finds_its_bug(seed: int) -> None:
    """A change of the scenario that makes another run of it fails here: find a seed that finds the bug, and keep it."""
    bug = BUGS[KEPT[seed].bug]
    with virtual_time() as clock:
        outcome = play(server_with(bug), clock, seed)
    assert bug.finds in outcome.problem
    assert outcome.problem


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_bug_is_found(name: str) -> None:
    bug = BUGS[name]
    server = server_with(bug)
    with virtual_time() as clock:
        seeds = [*kept_seeds(name), *bug.tried()]
        found = next((outcome for seed in seeds if (outcome := play(server, clock, seed)).problem), None)
    assert found is not None
    assert bug.finds in found.problem


def test_several_processes_play_the_same_runs_as_one() -> None:
    """Each plays its pieces on one server, so a run must not depend on those before it."""
    said = _run("--seeds", "600")
    assert said.returncode == 0
    _, calls = play_piece([*kept_seeds(), *range(600)])
    assert said.stdout.startswith(f"{600 + len(KEPT)} runs, {calls:,} calls, 0 of them broken")


def test_a_piece_leaves_the_collector_as_it_was() -> None:
    play_piece([0])
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_seed_is_the_same_run_again() -> None:
    with virtual_time() as clock:
        server = SimulatedServer()
        before = [play(server, clock, seed, is_traced=True).trace for seed in range(30)]
        again = [play(SimulatedServer(), clock, seed, is_traced=True).trace for seed in (7, 29)]
    assert again == [before[7], before[29]]
    assert any("the reply was lost" in line for trace in before for line in trace)


def test_a_seed_is_the_same_run_behind_others() -> None:
    """LuaJIT's own order of a table made these another run where others had been played before."""
    with virtual_time() as clock:
        server = SimulatedServer()
        behind = {seed: play(server, clock, seed, is_traced=True).trace for seed in range(WRITES, 640, 64)}
        for seed in (362, 618):
            assert play(SimulatedServer(), clock, seed, is_traced=True).trace == behind[seed]


def assert_each_happens(seeds: range, *patterns: str) -> None:
    """Plays these seeds until each pattern was in the trace of one."""
    left = [re.compile(pattern, re.MULTILINE) for pattern in patterns]
    with virtual_time() as clock:
        server = SimulatedServer()
        for seed in seeds:
            trace = "\n".join(play(server, clock, seed, is_traced=True).trace)
            left = [pattern for pattern in left if not pattern.search(trace)]
            if not left:
                return
    assert [pattern.pattern for pattern in left] == []


def test_every_fault_happens() -> None:
    faults = (re.escape(f"[{fate}]") for fate in FAULTS)
    assert_each_happens(range(150), *faults, "hears OutcomeUnknown")


def test_flows_go_on_in_every_way() -> None:
    """Callbacks by each rule, groups behind groups, and results that are collected in slices and in parts."""
    rules = (rf"prepares join \S+ of \d members \({rule}" for rule in ("success", "complete", "dead", "pass", "tally"))
    ends = (rf"notifies join .* → {word}$" for word in ("noted", "fired", "posted", "more"))
    collected = (r"collects results .* → fired$", r"collects results .* → pass$", r"join_arrive_part → taken$")
    assert_each_happens(range(5, 1100, 16), *rules, *ends, *collected)


def test_stations_report_in_every_way() -> None:
    fanned = (rf"station \d: fans \S+ out under .*: {word}$" for word in ("ok", "full"))
    moved = (rf"station \d: moves to orders/\w+ .*: {word}$" for word in ("ok", "hops"))
    assert_each_happens(range(13, 2100, 16), *fanned, *moved)


def test_slices_of_a_limit_follow_the_load() -> None:
    assert_each_happens(
        range(9, 1000, 32), r"slice_give → mail@\d, ", "slice_take → taken$", "slice_take → had$", "slice_enter → "
    )


def test_tasks_are_changed_by_hand_in_every_way() -> None:
    assert_each_happens(
        range(1, 6000, 32), "cancel → ok$", "cancel → reserved$", "requeue → ok", "requeue → not_dead", "run_now → ok",
        "pop → [^n]", "remove → ok", "delete → ok$", "crashs .*: waiting", "crashs .*: dead",
    )  # fmt: skip


def test_leaders_follow_one_another_and_fire_ticks() -> None:
    fired = (rf"leader \w: ticks \S+ of \S+ → {word}$" for word in ("fired", "skipped", "disabled", "missed"))
    assert_each_happens(range(TICKS, 10_000, 64), *fired, r"periodic_anchor → anchored$")


def test_queues_leave_and_come_back() -> None:
    assert_each_happens(
        range(DELETED, 10_000, 64), "delete_queue → deleted", "delete_queue → held, ", "delete_queue → more, ",
        "queue_forget → .*marked", "queue_forget → .*forgotten", "purge → [1-9]", "deleter 1: hears QueueNotEmpty",
    )  # fmt: skip


def test_history_is_read_replayed_and_purged() -> None:
    assert_each_happens(
        range(WITH_HISTORY, 2000, 64), "purger: purge → [1-9]", r"replayer: pushes #\d+ to spare/in", "pop → [^n]",
        "delete → ok",
    )  # fmt: skip


def test_writes_begin_anew_and_are_done() -> None:
    begun = (rf"batch_begin → \d+, {word}" for word in ("open", "committed", "done"))
    assert_each_happens(
        range(WRITES, 2000, 64), *begun, "batch_decide .*→ lost", "batch_stage .*→ lost", "batch_fail .*dissolved",
        "advances .*-1: done",
    )  # fmt: skip


def test_tasks_die_late_and_go_to_the_dead_letter_queue() -> None:
    """The third worker is that of the dead letter queue."""
    assert_each_happens(
        range(LATE, 3000, 64), r"post worker \d: is handed out \S+ under", "fails .*: dead", "requeue → ok",
        "unique until expired", "operator 1: cancel → ok", "operator 1: remove → ok", "run_now → ok",
        "post worker 3: is handed out",
    )  # fmt: skip


@pytest.mark.parametrize("part", [RATES, RELEASED])
def test_partitions_with_a_rate_and_unique_tasks_are_given_back_in_every_way(part: int) -> None:
    assert_each_happens(
        range(part, 6000, 64), "taker 1: releases .*: waiting", "taker 1: releases .*: scheduled", "crashs .*: waiting",
        "pop → [^n]", "cancel → ok", "cancel → reserved",
    )  # fmt: skip


def test_flows_in_shards_are_run_and_cancelled() -> None:
    assert_each_happens(
        range(STEPS_IN_SHARDS, 2000, 64), "notifies join .* → fired", "join_abandon → ",
        "flow sender 1: cancel → posted", "slice_give → mail@",
    )  # fmt: skip


def test_members_of_batches_and_items_of_stations_are_cancelled() -> None:
    assert_each_happens(
        range(CANCELLED, 3000, 64), "cancel → ok", "cancel → reserved", "remove → reserved", "run_now → ok",
        "batch_decide",
    )  # fmt: skip


def test_a_leader_whose_clock_is_ahead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of the product that seed 473 found: the leader counted the server's time from its request on, which was on
    its way for long, and fired a tick early."""

    def from_the_request(coordinator: Coordinator) -> float:
        leadership, asked_at, _ = coordinator._renewed
        return leadership.now_ms + (coordinator_module.monotonic() - asked_at) * 1000

    monkeypatch.setattr(Coordinator, "_server_now_ms", from_the_request)
    with virtual_time() as clock:
        outcome = play(SimulatedServer(), clock, 473)
    assert re.search(r"tick \d+ was fired \d{3} ms early", outcome.problem)


@pytest.mark.parametrize("name", [name for name in BUGS if name not in EVERYDAY])
def test_a_bug_that_is_found_rarely_can_still_be_seeded(name: str) -> None:
    """What finds it is slow; a change of the script would be seen only there."""
    server_with(BUGS[name])


def test_a_bug_that_no_script_can_have_any_more_is_an_error() -> None:
    with pytest.raises(ValueError, match="no script has the text 'never so'"):
        server_with(Bug("never so", "", 1, ""))


def test_an_unknown_command_is_an_error_that_names_it() -> None:
    reply = SimulatedServer().ask("GEOADD", "key", now_ms=0)
    assert "the simulated server has no command 'GEOADD'" in str(reply)


@pytest.mark.parametrize("seed", [7, 105, 405], ids=["plain", "shards", "flow"])
def test_the_command_prints_one_run_in_terms_of_the_product(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same lines as in this process: a seed is the same run everywhere, whatever the order of a set of texts."""
    with virtual_time() as clock:
        here = play(SimulatedServer(), clock, seed, is_traced=True).trace
    monkeypatch.setenv("PYTHONHASHSEED", "4")
    said = _run("--seed", str(seed), "--verbose")
    assert said.returncode == 0
    assert said.stdout.splitlines()[:-1] == here
    assert re.search(r"worker( \d)?: commits \S+ under …\d{4}: ended", said.stdout)


def test_the_command_shows_the_run_that_finds_a_seeded_bug() -> None:
    said = _run("--bug", "LEASES_STAY")
    assert said.returncode == 0
    assert "has a lease in orders/" in said.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seeds", "0"), "give at least 1 seed"),
        (("--verbose",), "name it with --seed N"),
        (("--bug", "NONE"), "invalid choice: 'NONE'"),
    ],
)
def test_misuse_is_refused(words: tuple[str, ...], message: str) -> None:
    said = _run(*words)
    assert said.returncode == 2
    assert message in said.stderr


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)
