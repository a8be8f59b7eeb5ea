"""Instants on the command line."""

from datetime import UTC, datetime, timedelta

import click

from jobrunner.cli.options import duration
from jobrunner.clock import utc_now


def instant(text: str) -> datetime:
    """The aware instant of `2026-11-20T20:00+01:00`, of the same without a zone (UTC), or of `2h`: so long ago.

    Raises click.BadParameter.
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return _ago(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _ago(text: str) -> datetime:
    try:
        return utc_now() - timedelta(seconds=duration(text))
    except (click.BadParameter, OverflowError) as error:
        hint = "write 2026-11-20T20:00 (UTC), or 2h for 2 hours ago"
        raise click.BadParameter(f"{text!r} is no instant; {hint}") from error
