"""`jobrunner dashboard`: serves the dashboard until stopped."""

import json
import socket
import sys
import urllib.request
import webbrowser
from importlib import import_module
from typing import Any
from urllib.error import URLError

import click

from jobrunner.cli.error_boundary import Refusal
from jobrunner.cli.options import CommonOptions, with_shared_options
from jobrunner.cli.output import answer_json, talk
from jobrunner.client.client import Client
from jobrunner.log_setup import FORMATS, log_to_stderr

_EXAMPLES = """\b
Examples:
  jobrunner dashboard --open
  jobrunner dashboard --link
  jobrunner dashboard --host 0.0.0.0 --basic ann:her-password:operator
  JOBRUNNER_DASHBOARD_TOKEN=… jobrunner dashboard --host 0.0.0.0
  jobrunner dashboard --proxy-header X-Forwarded-User --trusted-proxy 10.0.0.7 --role-of ann=admin
"""
_STOPS_IN_S = 2
_ASKS_S = 10
_PORT = 8787
_ENV = "JOBRUNNER_DASHBOARD_"


@click.command(epilog=_EXAMPLES)
@click.option("--host", metavar="ADDRESS", help="Where it listens; another address than 127.0.0.1 needs a login.")
@click.option("--port", type=click.IntRange(0, 65535), help="8787 when not given; 0 for any that is free.")
@click.option("--token", metavar="T", envvar=f"{_ENV}TOKEN", help="One secret for everybody, who are admins with it.")
@click.option(
    "--user-token", multiple=True, metavar="USER:TOKEN[:ROLE]", envvar=f"{_ENV}USER_TOKEN",
    help="A token with a name, so that the audit log has names. Repeatable.",
)  # fmt: skip
@click.option(
    "--basic", multiple=True, metavar="USER:PASSWORD[:ROLE]", envvar=f"{_ENV}BASIC",
    help="A user: viewer (when no role is named), operator or admin. Repeatable.",
)  # fmt: skip
@click.option("--proxy-header", metavar="NAME", help="The header in which a proxy in front says who asks.")
@click.option("--trusted-proxy", multiple=True, metavar="IP", help="Whose headers are believed. Repeatable.")
@click.option("--role-of", multiple=True, metavar="USER=ROLE", help="Of a user whom the proxy names. Repeatable.")
@click.option("--no-login", is_flag=True, help="No login: every user of this machine is an admin. Loopback only.")
@click.option("--secret", metavar="S", envvar=f"{_ENV}SECRET", help="Signs forms; the same for several dashboards.")
@click.option("--prefix-path", metavar="/PATH", help="What all URLs begin with, behind a proxy.")
@click.option("--redact", multiple=True, metavar="NAME", help="Parameters that no page shows. Repeatable.")
@click.option("--read-only", is_flag=True, help="Has no actions, whoever asks.")
@click.option("--open", "open_it", is_flag=True, help="Opens it in the browser.")
@click.option("--link", is_flag=True, help="Prints one more login link of the dashboard that runs on --port, and ends.")
@click.option("--hash", "hash_it", is_flag=True, help="Reads a password or token, prints its hash, and ends.")
@click.option("--log-format", type=click.Choice(FORMATS), default="json", show_default=True, help="Of logs on stderr.")
@with_shared_options
def dashboard(shared: CommonOptions, open_it: bool, link: bool, hash_it: bool, log_format: str, **options: Any) -> None:
    """Serves the dashboard: queues, tasks, workers, and what to do about them. Ctrl-C stops it.

    It prints a link that lets in one browser, unless a login is chosen. What people do in it is logged to stderr.
    Options not given are taken from [tool.jobrunner.dashboard] of pyproject.toml. Secrets are better put into the
    environment than on the command line: JOBRUNNER_DASHBOARD_TOKEN, _USER_TOKEN, _BASIC and _SECRET.
    """
    if hash_it:
        click.echo(_module("jobrunner.web.password_hash").hashed(_secret_read()))
        return
    if link:
        _print_link(shared, options["port"] or _module("jobrunner.web.settings").configured_port() or _PORT)
        return
    settings = _module("jobrunner.web.settings").settle(options)
    serving = _module("jobrunner.web.serving")
    auth = _module("jobrunner.web.auth")
    if isinstance(settings.auth, auth.Loopback):
        talk("Warning: --no-login: every user of this machine, and whoever a proxy on it lets through, is an admin")
    listener = _listening(settings.host, settings.port)
    log_to_stderr(log_format)
    with Client(shared.url, shared.prefix) as client:
        url = serving.url_of(listener, settings.prefix_path)
        if isinstance(settings.auth, auth.LoginLinks):
            _serve_with_links(shared, serving, client, settings, listener, url, open_it)
            return
        answer_json({"url": url}) if shared.as_json else talk(f"dashboard at {url} (Ctrl-C stops it)")
        if open_it:
            webbrowser.open(url)
        serving.serve(client, settings, listener, stops_in_s=_STOPS_IN_S)


def _serve_with_links(
    shared: CommonOptions, serving: Any, client: Client, settings: Any, listener: socket.socket, url: str, open_it: bool
) -> None:
    link = f"{url}login?token={settings.auth.new_token()}"
    port = listener.getsockname()[1]
    left = _module("jobrunner.web.runtime_file").left_for_owner(port, url, settings.auth.owner, link)
    with left as page:
        # On stdout, as an answer: stderr is the log, and logs are kept and read by others.
        if shared.as_json:
            answer_json({"url": url, "login_url": link})
        else:
            click.echo(f"dashboard at {link}")
            click.echo("(the link lets in one browser; jobrunner dashboard --link prints another; Ctrl-C stops it)")
        if open_it and page is not None:
            webbrowser.open(page.as_uri())
        elif open_it:
            talk("Warning: there is no private folder to open it from, as ps would show the link; open it yourself")
        serving.serve(client, settings, listener, stops_in_s=_STOPS_IN_S)


def _print_link(shared: CommonOptions, port: int) -> None:
    found = _module("jobrunner.web.runtime_file").running_on(port)
    request = urllib.request.Request(  # noqa: S310 - the address is what our own dashboard wrote
        f"{found.url}login/links", method="POST", headers={"authorization": f"Bearer {found.owner}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_ASKS_S) as answer:  # noqa: S310
            token = json.load(answer)["token"]
    except (URLError, OSError, ValueError) as error:
        raise Refusal(f"the dashboard at {found.url} gives no link ({error}); start it again") from error
    link = f"{found.url}login?token={token}"
    answer_json({"url": found.url, "login_url": link}) if shared.as_json else click.echo(link)


def _secret_read() -> str:
    if sys.stdin.isatty():
        given: str = click.prompt("Password or token", hide_input=True, confirmation_prompt=True, err=True)
    else:
        given = sys.stdin.readline().rstrip("\r\n")
    if not given:
        raise click.UsageError("--hash reads the password from stdin, and got nothing")
    return given


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
