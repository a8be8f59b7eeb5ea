"""`jobrunner dashboard`: serves the dashboard until stopped."""

import json
import socket
import sys
import urllib.request
import webbrowser
from http.client import HTTPException
from importlib import import_module
from typing import Any

import click

from jobrunner.cli.options import LOG_LEVEL, CommonOptions, connected, with_shared_options
from jobrunner.cli.output import Refusal, answer_json, warn
from jobrunner.client.client import Client
from jobrunner.formatting import install_command
from jobrunner.log_output import FORMATS, log_to_stderr

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
@click.option("--host", metavar="ADDRESS", help="Address to listen on; other than 127.0.0.1 requires a login option.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; default: 8787; 0: any free port.")
@click.option("--token", metavar="T", envvar=f"{_ENV}TOKEN", help="One token for everybody; it gives the role admin.")
@click.option(
    "--user-token", multiple=True, metavar="USER:TOKEN[:ROLE]", envvar=f"{_ENV}USER_TOKEN",
    help="Token of one user, named in the audit log. Repeatable.",
)  # fmt: skip
@click.option(
    "--basic", multiple=True, metavar="USER:PASSWORD[:ROLE]", envvar=f"{_ENV}BASIC",
    help="User and password; the role is viewer (default), operator or admin. Repeatable.",
)  # fmt: skip
@click.option("--proxy-header", metavar="NAME", help="Header in which a reverse proxy names the user.")
@click.option("--trusted-proxy", multiple=True, metavar="IP",
              help="Address or network of a proxy whose headers are trusted. Repeatable.")  # fmt: skip
@click.option("--role-of", multiple=True, metavar="USER=ROLE", help="Role of a user that the proxy names. Repeatable.")
@click.option("--no-login", is_flag=True, help="No login: every user of this machine is an admin. Loopback only.")
@click.option("--secret", metavar="S", envvar=f"{_ENV}SECRET",
              help="Key that signs forms; give several dashboards the same.")  # fmt: skip
@click.option("--prefix-path", metavar="/PATH", help="Path prefix of all URLs, behind a proxy.")
@click.option("--redact", multiple=True, metavar="NAME", help="Name of a parameter to hide on all pages. Repeatable.")
@click.option("--read-only", is_flag=True, help="Disables all actions, for every role.")
@click.option("--open", "open_it", is_flag=True, help="Opens the dashboard in a browser.")
@click.option("--link", is_flag=True, help="Prints another login link of the dashboard on --port, and exits.")
@click.option("--hash", "hash_it", is_flag=True,
              help="Reads a password or token, prints its hash, and exits.")  # fmt: skip
@click.option("--log-format", type=click.Choice(FORMATS), default="json", show_default=True,
              help="Format of log lines on stderr.")  # fmt: skip
@LOG_LEVEL
@with_shared_options
def dashboard(
    shared: CommonOptions, open_it: bool, link: bool, hash_it: bool, log_format: str, log_level: str, **options: Any
) -> None:
    """Serve the web dashboard.

    Shows queues, tasks, workers, and acts on them. Ctrl-C stops it. Without a login option it prints a link that
    logs in one browser. Logins and actions are logged to stderr. Options default to [tool.jobrunner.dashboard] of
    pyproject.toml. Put secrets into the environment rather than on the command line: JOBRUNNER_DASHBOARD_TOKEN,
    _USER_TOKEN, _BASIC and _SECRET.
    """
    if hash_it:
        click.echo(_module("jobrunner.web.credentials").hashed(_secret_read()))
        return
    if link:
        _print_link(shared, options["port"] or _module("jobrunner.web.settings").configured_port() or _PORT)
        return
    settings = _module("jobrunner.web.settings").settle(options)
    serving = _module("jobrunner.web.serving")
    auth = _module("jobrunner.web.auth")
    listener = _listening(settings.host, settings.port)
    log_to_stderr(log_format, log_level)
    if isinstance(settings.auth, auth.Loopback):
        warn("--no-login: every user of this machine, and whoever a proxy on it lets through, is an admin")
    with connected(shared, starts=True) as client:
        url = serving.url_of(listener, settings.prefix_path)
        if isinstance(settings.auth, _module("jobrunner.web.login").LoginLinks):
            _serve_with_links(shared, serving, client, settings, listener, url, open_it)
            return
        answer_json({"url": url}) if shared.as_json else click.echo(f"dashboard at {url} (Ctrl-C stops it)")
        if open_it:
            webbrowser.open(url)
        serving.serve(client, settings, listener, stops_in_s=_STOPS_IN_S)


def _serve_with_links(
    shared: CommonOptions, serving: Any, client: Client, settings: Any, listener: socket.socket, url: str, open_it: bool
) -> None:
    link = f"{url}login?token={settings.auth.new_token()}"
    port = listener.getsockname()[1]
    left = _module("jobrunner.web.login").left_for_owner(port, url, settings.auth.owner, link)
    with left as page:
        # The link goes to stdout, as stderr is the log, and logs are kept and read by other people.
        if shared.as_json:
            answer_json({"url": url, "login_url": link})
        else:
            click.echo(f"dashboard at {link}")
            click.echo("(the link lets in one browser; jobrunner dashboard --link prints another; Ctrl-C stops it)")
        if open_it and page is not None:
            webbrowser.open(page.as_uri())
        elif open_it:
            warn("there is no private folder to open it from, as ps would show the link; open it yourself")
        serving.serve(client, settings, listener, stops_in_s=_STOPS_IN_S)


def _print_link(shared: CommonOptions, port: int) -> None:
    found = _module("jobrunner.web.login").running_on(port)
    request = urllib.request.Request(  # noqa: S310 - the address is what our own dashboard wrote
        f"{found.url}login/links", method="POST", headers={"authorization": f"Bearer {found.owner}"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # http_proxy would get the owner's secret
    try:
        with direct.open(request, timeout=_ASKS_S) as answer:
            token = json.load(answer)["token"]
    # The last three errors: after a kill -9 of the dashboard its file remains, and another program may have its port.
    except (OSError, ValueError, HTTPException, KeyError, TypeError) as error:
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
        raise Refusal(f"the dashboard needs {error.name}: {install_command('web')}") from error


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise Refusal(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from error
