"""`jobrunner dashboard`: serves the dashboard until stopped."""

import socket
import webbrowser
from importlib import import_module
from typing import Any

import click

from jobrunner.cli.answer import answer_json, talk
from jobrunner.cli.boundary import Refusal
from jobrunner.cli.options import Shared, with_shared_options
from jobrunner.client.client import Client

_EXAMPLES = """\b
Examples:
  jobrunner dashboard --open
  jobrunner dashboard --host 0.0.0.0 --basic ann:her-password:operator
  JOBRUNNER_DASHBOARD_TOKEN=… jobrunner dashboard --host 0.0.0.0
  jobrunner dashboard --proxy-header X-Forwarded-User --trusted-proxy 10.0.0.7 --role-of ann=admin
"""
_LOCAL = ("127.0.0.1", "::1", "localhost")
_STOPS_IN_S = 2
_ENV = "JOBRUNNER_DASHBOARD_"


@click.command(epilog=_EXAMPLES)
@click.option("--host", metavar="ADDRESS", help="Where it listens; another address than 127.0.0.1 needs a login.")
@click.option("--port", type=click.IntRange(0, 65535), help="8787 when not given; 0 for any that is free.")
@click.option("--token", metavar="T", envvar=f"{_ENV}TOKEN", help="One secret for everybody, who are admins with it.")
@click.option(
    "--basic", multiple=True, metavar="USER:PASSWORD[:ROLE]", envvar=f"{_ENV}BASIC",
    help="A user: viewer (when no role is named), operator or admin. Repeatable.",
)  # fmt: skip
@click.option("--proxy-header", metavar="NAME", help="The header in which a proxy in front says who asks.")
@click.option("--trusted-proxy", multiple=True, metavar="IP", help="Whose headers are believed. Repeatable.")
@click.option("--role-of", multiple=True, metavar="USER=ROLE", help="Of a user whom the proxy names. Repeatable.")
@click.option("--prefix-path", metavar="/PATH", help="What all URLs begin with, behind a proxy.")
@click.option("--redact", multiple=True, metavar="NAME", help="Parameters that no page shows. Repeatable.")
@click.option("--read-only", is_flag=True, help="Has no actions, whoever asks.")
@click.option("--open", "open_it", is_flag=True, help="Opens it in the browser.")
@with_shared_options
def dashboard(shared: Shared, open_it: bool, **options: Any) -> None:
    """Serves the dashboard: queues, tasks, workers, and what to do about them. Ctrl-C stops it.

    Options not given are taken from [tool.jobrunner.dashboard] of pyproject.toml. Secrets are better put into the
    environment than on the command line: JOBRUNNER_DASHBOARD_TOKEN, JOBRUNNER_DASHBOARD_BASIC.
    """
    settings = _module("jobrunner.web.settings").settle(options)
    serving = _module("jobrunner.web.serving")
    if settings.auth is None and settings.host not in _LOCAL:
        raise click.UsageError(
            f"--host {settings.host} is open to others: say who may come in, with --token, --basic or --proxy-header"
        )
    listener = _listening(settings.host, settings.port)
    with Client(shared.url, shared.prefix) as client:
        url = serving.url_of(listener, settings.prefix_path)
        answer_json({"url": url}) if shared.as_json else talk(f"dashboard at {url} (Ctrl-C stops it)")
        if open_it:
            webbrowser.open(url)
        serving.serve(client, settings, listener, stops_in_s=_STOPS_IN_S)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise Refusal(f'the dashboard needs {error.name}: pip install "jobrunner[web]"') from error


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise Refusal(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from error
