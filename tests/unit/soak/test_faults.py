"""The plan of faults."""

import pytest

from jobrunner.errors import InvalidOption
from jobrunner.soak.faults import KINDS, faults_of, kinds_of


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    plan = faults_of(7, list(KINDS), every_s=2, length_s=600)

    assert plan == faults_of(7, list(KINDS), every_s=2, length_s=600)
    assert plan != faults_of(8, list(KINDS), every_s=2, length_s=600)
    assert {fault.kind for fault in plan} == set(KINDS)
    assert 200 < len(plan) < 400
    assert plan == sorted(plan, key=lambda fault: fault.at_s)
    assert plan[-1].at_s < 600


def test_without_kinds_nothing_is_planned() -> None:
    assert faults_of(7, [], every_s=0, length_s=600) == []


def test_a_server_of_others_is_not_harmed_unless_one_says_so() -> None:
    assert set(kinds_of(None, is_own_server=True, has_proxy=True)) == set(KINDS)
    assert not {"restarts", "scripts"} & set(kinds_of(None, is_own_server=False, has_proxy=True))
    assert kinds_of("scripts, kills", is_own_server=False, has_proxy=True) == ["kills", "scripts"]
    assert not {"cuts", "silences", "replies"} & set(kinds_of(None, is_own_server=False, has_proxy=False))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("restarts", "only a private server is killed"),
        ("cuts", "the proxy leads to"),
        ("kill", "choose from kills"),
    ],
)
def test_what_cannot_be_done_is_refused(words: str, named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        kinds_of(words, is_own_server=False, has_proxy=False)
