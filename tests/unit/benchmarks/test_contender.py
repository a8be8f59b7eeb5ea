"""Each contender takes part in the measures it supports, and `--only` selects measures and contenders."""

import argparse

import pytest

from benchmarks.__main__ import chosen, words
from benchmarks.contender import Contender
from benchmarks.measures import OURS, PEERS
from benchmarks.peers.requirements import REQUIREMENTS
from benchmarks.peers.roster import ROSTER
from benchmarks.run import CONTENDERS, MEASURED


def _contender(**more: object) -> Contender:
    return Contender(name="x", produce=[], work=lambda _task, _count: [], left=lambda _server: 0, **more)  # type: ignore[arg-type]


def test_a_contender_takes_part_in_everything_but_what_it_cannot() -> None:
    contender = _contender(cannot={"waits": "one at a time"})

    assert contender.takes_part("drain")
    assert not contender.takes_part("waits")


def test_a_yardstick_takes_part_in_its_own_measures_alone() -> None:
    contender = _contender(only=("latency",))

    assert contender.takes_part("latency")
    assert not contender.takes_part("drain")


def test_a_share_is_never_too_small_for_a_rate_nor_more_than_there_is() -> None:
    contender = _contender(share=0.02)

    assert [contender.tasks(whole) for whole in (500, 10_000, 100_000)] == [500, 1_000, 2_000]


def test_every_peer_has_an_adapter_and_requirements() -> None:
    assert set(PEERS) == set(ROSTER) == set(REQUIREMENTS) - {OURS}


def test_words_choose_measures_and_contenders() -> None:
    asked = words("drain, rq,celery")

    assert chosen(asked, MEASURED) == ("drain",)
    assert chosen(asked, CONTENDERS) == ("rq", "celery")


def test_peers_are_all_peers_and_no_word_is_everything() -> None:
    assert chosen(words("peers"), CONTENDERS) == PEERS
    assert chosen((), CONTENDERS) == CONTENDERS


def test_an_unknown_word_is_refused_with_those_that_exist() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"quickly: choose of drain.*celery"):
        words("drain,quickly")
