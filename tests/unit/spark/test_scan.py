"""A walk sees each member that keeps its score exactly once, whatever comes and goes around it."""

import math
from bisect import insort
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner.spark.source.scan import ScanRange, ScoreSpan, SetScan, slices_of
from tests.support.examples import examples


class Members:
    """A sorted set of a server that changes between any two commands."""

    def __init__(self, scores, changes=()):
        self.line = sorted((float(score), b"%d" % n) for n, score in enumerate(scores))
        self.stays = set(self.line)
        self._changes = list(changes)

    def ask(self, command, key, first, last, *_):
        self.change()
        return self.answer(command, first, last)

    def run_many(self, calls):
        """As a broker: all of them in one exchange."""
        self.change()
        return [call.read(self.answer(call.words[0].encode(), *call.words[2:4])) for call in calls]

    def answer(self, command, first, last):
        if command == b"ZCOUNT":
            return sum(float(first) <= score < float(last[1:]) for score, _ in self.line)
        found = self.line[first : last + 1] if first >= 0 else self.line[first:]
        return [word for score, member in found for word in (member, b"%.17g" % score)]

    def change(self):
        if not self._changes:
            return
        removed, added = self._changes.pop(0)
        for _ in range(min(removed, len(self.line))):
            self.stays.discard(self.line.pop(0))
        for score in added:
            insort(self.line, (score, b"new%d-%d" % (len(self._changes), len(self.line))))


def walked(members, part, count):
    walk, seen = SetScan(b"set", part), []
    for _ in range(10_000):
        words = walk.packed(count).split(b"\r\n")
        page = walk.take(members.ask(*words[2::2][:4][:2], int(words[6]), int(words[8])), members.ask)
        seen += zip(map(float, page.scores), page.ids, strict=True)
        if walk.ended:
            return seen
    raise AssertionError("the walk has no end")


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_a_quiet_set_is_walked_in_its_order(count):
    members = Members([n // 3 for n in range(50)])
    assert walked(members, ScanRange(after=None, upto=members.line[-1], rank=0), count) == members.line


def test_parts_beside_each_other_have_every_member_once():
    members = Members([n // 7 for n in range(60)])
    marks = [members.line[place] for place in (13, 30, 59)]
    seen, after, rank = [], None, 0
    for mark, place in zip(marks, (13, 30, 59), strict=True):
        seen += walked(members, ScanRange(after=after, upto=mark, rank=rank), 4)
        after, rank = mark, place
    assert seen == members.line


def test_a_part_by_scores_begins_and_ends_with_them():
    members = Members(range(20))
    assert walked(members, ScanRange(after=(5.0, b""), upto=members.line[9], rank=4), 3) == members.line[5:10]


added = st.lists(st.integers(-5, 45).map(float), max_size=20)
changes = st.lists(st.tuples(st.integers(0, 30), added), max_size=8)


@settings(max_examples=examples(300))
@given(st.lists(st.integers(0, 40), min_size=1, max_size=120), changes, st.integers(1, 30))
def test_what_stays_is_seen_once_while_others_change_the_set(scores, changed, count):
    """The oldest go, others come anywhere, between any two commands."""
    members = Members(scores, changed)
    upto = members.line[-1]
    seen = walked(members, ScanRange(after=None, upto=upto, rank=0), count)
    assert len(seen) == len(set(seen))
    assert members.stays <= set(seen)
    assert all(one <= upto for one in seen)


@settings(max_examples=examples(300))
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=120), changes, st.integers(0, 20) | st.none(),
    st.integers(1, 41) | st.none(), st.integers(1, 40),
)  # fmt: skip
def test_slices_have_what_stays_once_while_others_change_the_set(scores, changed, first, end, rows):
    """The set changes while it is counted and cut, too. Ranks shift then, and the borders that they place."""
    members = Members(scores, changed)
    span = ScoreSpan(first=-math.inf if first is None else float(first), end=None if end is None else float(end))
    keys = SimpleNamespace(name="orders", done=b"set")
    seen = [one for piece in slices_of(members, keys, "done", span, rows) for one in walked(members, piece.part, 5)]
    assert len(seen) == len(set(seen))
    within = {one for one in members.stays if span.first <= one[0] < (math.inf if end is None else end)}
    assert within <= set(seen)
    assert all(span.first <= score < (math.inf if end is None else end) for score, _ in seen)
