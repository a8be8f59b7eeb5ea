"""The policy of retrying: how long to wait, when to give up."""

import math
import random
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobrunner.errors import AttemptCancelled, AttemptCrashed, AttemptTimeout, InvalidOption
from jobrunner.retry import Backoff, BackoffPolicy, check_retry_on, is_retried, is_spent, next_delay, seconds


class Top(random.Random):
    """Draws the upper end of every range."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Bottom(random.Random):
    """Draws the lower end of every range."""

    def uniform(self, a: float, b: float) -> float:
        return a


def test_the_default_waits_two_seconds_and_doubles_up_to_an_hour() -> None:
    backoff = Backoff(jitter=0)

    delays = [backoff.delay(failures) for failures in (1, 2, 3, 11, 12, 13)]

    assert delays == [2, 4, 8, 2048, 3600, 3600]


def test_arguments_may_be_given_by_position_as_timedelta_and_read_back_as_seconds() -> None:
    backoff = Backoff(timedelta(minutes=1), 3, timedelta(hours=1), 0.2)

    assert (backoff.base, backoff.factor, backoff.cap, backoff.jitter) == (60.0, 3.0, 3600.0, 0.2)
    assert backoff == Backoff(base=60, factor=3, cap=3600, jitter=0.2)
    assert hash(backoff) == hash(Backoff(60, 3, 3600, 0.2))


@given(st.randoms(use_true_random=False))
def test_each_failure_waits_at_least_1_6_times_longer_than_the_one_before(rng: random.Random) -> None:
    """MOSQ-31: strictly longer below the cap, whatever the jitter draws."""
    delays = [Backoff().delay(failures, rng) for failures in range(1, 12)]

    assert all(later >= 1.6 * earlier for earlier, later in pairwise(delays))


def test_the_worst_draws_still_wait_longer_each_time() -> None:
    """MOSQ-31: the longest draw of one failure is shorter than the shortest draw of the next."""
    backoff = Backoff()

    assert all(backoff.delay(n + 1, Bottom()) >= 1.6 * backoff.delay(n, Top()) for n in range(1, 11))


def test_ten_failures_with_a_tenth_of_a_second_take_at_least_their_sum() -> None:
    """KEU-16: the delay keeps a rejected item from coming back at once."""
    backoff = Backoff(base=0.1, jitter=0)

    assert sum(backoff.delay(n) for n in range(1, 11)) == pytest.approx(0.1 * (2**10 - 1))


@given(
    base=st.floats(0, 1e6),
    factor=st.floats(1, 1e300),
    jitter=st.floats(0, 0.999),
    failures=st.integers(-3, 10**400),
)
def test_a_delay_is_finite_and_within_cap_and_jitter_for_every_count(
    base: float, factor: float, jitter: float, failures: int
) -> None:
    backoff = Backoff(base=base, factor=factor, cap=1e6, jitter=jitter)

    delay = backoff.delay(failures)

    assert math.isfinite(delay)
    assert min(base, 1e6) * (1 - jitter) * 0.999 <= delay <= 1e6 * (1 + jitter)


def test_a_base_of_zero_never_waits_even_after_a_huge_count() -> None:
    assert Backoff(base=0).delay(10**9) == 0


def test_the_same_generator_gives_the_same_delay() -> None:
    assert Backoff().delay(5, random.Random(7)) == Backoff().delay(5, random.Random(7))


def test_delays_of_tasks_that_failed_together_are_spread() -> None:
    assert len({Backoff().delay(3) for _ in range(50)}) > 40


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"base": -1}, "base"),
        ({"base": math.nan}, "base"),
        ({"base": "2"}, "base"),
        ({"base": True}, "base"),
        ({"base": timedelta(seconds=-1)}, "base"),
        ({"cap": math.inf}, "cap"),
        ({"base": 10, "cap": 9}, "cap"),
        ({"factor": 0.99}, "factor"),
        ({"factor": math.inf}, "factor"),
        ({"factor": math.nan}, "factor"),
        ({"factor": 10**400}, "factor"),
        ({"factor": None}, "factor"),
        ({"factor": True}, "factor"),
        ({"jitter": 1}, "jitter"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": math.nan}, "jitter"),
        ({"jitter": "0.1"}, "jitter"),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidOption, match=f"backoff {named} is .*; give ") as refusal:
        Backoff(**options)  # type: ignore[arg-type]

    assert "\n" not in str(refusal.value)


def test_the_answer_of_a_callable_is_taken_as_seconds_or_timedelta() -> None:
    error = RuntimeError("no")
    asked: list[tuple[int, BaseException]] = []

    def policy(retry_count: int, error: BaseException) -> timedelta:
        asked.append((retry_count, error))
        return timedelta(minutes=retry_count)

    assert next_delay(policy, 3, error) == 180.0
    assert next_delay(lambda count, error: 0, 1, error) == 0.0
    assert asked == [(3, error)]


def test_a_backoff_is_a_policy() -> None:
    assert next_delay(Backoff(5, 1, 5, 0), 9, RuntimeError()) == 5.0


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be shown")

    __repr__ = __str__


def raising(retry_count: int, error: BaseException) -> float:
    raise error


NONSENSE = [-1, math.nan, math.inf, 1e300, 10**5000, "5", None, True, [1], object(), timedelta(seconds=-1)]


@pytest.mark.parametrize("answer", NONSENSE, ids=[type(answer).__name__ + str(n) for n, answer in enumerate(NONSENSE)])
def test_an_answer_that_is_no_duration_is_replaced_by_the_default_and_told(answer: object) -> None:
    told: list[str] = []

    delay = next_delay(lambda count, error: answer, 3, RuntimeError(), on_problem=told.append, rng=Top())  # type: ignore[arg-type,return-value]

    assert delay == Backoff().delay(3, Top())
    assert len(told) == 1
    assert "InvalidOption" in told[0]
    assert "\n" not in told[0]


@pytest.mark.parametrize("error", [ValueError("line one\nline two"), Unshowable()])
def test_a_callable_that_raises_is_replaced_by_the_default_and_told(error: Exception) -> None:
    told: list[str] = []

    delay = next_delay(raising, 2, error, on_problem=told.append, rng=Bottom())

    assert delay == Backoff().delay(2, Bottom())
    assert len(told) == 1
    assert "raising" in told[0]
    assert "\n" not in told[0]


@pytest.mark.parametrize("policy", [None, 5, "Backoff()"])
def test_a_policy_that_cannot_be_called_loses_no_task_either(policy: BackoffPolicy) -> None:
    assert 1.8 <= next_delay(policy, 1, RuntimeError()) <= 2.2


@pytest.mark.parametrize(("value", "wanted"), [(0, 0.0), (1.5, 1.5), (3, 3.0), (timedelta(milliseconds=250), 0.25)])
def test_a_duration_becomes_seconds(value: object, wanted: float) -> None:
    result = seconds(value, option="keepalive")

    assert result == wanted
    assert type(result) is float


@pytest.mark.parametrize(
    "value", [True, math.nan, math.inf, -math.inf, -0.001, "5", None, 10**30, timedelta(-1), timedelta.max]
)
def test_what_is_no_duration_is_refused_with_option_value_and_advice(value: object) -> None:
    with pytest.raises(InvalidOption) as refusal:
        seconds(value, option="keepalive")

    message = str(refusal.value)
    assert message.startswith(f"keepalive is {value!r}; give a timedelta or seconds, from 0 to ")


@pytest.mark.parametrize("value", ["x" * 10_000, 10**400, 10**5000, "line\nline", Unshowable()], ids=range(5))
def test_a_hostile_value_is_refused_on_one_short_line(value: object) -> None:
    with pytest.raises(InvalidOption) as refusal:
        seconds(value, option="keepalive")

    assert len(str(refusal.value)) < 300
    assert "\n" not in str(refusal.value)


def test_of_a_delay_that_may_be_negative_the_longest_alone_is_named() -> None:
    """"give … seconds, from -inf to 3155760000" was the answer to in_="5m"."""
    with pytest.raises(InvalidOption, match=r"^in_ is '5m'; give a timedelta or seconds, at most 3155760000, a cent"):
        seconds("5m", option="in_", minimum=-math.inf)


def test_a_duration_below_the_minimum_is_refused() -> None:
    assert seconds(0.001, option="keepalive", minimum=0.001) == 0.001
    with pytest.raises(InvalidOption, match=r"from 0\.001 to"):
        seconds(0, option="keepalive", minimum=0.001)


@pytest.mark.parametrize(
    ("attempts", "max_attempts", "spent"),
    [
        (0, 1, False),
        (1, 1, True),
        (4, 5, False),
        (5, 5, True),
        (6, 5, True),
        (10**9, 0, False),
        (0, 0, False),
    ],
)
def test_attempts_are_spent_at_their_maximum_and_never_without_one(
    attempts: int, max_attempts: int, spent: bool
) -> None:
    """I-6: attempts ≤ max_attempts; 0 is no limit."""
    assert is_spent(attempts, max_attempts) is spent


@pytest.mark.parametrize(
    ("policy", "error", "retried"),
    [
        (None, ValueError(), True),
        (OSError, ConnectionError(), True),
        (OSError, ValueError(), False),
        ((OSError, KeyError), KeyError(), True),
        ((OSError, KeyError), ValueError(), False),
        (OSError, AttemptTimeout(), True),
        ((OSError,), AttemptCrashed(), True),
        (lambda error, attempt: attempt < 3 and "busy" in str(error), ValueError("busy"), True),
        (lambda error, attempt: attempt < 2, ValueError("busy"), False),
        ((OSError,), AttemptCancelled(), True),
        (lambda error, attempt: False, AttemptTimeout(), False),
        (OSError, ExceptionGroup("of a TaskGroup", [ConnectionError(), ExceptionGroup("", [TimeoutError()])]), True),
        (OSError, ExceptionGroup("of a TaskGroup", [ConnectionError(), ValueError()]), False),
        (ExceptionGroup, ExceptionGroup("of a TaskGroup", [ValueError()]), True),
    ],
)
def test_errors_are_tried_again_as_retry_on_says(policy: object, error: BaseException, retried: bool) -> None:
    assert is_retried(check_retry_on(policy) if policy else None, error, 2) is retried


def test_a_retry_on_that_raises_costs_no_retry() -> None:
    told: list[str] = []
    assert is_retried(lambda _error, _attempt: 1 / 0 > 0, ValueError(), 1, on_problem=told.append)
    assert "division by zero" in told[0]


@pytest.mark.parametrize("policy", [3, "ValueError", (), (ValueError, 3), int])
def test_what_can_judge_no_error_is_refused(policy: object) -> None:
    with pytest.raises(InvalidOption, match="retry_on="):
        check_retry_on(policy)
