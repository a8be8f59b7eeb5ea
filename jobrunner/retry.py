"""The back-off: the delay of a failed task before its next attempt, and when the task is dead instead.

Pure policy: this module reads no clock and no server. Invariant: a delay is a finite number of seconds, at least 0,
whatever a user's callable does; below the cap every further failure waits longer. Geometric growth is that of TCP's
retransmission timer (RFC 6298, 5.5); the jitter is that of Brooker, "Exponential Backoff And Jitter" (AWS Architecture
Blog, 2015), but proportional and small, so that it does not change the order of the delays.
"""

import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeGuard

from jobrunner.errors import AttemptCancelled, AttemptCrashed, AttemptTimeout, InvalidOption, MiddlewareError
from jobrunner.formatting import describe
from jobrunner.option_names import checks_options

_CENTURY_S = 36_525 * 86_400
LONGEST_LEASE_S = 365 * 86_400
"""The longest keepalive; a longer stored keepalive counts as damaged; see attempt.py and lua/lib/numbers.lua."""


@checks_options
@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """Waits `base` seconds after the first failure and `factor` times longer after each further one.

    `base` and `cap`, the longest wait, are given as seconds or timedelta and read back as seconds. `jitter`
    spreads each delay by that share to both sides, so that tasks which failed together do not come back
    together. Delays grow strictly up to the cap if `factor × (1 - jitter) > 1 + jitter`. Raises InvalidOption
    for a value outside its range.
    """

    base: float
    factor: float
    cap: float
    jitter: float

    def __init__(
        self,
        base: float | timedelta = 2,
        factor: float = 2,
        cap: float | timedelta = 3600,
        jitter: float = 0.1,
    ) -> None:
        base_s = seconds(base, option="backoff base")
        cap_s = seconds(cap, option="backoff cap")
        if cap_s < base_s:
            raise InvalidOption(f"backoff cap is {cap_s:g} s, below base {base_s:g} s; give a cap of at least the base")
        if not (_is_number(factor) and 1 <= factor <= sys.float_info.max):
            raise InvalidOption(f"backoff factor is {describe(factor)}; give a finite number of at least 1")
        if not (_is_number(jitter) and 0 <= jitter < 1):
            raise InvalidOption(f"backoff jitter is {describe(jitter)}; give a share from 0 to below 1, such as 0.1")
        object.__setattr__(self, "base", base_s)
        object.__setattr__(self, "factor", float(factor))
        object.__setattr__(self, "cap", cap_s)
        object.__setattr__(self, "jitter", float(jitter))

    def delay(self, retry_count: int, rng: random.Random | None = None) -> float:
        """Seconds to wait after `retry_count` failures (below 1 is read as 1), at most cap × (1 + jitter)."""
        uniform = random.uniform if rng is None else rng.uniform
        return self._exact(max(retry_count, 1)) * uniform(1 - self.jitter, 1 + self.jitter)

    def _exact(self, retry_count: int) -> float:
        if self.base == 0:
            return 0.0
        try:
            return min(self.cap, self.base * self.factor ** (retry_count - 1))
        except OverflowError:
            return self.cap


BackoffPolicy = Backoff | Callable[[int, BaseException], float | timedelta]


def next_delay(
    policy: BackoffPolicy,
    retry_count: int,
    error: BaseException,
    *,
    on_problem: Callable[[str], object] | None = None,
    rng: random.Random | None = None,
) -> float:
    """Seconds until the next attempt of a task that failed `retry_count` times, the last time with `error`.

    When a callable raises or returns no duration, the task is retried all the same: the default Backoff sets the delay,
    and `on_problem` is called once, with a line that names the fault.
    """
    if isinstance(policy, Backoff):
        return policy.delay(retry_count, rng)
    try:
        return seconds(policy(retry_count, error), option="the answer of the backoff callable")
    except Exception as problem:
        if on_problem is not None:
            on_problem(f"backoff {describe(policy)} is replaced by the default: {describe(problem)}")
        return Backoff().delay(retry_count, rng)


RetryOn = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException, int], bool]
"""The errors that are retried: their classes, or a callable (error, attempt) -> bool."""


NOT_RAISED_BY_JOBS = (AttemptCancelled, AttemptCrashed, MiddlewareError)
"""Errors that end an attempt though its job raised none and kept its timeout: retried, for periodic jobs too."""


