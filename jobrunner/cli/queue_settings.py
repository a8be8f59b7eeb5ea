"""`jobrunner queues limit`, `settings` and `reset`: settings of a queue, parsed from and formatted as text."""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click

from jobrunner.cli.events import note, operator_name
from jobrunner.cli.options import CommonOptions, connected, seconds_of, with_shared_options, with_wide
from jobrunner.cli.output import Refusal, answer_json, echo, facts, table, when
from jobrunner.cli.suggestions import check_queue, queue_names, with_create
from jobrunner.client.queue import Queue, configure_as
from jobrunner.client.settings_hash import SettingOrigin
from jobrunner.errors import InvalidOption
from jobrunner.formatting import exact_duration
from jobrunner.inspector.limit_use import LimitUse, limit_uses
from jobrunner.inspector.snapshot import queue_views
from jobrunner.queue_settings import QueueSettings, RateLimit, rate_of_text, short_rate
from jobrunner.retry import Backoff

LIMITS = (
    *("max_inflight", "rate", "max_size", "max_inflight_per_partition", "rate_per_partition", "fair"),
    *("history", "history_max"),
)
"""The settings that `queues limit` sets."""
LIFTED = "none"
"""The argument that removes a limit."""


def rate(text: str) -> RateLimit | str:
    """The limit of `1000/1s`, `2000/1m` or `15/h`, or LIFTED. Raises click.BadParameter."""
    if text.strip().lower() == LIFTED:
        return LIFTED
    try:
        return rate_of_text(text)
    except InvalidOption as error:
        raise click.BadParameter(f"{error}, or {LIFTED} to lift it") from error


def at_most(text: str) -> int | str:
    """A number from 1, or LIFTED, also for 0. Raises click.BadParameter."""
    lowered = text.strip().lower()
    if not re.fullmatch(rf"[0-9]{{1,15}}|{LIFTED}", lowered):
        raise click.BadParameter(f"{text!r} is no limit; write a whole number from 1, or {LIFTED} to lift it")
    return LIFTED if lowered == LIFTED else int(lowered) or LIFTED


