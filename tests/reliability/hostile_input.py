"""Hostile and mistyped input, from a seeded generator, so that a run can be repeated."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

T = TypeVar("T")

TEXTS = (
    "", " ", "{", "}", "{}", "{a}", "a{b}c", ":", "::", "a:b", "/", "//", "a/b", "a/b/c", "/a", "a/", "..",
    "../../etc/passwd",
    "\0", "a\0b", "\r\n", "a\r\nSET x y\r\n", "*1\r\n$8\r\nFLUSHALL\r\n", "\t", "\x1b[2J", "\x7f", "task", "task:1",
    "queues",
    "format", "waiting", "bucket:x", "x" * 128, "x" * 129, "x" * 10_000, "ü", "日本語", "\u202egnp", "\ufeff", "\ud800",
    "\udc80",
    "e\u0301" * 40, "😀", "%00", "%0d%0aSet-Cookie:%20a=b", "-", "--", "--json", "-1", "0", "1", "nan", "inf", "1e9",
    "1e300",
    "None", "null", "true", "[]", '{"a": 1}', "[" * 5_000, "'", '"', "`id`", "$(id)", "; FLUSHALL", "' OR 1=1 --",
    "*", "?",
    "[a-z]", "\\", "%s%s%n", "${jndi:x}", "{{7*7}}", "<script>alert(1)</script>", "a" * 28 + "-x",
    "0" * 28 + "-mail", "9" * 400,
    "9" * 5_000, "-0", "+1", "0x10", "１２", "٣", "1_000", "1970-01-01", "2030-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    float("nan"), float("inf"), float("-inf"), 1e300, -1e300, 1.7e308, 5e-324, -0.0, 0, -1, 1, 0.1, 1e-9, 2**31,
    2**53 + 1,
    2**63, 2**64, -(2**63), 10**9, 10**30, 10**400, -(10**400), 10**5_000, 36_525 * 86_400, True, False,
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, b"", b"\xff", (), [], {}, set(), object(), Decimal("NaN"), Decimal(1), Fraction(1, 3), 1j, timedelta.max,
    timedelta.min, timedelta(0), timedelta(microseconds=1), datetime.max, datetime.max.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), range(10**9), ["a", None], {"a": object()},
    str, len,
)  # fmt: skip
FINE: tuple[Any, ...] = ("mail", "a-b", "shop/raw", "dead", "waiting", 5, 2.5, timedelta(seconds=3), 0, 1, 2)
_CRON_PARTS = (
    "*", "*/5", "0", "59", "60", "61", "-1", "0-59", "59-0", "0-4000000000", "4000000000", "*/0", "*/4000000000",
    "1,2,3",
    ",", "1,,2", "l", "L", "w", "15w", "?", "#", "1#1", "5#6", "mon", "jan", "mon-sun", "r", "h", "h(0-59)",
    "r(1-9)/2", "31",
    "30", "2", "29", "@daily", "1-", "-", "/", "*/", "0/7", "١", "1.5", "1e3", "*" * 40, "1," * 60, "0" * 80, "\n",
    "\0",
)  # fmt: skip
_ZONES = ("UTC", "Europe/Madrid", "America/New_York", "Pacific/Apia", "localtime", "../../etc/passwd", "utc", "EST5EDT")


class Nasty(random.Random):
    """Draws inputs."""

    def pick(self, choices: Sequence[T]) -> T:
        """One of them."""
        return choices[self.randrange(len(choices))]

    def text(self) -> str:
        """A text: a known hostile one, two of them joined, or any characters."""
        kind = self.random()
        if kind < 0.5:
            return self.pick(TEXTS)
        if kind < 0.75:
            return self.pick(TEXTS) + self.pick(TEXTS)
        highest = self.pick((0x7F, 0xFF, 0x10FFFF))
        return "".join(chr(self.randint(0, highest)) for _ in range(self.pick((2, 3, 20, 200))))

    def name(self) -> Any:
        """A value for a name: mostly a hostile text, sometimes a valid name."""
        return self.pick((self.text, self.text, self.text, lambda: self.pick(FINE), lambda: self.pick(ODD)))()

    def number(self) -> Any:
        """A value for a number or a duration."""
        return self.pick((lambda: self.pick(NUMBERS), lambda: self.uniform(-1e10, 1e10), lambda: self.pick(FINE)))()

    def anything(self) -> Any:
        """Any value."""
        return self.pick((self.text, self.number, self.number, lambda: self.pick(ODD), lambda: self.pick(FINE)))()

    def refused_duration(self) -> Any:
        """A duration that no test can wait for."""
        return self.pick((float("nan"), float("inf"), 1e300, -1, "1", 10**400, timedelta.max, True, object()))

    def cron(self) -> str:
        """Fields of a schedule, more or less."""
        if self.random() < 0.1:
            return self.text()
        count = self.pick((1, 4, 5, 5, 5, 5, 6, 6, 7))
        return self.pick((" ", " ", " ", "  ", "\t")).join(self.pick(_CRON_PARTS) for _ in range(count))

    def zone(self) -> Any:
        """A time zone, more or less."""
        return self.pick(_ZONES) if self.random() < 0.8 else self.name()

    def some(self, options: Sequence[str], most: int = 3) -> dict[str, Any]:
        """Values for some of the options."""
        return {name: self.anything() for name in self.sample(list(options), self.randint(0, min(most, len(options))))}


def shown(value: Any) -> str:
    """Any value on one line."""
    try:
        text = ascii(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 100 else f"{text[:90]}… ({len(text)})"