def check_retry_on(policy: object) -> RetryOn:
    """Checks and returns a RetryOn. Raises InvalidOption."""
    classes = policy if isinstance(policy, tuple) else (policy,)
    if classes and all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
        return policy  # type: ignore[return-value]
    if callable(policy) and not isinstance(policy, type):
        return policy
    raise InvalidOption(
        f"retry_on={describe(policy)}: give an error class, a tuple of some, or a callable (error, attempt) -> bool"
    )


def errors_of(error: BaseException) -> list[BaseException]:
    """The errors of an exception group, and of groups in it; of another error itself."""
    if type(error) not in (ExceptionGroup, BaseExceptionGroup):  # a subclass has a meaning of its own
        return [error]
    return [one for part in error.exceptions for one in errors_of(part)]  # type: ignore[attr-defined]


def is_retried(
    policy: RetryOn | None, error: BaseException, attempt: int, *, on_problem: Callable[[str], object] | None = None
) -> bool:
    """Whether the error of an attempt (1 is the first) is retried.

    Classes concern errors that the job raises: a timeout, a crash or a cancelled coroutine is always retried, and an
    exception group when all of its errors are. A callable decides about these too; when it raises, the task is retried.
    """
    if policy is None:
        return True
    if isinstance(policy, (type, tuple)):
        kinds = (policy, AttemptTimeout, *NOT_RAISED_BY_JOBS)  # a tuple in a tuple is fine
        return isinstance(error, kinds) or all(isinstance(one, kinds) for one in errors_of(error))
    try:
        return bool(policy(error, attempt))
    except Exception as problem:
        if on_problem is not None:
            on_problem(f"retry_on {describe(policy)} is ignored: {describe(problem)}")
        return True


def seconds(value: object, *, option: str, minimum: float = 0, maximum: float = _CENTURY_S) -> float:
    """Turns a duration, a timedelta or a number of seconds, into seconds, from `minimum` to `maximum`, a century.

    The upper end keeps every sum with an instant in the range of datetime. Raises InvalidOption, which names `option`,
    for anything else: too short, too long, bool, NaN, infinity, text.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if _is_number(number) and minimum <= number <= maximum:
        return float(max(number, -_CENTURY_S))
    span = f"from {minimum:g} to {maximum:.0f}" if math.isfinite(minimum) else f"at most {maximum:.0f}, a century"
    raise InvalidOption(f"{option} is {describe(value)}; give a timedelta or seconds, {span}")


_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of_text(text: str) -> float:
    """Parses `90`, `1.5s`, `250ms`, `5m`, `2h` or `1d` of options and files into seconds. Raises InvalidOption."""
    lowered = text.strip().lower()
    unit = next((unit for unit in _UNITS_S if lowered.endswith(unit)), "")
    try:
        number = float(lowered.removesuffix(unit)) * _UNITS_S.get(unit, 1.0)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise InvalidOption(f"{describe(text)} is no length of time; write 90, 1.5s, 250ms, 5m, 2h or 1d")
    if not 0 <= number <= _CENTURY_S:
        raise InvalidOption(f"{describe(text)} is out of range: give a length of time from 0 to {_CENTURY_S // 86400}d")
    return number


def positive(value: object, option: str, *, maximum: float = _CENTURY_S) -> float:
    """A duration in seconds. Raises InvalidOption for 0 and less."""
    length_s = seconds(value, option=option, maximum=maximum)
    if length_s <= 0:
        raise InvalidOption(f"{option}={describe(value)}: give more than 0")
    return length_s


def milliseconds(value: timedelta | float | None, option: str) -> int | None:
    """A duration in whole milliseconds, at least 1; None for None. Raises InvalidOption for 0 or less."""
    return None if value is None else whole_ms(positive(value, option))


def lease_s(keepalive: object) -> float:
    """The length of a lease in seconds, above 0 and up to a year. Raises InvalidOption."""
    return positive(keepalive, "keepalive", maximum=LONGEST_LEASE_S)


def lease_ms(keepalive: object) -> int | None:
    """The length of a lease in whole milliseconds; None for None. Raises InvalidOption."""
    return None if keepalive is None else whole_ms(lease_s(keepalive))


def whole_ms(length_s: float | None) -> int | None:
    """Checked seconds in whole milliseconds, at least 1; None for None."""
    return None if length_s is None else max(round(length_s * 1000), 1)


def is_spent(attempts: int, max_attempts: int) -> bool:
    """True when no attempt is left after `attempts` of them; `max_attempts` 0 means no limit."""
    return 0 < max_attempts <= attempts


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
