"""A walk sees each member that keeps its score exactly once, whatever comes and goes around it."""

from bisect import insort

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner.spark.source.scan import ScanRange, SetScan
from tests.support.examples import examples


class Members:
    """A sorted set of a server that changes between any two commands."""

    def __init__(self, scores, changes=()):
        self.line = sorted((float(score), b"%d" % n) for n, score in enumerate(scores))
        self.stays = set(self.line)
        self._changes = list(changes)

    def ask(self, command, key, first, last, *_):
        self._change()
        if command == b"ZCOUNT":
            return sum(score < float(last[1:]) for score, _ in self.line)
        found = self.line[first : last + 1]
        return [word for score, member in found for word in (member, b"%.17g" % score)]

    def _change(self):
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
