"""How long to try, and which calls may be sent again. Time is given."""

import pytest
from msgspec import structs

from jobrunner.broker import reconnect
from jobrunner.broker.call import command, may_repeat
from jobrunner.broker.reconnect import ReconnectPolicy
from jobrunner.broker.redis_errors import (
    AuthenticationError,
    BusyLoadingError,
    RedisConnectionError,
    RedisTimeoutError,
    ResponseError,
)
from jobrunner.errors import OutcomeUnknown, ServerRefused, ServerUnavailable

ALWAYS = command("PING", read=bytes)
ONCE = command("INCR", "n", read=int, repeatable=False)
NOTED = structs.replace(ALWAYS, repeat_s=9)
LOST = RedisConnectionError("lost")


@pytest.fixture
def time(monkeypatch):
    class Time:
        now = 100.0

        def pass_(self, seconds):
            self.now += seconds

    clock = Time()
    monkeypatch.setattr(reconnect, "since_boot", lambda: clock.now)
    monkeypatch.setattr(reconnect, "sleep", clock.pass_)
    return clock


def without_end(step):
    while True:
        step()


def test_pauses_double_up_to_half_a_second(time):
    policy = ReconnectPolicy(60, "here", began=time.now)

    assert [policy.pause_to_connect(LOST) for _ in range(8)] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]


def test_patience_ends(time):
    policy = ReconnectPolicy(2, "here", began=time.now)
    with pytest.raises(ServerUnavailable, match="no server at here: lost; start it"):
        without_end(lambda: policy.wait_to_connect(LOST))

    assert 102 <= time.now < 103


def test_an_error_that_ends_with_a_full_stop_is_one_sentence_with_the_remedy(time):
    policy = ReconnectPolicy(0, "here", began=time.now)
    with pytest.raises(ServerUnavailable, match=r"no server at here: Error 2 connecting to s\. No such file; start it"):
        policy.wait_to_connect(RedisConnectionError("Error 2 connecting to s. No such file."))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RedisConnectionError("max number of clients reached"), "the server at here takes no more connections: max"),
        (BusyLoadingError("it is loading"), "the server at here does not answer yet: it is loading; wait"),
        (
            RedisConnectionError("Error 24 connecting to here:6379. Too many open files."),
            r"^this process has no file descriptor for a connection to here: Error 24 .*files; find .*\(ulimit -n\)$",
        ),
    ],
)
def test_a_server_that_answered_is_not_to_be_started(time, error, told):
    with pytest.raises(ServerUnavailable, match=told):
        ReconnectPolicy(0, "here", began=time.now).pause_to_connect(error)


def test_the_full_stop_of_an_error_of_redis_py_does_not_stand_before_the_remedy(time):
    refused = RedisConnectionError("Error 111 connecting to here:6379. Connection refused.")
    with pytest.raises(ServerUnavailable, match=r"here:6379\. Connection refused; start it, or name another"):
        ReconnectPolicy(0, "here", began=time.now).pause_to_connect(refused)


def test_a_connection_that_broke_while_the_process_was_stopped_gets_a_second_try(time):
    policy = ReconnectPolicy(2, "here", began=time.now)
    time.pass_(60)

    assert policy.pause_to_repeat(LOST, [ALWAYS], stale=True) == 0
    with pytest.raises(ServerUnavailable):
        policy.pause_to_connect(LOST)
    late = ReconnectPolicy(2, "here", began=time.now - 60)
    assert late.pause_to_connect(LOST) == 0.01
    with pytest.raises(OutcomeUnknown):
        late.pause_to_repeat(LOST, [ALWAYS], stale=False)




def test_a_call_that_the_server_forgets_is_not_sent_again_after_its_time(time):
    policy = ReconnectPolicy(600, "here", began=time.now)
    time.pass_(60)
    assert policy.pause_to_connect(LOST) == 0.01, "and nothing was sent by then"
    time.pass_(8.9)
    policy.check_age([NOTED])
    assert policy.pause_to_repeat(LOST, [ALWAYS, NOTED], stale=True) == 0
    policy.check_age([ALWAYS, NOTED])
    time.pass_(0.2)
    policy.check_age([ALWAYS])
    with pytest.raises(OutcomeUnknown, match=r"during the command: lost; .* not, and 9 s later it is too late to send"):
        policy.check_age([ALWAYS, NOTED])


def test_the_outcome_of_what_was_sent_before_the_server_went_away_is_unknown(time):
    policy = ReconnectPolicy(2, "here", began=time.now)
    policy.wait_to_repeat(RedisConnectionError("reset"), [ALWAYS, NOTED], stale=True)
    with pytest.raises(OutcomeUnknown, match=r"during the command: reset; .* or it was not; since then: no server at"):
        without_end(lambda: policy.wait_to_connect(LOST))

    policy = ReconnectPolicy(2, "here", began=time.now)
    policy.wait_to_repeat(RedisConnectionError("reset"), [ALWAYS], stale=True)
    with pytest.raises(ServerUnavailable, match=r"^no server at"):
        without_end(lambda: policy.wait_to_connect(LOST))


def test_a_server_that_was_silent_for_a_whole_timeout_gets_none(time):
    policy = ReconnectPolicy(2, "here", began=time.now)
    time.pass_(5)
    with pytest.raises(OutcomeUnknown):
        policy.pause_to_repeat(RedisTimeoutError("timed out"), [ALWAYS], stale=True)


def test_no_patience_is_one_try(time):
    with pytest.raises(ServerUnavailable):
        ReconnectPolicy(0, "here", began=time.now).pause_to_connect(LOST)


def test_a_call_that_may_not_be_repeated_is_not(time):
    with pytest.raises(OutcomeUnknown, match="during the command: lost; it was applied or it was not"):
        ReconnectPolicy(60, "here", began=time.now).pause_to_repeat(LOST, [ALWAYS, ONCE], stale=True)
    assert may_repeat([ALWAYS, ALWAYS])
    assert not may_repeat([ALWAYS, ONCE])


def test_a_connection_that_rested_costs_no_pause(time):
    policy = ReconnectPolicy(60, "here", began=time.now)

    assert policy.pause_to_repeat(LOST, [ALWAYS], stale=True) == 0
    assert policy.pause_to_repeat(LOST, [ALWAYS], stale=False) == 0.01


def test_repeating_ends_too(time):
    policy = ReconnectPolicy(1, "here", began=time.now)
    with pytest.raises(OutcomeUnknown):
        without_end(lambda: policy.wait_to_repeat(LOST, [ALWAYS], stale=False))
    assert 101 <= time.now < 102


@pytest.mark.parametrize("refusal", [AuthenticationError("WRONGPASS"), ResponseError("NOPERM")])
def test_a_refusal_is_not_waited_for(time, refusal):
    with pytest.raises(ServerRefused, match=f"^the server at here .*{refusal}"):
        ReconnectPolicy(60, "here", began=time.now).pause_to_connect(refusal)
    assert time.now == 100
