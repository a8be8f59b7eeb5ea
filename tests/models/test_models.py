"""The models of leases, flows and batches hold their rules, and find the bugs that are seeded in them."""

import re
import subprocess
import sys

import pytest

from tests.models.catalog import MODELS
from tests.models.spin import FOLDER, CannotCheck, check, missing_tool

pytestmark = pytest.mark.processes

needs_spin = pytest.mark.skipif(bool(missing_tool()), reason=missing_tool())
RULES = {
    "NUMBER_NOT_COMPARED": "only the holder of the newest lease may report, and not after its end",
    "SWEEP_ENDS_THE_LEASE": "only the holder of the newest lease may report, and not after its end",
    "NUMBER_IS_THE_ATTEMPT": "a lease number is handed out at most once",
    "RECOVERED_TO_THE_BACK": "tasks are handed out in order; a crash costs no place",
    "LIMIT_COUNTS_WORKERS": "no more tasks are pending than max_inflight",
    "POSTED_AFTER_THE_END": "when all members ended, on_complete is enqueued",
    "FORGOTTEN_FIRST": "when all members ended, on_complete is enqueued",
    "ARRIVALS_COUNTED": "on_complete waits until all members ended",
    "SLICE_AND_POSITION_APART": "a callback has the result of each member once",
    "CHILD_APART": "a fan-out makes each child once",
    "PARTS_ARE_TOPPED_UP": "a pending item is a member of exactly one open batch",
    "PARTS_NOT_COUNTED": "a pending item is a member of exactly one open batch",
    "DECIDE_WITHOUT_EPOCH": "only the newest holder decides, and not after the end of its lease",
}
"""The rule that each seeded bug breaks."""
EVERYDAY = ("NUMBER_NOT_COMPARED", "POSTED_AFTER_THE_END", "PARTS_ARE_TOPPED_UP")
"""One of each model; the others are slow together, a second each for the C compiler."""
SEEDED = [
    pytest.param(one.name, bug, marks=() if bug in EVERYDAY else pytest.mark.slow)
    for one in MODELS.values()
    for bug in one.bugs
]


@needs_spin
@pytest.mark.parametrize("name", MODELS)
def test_every_rule_holds_within_small_bounds(name: str) -> None:
    verdict = check(name, MODELS[name].short)
    assert not verdict.rule, "\n".join([verdict.rule, *verdict.trace])
    assert verdict.states > 10_000, "the model cannot do what it did"


@needs_spin
@pytest.mark.parametrize(("name", "bug"), SEEDED)
def test_a_seeded_bug_is_found(name: str, bug: str) -> None:
    verdict = check(name, MODELS[name].bug_bounds, bug=bug)
    assert verdict.rule == RULES[bug]
    assert verdict.trace
    if bug == "PARTS_ARE_TOPPED_UP":  # the steps are those of the product: what was split gets a third item
        split = next(n for n, step in enumerate(verdict.trace) if step.endswith("is split"))
        assert split < len(verdict.trace) - 1
        assert re.fullmatch(r"driver \d tops batch \d up with item 3", verdict.trace[-1])


@needs_spin
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", MODELS)
def test_every_rule_holds_within_full_bounds(name: str) -> None:
    for bounds in MODELS[name].full:
        verdict = check(name, bounds, optimize=True)
        assert not verdict.rule, "\n".join([verdict.rule, *verdict.trace])


def test_each_seeded_bug_is_described_where_it_is_seeded() -> None:
    assert sorted(bug for one in MODELS.values() for bug in one.bugs) == sorted(RULES)
    for one in MODELS.values():
        text = (FOLDER / f"{one.name}.pml").read_text("utf-8")
        assert set(re.findall(r"BUG_(\w+)\b", text)) == set(one.bugs)


def test_a_missing_tool_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "spin" else f"/usr/bin/{tool}")
    with pytest.raises(CannotCheck, match=r"spin is not installed.*apt install spin gcc"):
        check("lease", {})


def test_an_unknown_model_is_refused() -> None:
    ran = subprocess.run([sys.executable, "-m", "tests.models", "leases"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "no model is called 'leases': choose of lease, flow, batch" in ran.stderr
