"""queue_declare: declared settings, what an operator changed by hand, and workers of several releases.

`Model` says what must be in force; the state machine compares it with the server after each step.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from jobrunner.broker.calls import queues
from jobrunner.client.settings_hash import read_origins

TTL_MS = 30_000


def declare(line, place="app:1", *, ttl_ms=TTL_MS, **fields):
    return line.run(queues.declare(line.keys, fields, place=place, ttl_ms=ttl_ms))


def by_hand(line, who="ada", **fields):
    line.run(queues.configure(line.keys, fields, by=who))


def stored(line):
    return {name: value.decode() for name, value in line.run(queues.settings(line.keys)).items()}


def changed(line):
    found = read_origins(line.run(queues.origins(line.keys)))
    return {name: origin.changed_by for name, origin in found.items() if origin.changed_by}


def test_a_declaration_is_published_once(mail):
    assert declare(mail, max_inflight="4", dead_max="7") == ["dead_max", "max_inflight"]
    assert mail.wakes()
    assert declare(mail, max_inflight="4", dead_max="7") == []
    assert not mail.wakes()
    assert stored(mail) == {"max_inflight": "4", "dead_max": "7"}


def test_a_change_by_hand_is_kept_until_that_setting_is_declared_anew(mail, clock):
    declare(mail, max_inflight="4", dead_max="7")
    by_hand(mail, max_inflight="1")

    assert declare(mail, max_inflight="4", dead_max="7") == []  # a worker started again
    assert declare(mail, max_inflight="4", dead_max="8") == ["dead_max"]  # another setting is declared anew
    assert stored(mail) == {"max_inflight": "1", "dead_max": "8"}
    origin = read_origins(mail.run(queues.origins(mail.keys)))["max_inflight"]
    assert (origin.changed_by, origin.declared, origin.place) == ("ada", 4, "app:1")
    assert origin.changed_at.timestamp() == int(clock.ms) / 1000

    assert declare(mail, max_inflight="5", dead_max="8") == ["max_inflight"]
    assert stored(mail) == {"max_inflight": "5", "dead_max": "8"}
    assert changed(mail) == {}


def test_the_first_declaration_replaces_what_was_set_by_hand(mail):
    by_hand(mail, max_inflight="1", dead_max="9")
    declare(mail, max_inflight="4")

    assert stored(mail) == {"max_inflight": "4", "dead_max": "9"}
    assert changed(mail) == {"dead_max": "ada"}


def test_a_declaration_is_noted_once_however_many_workers_make_it(mail):
    for _ in range(3):
        declare(mail, max_inflight="4")
    declare(mail, max_inflight="5")
    assert len(mail.raw.hget(mail.keys.declared, "deployed").split()) == 2 * 2


def test_a_program_changes_nothing_that_a_worker_publishes(mail, clock):
    """A producer that knew the queue of a station by its name alone took the limits from the running station."""
    declare(mail, max_inflight="1")
    for fields in ({}, {"max_inflight": "4", "dead_max": "7"}):
        assert declare(mail, "pipeline app", ttl_ms=0, **fields) == []
    assert stored(mail) == {"max_inflight": "1"}
    assert mail.raw.hget(mail.keys.declared, "deployed").split()[1:] == [str(int(clock.ms) + TTL_MS).encode()]

    clock.ms += TTL_MS
    assert declare(mail, ttl_ms=0, max_inflight="4") == []
    clock.ms += 1
    assert declare(mail, ttl_ms=0, max_inflight="4") == ["max_inflight"]
    assert declare(mail, ttl_ms=0, max_inflight="5") == ["max_inflight"]
    assert declare(mail, max_inflight="6") == ["max_inflight"]


def test_a_program_without_settings_ends_only_those_of_its_own_place(mail, clock):
    declare(mail, max_inflight="1")
    clock.ms += TTL_MS + 1
    assert declare(mail, "pipeline app", ttl_ms=0) == []
    assert declare(mail, ttl_ms=0) == ["max_inflight"]


def test_a_declaration_that_changes_nothing_wakes_nobody(mail):
    declare(mail, max_inflight="4", dead_max="7")
    by_hand(mail, dead_max="9")
    assert mail.wakes()
    assert declare(mail, max_inflight="4") == []
    assert not mail.wakes()


def test_a_value_set_back_by_hand_is_no_change(mail):
    declare(mail, max_inflight="4")
    by_hand(mail, max_inflight="")
    assert changed(mail) == {"max_inflight": "ada"}
    by_hand(mail, max_inflight="4")
    assert changed(mail) == {}


def test_the_same_value_set_again_by_hand_stays_with_the_first_who_set_it(mail):
    by_hand(mail, max_inflight="4")
    by_hand(mail, "bob", max_inflight="4", dead_max="")
    assert changed(mail) == {"max_inflight": "ada"}


def test_a_setting_that_is_declared_no_more_is_the_default_again_unless_it_was_changed_by_hand(mail):
    declare(mail, max_inflight="4", dead_max="7", keepalive_ms="1000")
    by_hand(mail, dead_max="9")

    assert declare(mail, keepalive_ms="1000") == ["max_inflight"]
    assert stored(mail) == {"dead_max": "9", "keepalive_ms": "1000"}
    assert changed(mail) == {"dead_max": "ada"}


def rate(prefix, tokens, per):
    name = "max_tokens" if not prefix else "key_tokens"
    interval = {f"{prefix}interval_us": per * 1_000_000, f"{prefix}interval": per, f"{prefix}interval_unit": "SECONDS"}
    return {name: str(tokens), **{name: str(value) for name, value in interval.items()}}


@pytest.mark.parametrize("prefix", ["", "key_"], ids=["rate", "rate_per_partition"])
class TestRates:
    """A rate has several fields, and is changed and declared as one."""

    def test_a_rate_of_which_one_part_was_changed_by_hand_outlives_its_declaration(self, mail, prefix):
        declare(mail, **rate(prefix, 5, 60))
        by_hand(mail, **rate(prefix, 5, 30))
        assert list(changed(mail).values()) == ["ada"]
        declare(mail, dead_max="7")
        assert stored(mail).items() >= {**rate(prefix, 5, 30), "dead_max": "7"}.items()

    def test_a_rate_declared_anew_in_one_part_is_in_force_as_a_whole(self, mail, prefix):
        declare(mail, **rate(prefix, 5, 60))
        by_hand(mail, **rate(prefix, 9, 60))
        declare(mail, **rate(prefix, 5, 30))
        assert stored(mail).items() >= rate(prefix, 5, 30).items()
        assert changed(mail) == {}

    @pytest.mark.parametrize("part", range(4))
    def test_each_part_stands_for_the_whole(self, mail, prefix, part):
        old, new = rate(prefix, 5, 60), rate(prefix, 9, 30) | {f"{prefix}interval_unit": "MINUTES"}
        name = list(old)[part]
        declare(mail, **old)
        by_hand(mail, **{name: new[name]})
        declare(mail, dead_max="7")
        assert stored(mail).items() >= (old | {name: new[name]}).items(), "it outlives its declaration as a whole"

        declare(mail, **new)
        by_hand(mail, **old)
        one = {other: new[other] for other in new if other != name} | {name: old[name]}
        declare(mail, **one)
        assert stored(mail).items() >= one.items(), "and is declared anew as a whole"
        assert changed(mail) == {}

    def test_a_rate_set_back_by_hand_is_no_change(self, mail, prefix):
        declare(mail, **rate(prefix, 5, 60))
        by_hand(mail, **rate(prefix, 9, 30))
        by_hand(mail, **rate(prefix, 5, 60))
        assert changed(mail) == {}


def test_what_a_step_before_changed_is_known_as_changed_by_hand(mail):
    declare(mail, max_inflight="4", dead_max="7")
    mail.run(queues.configure(mail.keys, {"max_inflight": "1", "dead_max": "7"}))
    mail.run(queues.configure(mail.keys, {"max_inflight": "1", "dead_max": "7"}, by="ada", changed=["max_inflight"]))
    assert changed(mail) == {"max_inflight": "ada"}


def test_a_declared_default_replaces_a_change_by_hand(mail):
    declare(mail, max_inflight="4")
    by_hand(mail, max_inflight="1")
    assert declare(mail, max_inflight="") == ["max_inflight"]
    assert stored(mail) == {}


def test_a_worker_of_the_old_release_that_restarts_does_not_bring_its_declaration_back(mail):
    declare(mail, max_inflight="4")
    declare(mail, max_inflight="5")
    assert declare(mail, max_inflight="4") == []
    assert stored(mail) == {"max_inflight": "5"}


def test_a_release_that_was_rolled_back_is_out_of_force_when_its_workers_are_gone(mail, clock):
    declare(mail, max_inflight="4")
    declare(mail, max_inflight="5")
    clock.advance(TTL_MS - 1)
    assert declare(mail, max_inflight="4") == []
    clock.advance(2)
    assert declare(mail, max_inflight="4") == ["max_inflight"]
    assert stored(mail) == {"max_inflight": "4"}


def test_a_declaration_counts_until_its_last_millisecond(mail, clock):
    clock.set(1_700_000_000_000.75)
    declare(mail, max_inflight="4")
    declare(mail, max_inflight="5")
    declare(mail, max_inflight="4")
    noted = mail.raw.hget(mail.keys.declared, "deployed").split()
    assert noted[1::2] == [b"%d" % (1_700_000_000_000 + TTL_MS)] * 2
    clock.set(1_700_000_000_000 + TTL_MS)
    assert declare(mail, max_inflight="4") == [], "the newer one is published still"
    assert mail.raw.hget(mail.keys.declared, "deployed").split()[1] == b"%d" % (1_700_000_000_000 + 2 * TTL_MS)
    clock.advance(1)
    assert declare(mail, max_inflight="4") == ["max_inflight"]


def test_partitions_are_undone_when_the_declaration_drops_them(mail):
    declare(mail, fair="1")
    mail.enqueue("a", "b", key="x")
    mail.ask(1)
    declare(mail, dead_max="1")
    assert "parked" in stored(mail)


def test_a_full_server_takes_a_declaration(mail):
    mail.raw.config_set("maxmemory", 1)
    try:
        declare(mail, max_inflight="4")
    finally:
        mail.raw.config_set("maxmemory", 0)
    assert stored(mail) == {"max_inflight": "4"}


def test_a_deleted_queue_keeps_no_note_of_its_declaration(mail):
    declare(mail, max_inflight="4")
    mail.run(queues.delete(mail.keys, force=False, states=[]))
    assert not mail.raw.exists(mail.keys.declared)
    assert declare(mail, max_inflight="4") == ["max_inflight"]


def test_damage_reads_as_no_origin(mail):
    mail.raw.set(mail.keys.declared, "x")
    assert mail.run(queues.origins(mail.keys)) == {}
    assert read_origins({"by:max_inflight": b"\xff", "=rate": b"1", "by:dead_max": b"soon ada"})["dead_max"]


FIELDS = ("max_inflight", "dead_max", "max_size")
VALUES = st.sampled_from(["", "1", "2"])
DECLARATIONS = st.dictionaries(st.sampled_from(FIELDS), VALUES)


@dataclass
class Model:
    """What the rule says, in words of Python."""

    values: dict[str, str] = field(default_factory=dict)
    declared: dict[str, str] = field(default_factory=dict)
    by_hand: set[str] = field(default_factory=set)
    releases: list[tuple[dict[str, str], float]] = field(default_factory=list)
    in_force: dict[str, str] | None = None

    def set(self, name: str, value: str) -> None:
        self.values.pop(name, None)
        if value:
            self.values[name] = value

    def publish(self, release: dict[str, str], now: float) -> None:
        alive = [(one, ends) for one, ends in self.releases if ends >= now or one == release]
        known = [one for one, _ in alive]
        at = known.index(release) if release in known else len(alive)
        alive[at : at + 1] = [(release, now + TTL_MS)]
        self.releases = alive
        if at < len(alive) - 1 or self.in_force == release:
            return
        for name in FIELDS:
            if name in release and (name not in self.declared or self.declared[name] != release[name]):
                self.set(name, release[name])
                self.by_hand.discard(name)
            elif name in self.declared and name not in release and name not in self.by_hand:
                self.set(name, "")
        self.declared, self.in_force = dict(release), release

    def change(self, name: str, value: str) -> None:
        if self.declared.get(name) == value:
            self.by_hand.discard(name)
        elif self.values.get(name, "") != value:
            self.by_hand.add(name)
        self.set(name, value)


def test_any_order_of_releases_and_changes_follows_the_rule(line, clock):
    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.line, self.model = line(f"q{next(numbers)}"), Model()

        @rule(release=DECLARATIONS)
        def publish(self, release):
            declare(self.line, **release)
            self.model.publish(release, clock.ms)

        @rule(name=st.sampled_from(FIELDS), value=VALUES)
        def change(self, name, value):
            by_hand(self.line, **{name: value})
            self.model.change(name, value)

        @rule(seconds=st.sampled_from([1, 20, 40]))
        def wait(self, seconds):
            clock.advance(seconds * 1000)

        @invariant()
        def follows_the_rule(self):
            assert stored(self.line) == self.model.values
            assert set(changed(self.line)) == self.model.by_hand

    numbers = iter(range(10**6))
    run_state_machine_as_test(Machine, settings=settings(max_examples=40, stateful_step_count=20))
