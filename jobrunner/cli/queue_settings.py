"""Settings of a queue in words: as they are given on the command line, and as they are shown there."""

import re
from dataclasses import fields
from typing import Any

import click

from jobrunner.formatting import exact_duration
from jobrunner.queue_settings import QueueSettings, RateLimit
from jobrunner.retry import Backoff

LIMITS = ("max_inflight", "rate", "max_size", "max_inflight_per_partition", "rate_per_partition", "fair")
"""The settings that `queues limit` sets."""
LIFTED = "none"
"""The argument that removes a limit."""
_UNITS = {"s": "SECONDS", "m": "MINUTES", "h": "HOURS"}
_RATE = re.compile(r"([0-9]{1,15})/([0-9]{0,9})([smh])")


def rate(text: str) -> RateLimit | str:
    """The limit of `1000/1s`, `2000/1m` or `15/h`, or LIFTED. Raises click.BadParameter."""
    lowered = text.strip().lower()
    if lowered == LIFTED:
        return LIFTED
    found = _RATE.fullmatch(lowered)
    tokens, interval = (int(found[1]), int(found[2] or 1)) if found else (0, 0)
    if found is None or not tokens or not interval:
        raise click.BadParameter(
            f"{text!r} is no rate; write tasks/interval, such as 1000/1s, 2000/1m or 15/h (whole numbers from 1; s, m, "
            f"h), or {LIFTED} to lift it"
        )
    return RateLimit(max_tokens=tokens, interval=interval, interval_unit=_UNITS[found[3]])


def at_most(text: str) -> int | str:
    """A number from 1, or LIFTED, also for 0. Raises click.BadParameter."""
    lowered = text.strip().lower()
    if not re.fullmatch(rf"[0-9]{{1,15}}|{LIFTED}", lowered):
        raise click.BadParameter(f"{text!r} is no limit; write a whole number from 1, or {LIFTED} to lift it")
    return LIFTED if lowered == LIFTED else int(lowered) or LIFTED


def limits_in_force(settings: QueueSettings) -> dict[str, Any]:
    """The settings of `queues limit`, by name; 0 or None for no limit."""
    return {name: getattr(settings, name) for name in LIMITS}


def by_name(settings: QueueSettings) -> dict[str, Any]:
    """Every setting in force, by name."""
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def configured(settings: QueueSettings) -> list[str]:
    """Names of the settings that differ from their defaults."""
    defaults = by_name(QueueSettings())
    return [name for name, value in by_name(settings).items() if value != defaults[name]]


def setting_text(value: Any) -> str:
    """A setting as a person reads it: durations with their unit, a rate as it is given; 0 limits nothing."""
    if isinstance(value, RateLimit):
        return f"{value.max_tokens}/{value.interval}{value.interval_unit[0].lower()}"
    if isinstance(value, Backoff):
        first, cap = exact_duration(value.base), exact_duration(value.cap)
        return f"{first}, each {value.factor:g} times longer, at most {cap}, jitter {value.jitter:.0%}"
    if isinstance(value, float):
        return exact_duration(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "no limit" if value == 0 else str(value or "none")