def kept_for(text: str) -> float | str:
    """The seconds of a duration such as `7d`, or LIFTED, also for 0. Raises click.BadParameter."""
    return LIFTED if text.strip().lower() == LIFTED else seconds_of(text) or LIFTED


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
    """A setting as text: durations with their unit, a rate in the form of the option; 0 means no limit."""
    if isinstance(value, RateLimit):
        return short_rate(value)
    if isinstance(value, Backoff):
        first, cap = exact_duration(value.base), exact_duration(value.cap)
        return f"{first}, each {value.factor:g} times longer, at most {cap}, jitter {value.jitter:.0%}"
    if isinstance(value, float):
        return exact_duration(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "no limit" if value == 0 else str(value or "none")


@click.command(epilog="Example:  jobrunner queues limit mail --max-inflight 10 --rate 1000/1m")
@click.argument("queue", shell_complete=queue_names)
@click.option("--max-inflight", type=at_most, metavar="N", help="Most pending tasks at a time, over all workers.")
@click.option("--rate", type=rate, metavar="N/TIME",
              help="Most tasks handed out in an interval: 1000/1s, 2000/1m, 15/h.")  # fmt: skip
@click.option("--max-size", type=at_most, metavar="N",
              help="Most waiting and scheduled tasks; an enqueue beyond that raises QueueFull.")  # fmt: skip
@click.option(
    "--max-inflight-per-partition", type=at_most, metavar="N", help="Most pending tasks at a time of one partition."
)
@click.option(
    "--rate-per-partition", type=rate, metavar="N/TIME", help="Most tasks of one partition handed out in an interval."
)
@click.option("--fair/--no-fair", default=None, help="Whether partitions are served in rotation.")
@click.option("--partitions", type=at_most, metavar="N",
              help="Over how many slots of a cluster the queue, or its whole pipeline, is spread.")  # fmt: skip
@click.option("--history", type=kept_for, metavar="S", help="How long finished tasks are kept: 12h, 7d.")
@click.option("--history-max", type=at_most, metavar="N", help="Most finished tasks that are kept.")
@with_create
@with_shared_options
def limit(shared: CommonOptions, queue: str, create: bool, **given: Any) -> None:
    """Set limits and history of QUEUE and print those in force.

    `none` removes a limit; what is not named stays. A declared setting is kept as set here until it is declared anew;
    `jobrunner queues reset` brings the declared value back."""
    changes = {name: None if value == LIFTED else value for name, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("which limit? give --max-inflight N, --rate N/TIME, --history TIME, or one of --help")
    with connected(shared, starts=True) as client:
        check_queue(client, queue, create=create)
        asked = client.queue(queue)
        configure_as(asked, operator_name(), changes)
        note(client, "queue.limit", queue, "set " + ", ".join(f"{name}={value}" for name, value in changes.items()))
        limits = limits_in_force(asked.settings())
        limits |= {"partitions": asked.settings().partitions} if "partitions" in changes else {}
    if shared.as_json:
        answer_json({"queue": queue, **limits})
    else:
        named = [
            (name.replace("_", "-"), setting_text(value if isinstance(value, bool) else value or None))
            for name, value in limits.items()
        ]
        echo(facts([("queue", queue), *named]))


@click.command(epilog="Example:  jobrunner queues settings mail --json")
@click.argument("queue", shell_complete=queue_names)
@with_wide
@with_shared_options
def settings(shared: CommonOptions, queue: str, wide: bool) -> None:
    """Show the settings of QUEUE, their origin and use."""
    with connected(shared) as client:
        check_queue(client, queue)
        found, origins = client.queue(queue).settings(), client.queue(queue).origins()
        (view,) = queue_views(client, [], [queue])
        used = {one.name: one for one in limit_uses(client, view)}
    changed = configured(found)
    if shared.as_json:
        uses = {name: one.used for name, one in used.items()}
        shown = {"settings": by_name(found), "configured": changed, "origins": origins, "used": uses}
        answer_json({"queue": queue, **shown})
    else:
        rows = [
            (name, setting_text(value), _used(used.get(name)),
             _source(origins.get(name), is_default=name not in changed))
            for name, value in by_name(found).items()
        ]  # fmt: skip
        echo(table(("SETTING", "VALUE", "USED", "FROM"), rows, tail=True, wide=wide))


def _used(use: LimitUse | None) -> str:
    return "" if use is None else f"{use.used:,} of {use.most:,}"


def _source(origin: SettingOrigin | None, *, is_default: bool) -> str:
    if origin is None:
        return "default" if is_default else "configured"
    who = f"changed by {origin.changed_by} {when(origin.changed_at)}" if origin.changed_by else ""
    if not origin.is_declared:
        return who
    declared = setting_text(origin.declared)
    return f"{who}; declared {declared} by {origin.place}" if who else f"declared by {origin.place}"


@click.command(epilog="Example:  jobrunner queues reset mail --setting rate")
@click.argument("queue", shell_complete=queue_names)
@click.option("--setting", "names", multiple=True, type=click.Choice(QueueSettings.__slots__), metavar="NAME",
              help="Only this setting. Repeatable.")  # fmt: skip
@with_shared_options
def reset(shared: CommonOptions, queue: str, names: tuple[str, ...]) -> None:
    """Bring back the declared settings of QUEUE.

    Undoes what was changed by hand (`queues limit`, the dashboard, configure); settings that no program declares
    stay."""
    with connected(shared, starts=True) as client:
        check_queue(client, queue)
        asked = client.queue(queue)
        origins = asked.origins()
        for name in names:
            if name not in origins or not origins[name].is_declared:
                raise Refusal(f"no program declares {name} of queue {queue}; set it with jobrunner queues limit")
        back = {name: one.declared for name, one in origins.items()
                if one.is_overridden and (not names or name in names)}  # fmt: skip
        if not back:
            raise Refusal(f"no declared setting of queue {queue} was changed by hand{_undeclared(asked, origins)}")
        configure_as(asked, operator_name(), back)
        note(client, "queue.reset", queue, "set back " + ", ".join(back))
    if shared.as_json:
        answer_json({"queue": queue, "reset": back})
    else:
        named = [(name.replace("_", "-"), setting_text(value)) for name, value in back.items()]
        echo(facts([("queue", queue), *named]))


def _undeclared(queue: Queue, origins: Mapping[str, SettingOrigin]) -> str:
    """Names the settings that were changed by hand and have no declared value to return to; empty without any."""
    current, plain = queue.settings(), QueueSettings()
    names = [name for name, one in origins.items()
             if one.changed_by and not one.is_declared and getattr(current, name) != getattr(plain, name)]  # fmt: skip
    if not names:
        return ""
    return f"; no program declares {', '.join(names)}: jobrunner queues limit {queue.name} changes or lifts it"
