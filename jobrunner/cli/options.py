"""Parts that commands share: common options, option types, the client, confirmation, and the port of metrics."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobrunner.broker.connect import FOLDER
from jobrunner.cli.output import Refusal, talk
from jobrunner.client.client import Client, endpoint_of
from jobrunner.client.current import configured_client
from jobrunner.errors import InvalidOption, ServerUnavailable
from jobrunner.formatting import describe, install_command
from jobrunner.logs import LEVELS
from jobrunner.redaction import Redaction
from jobrunner.retry import seconds_of_text
from jobrunner.settings import ClientSettings, file_settings, hidden_names

if TYPE_CHECKING:
    from jobrunner.metrics.endpoint import MetricsEndpoint

LOG_LEVEL = click.option(
    "--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", envvar="JOBRUNNER_LOG_LEVEL",
    show_default=True, help="Least level of log lines; also JOBRUNNER_LOG_LEVEL.",
)  # fmt: skip
_RETRY_TIMEOUT_S = 0.5
_MOST_BYTES = 1 << 50
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?) *((?P<unit>[kmg])i?)?b?")
_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """The options of every command: address of the server, prefix, and output format."""

    url: str | None = field(repr=False)
    prefix: str | None
    as_json: bool
    debug: bool

    def words(self) -> list[str]:
        """These options as arguments of a command line, without the URL: it may have a password, and `ps` shows
        arguments."""
        named = [f"--prefix={self.prefix}"] if self.prefix else []
        return named + ["--json"] * self.as_json + ["--debug"] * self.debug

    def at_address(self, settings: ClientSettings) -> ClientSettings:
        """The same settings with the URL and the prefix of the options, where these are given."""
        return replace(settings, url=self.url or settings.url, prefix=self.prefix or settings.prefix)


SHARED = [
    ("--url URL", "The server: redis://…, rediss://…, unix://…, embedded:///folder."),
    ("--prefix NAME", "Prefix of all keys; default: JOBRUNNER_PREFIX, else jobrunner."),
    ("--json", "Write JSON to stdout, and an error as JSON to stderr."),
    ("--debug", "Print the traceback of an error."),
]
"""The options of every command, as `jobrunner --help` describes them."""


class _SharedOption(click.Option):
    """An option of every command. The help of a command has a single entry for all of them, at the first."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:  # noqa: ARG002
        """The entry at the first option; None at the others."""
        if "--url" not in self.opts:
            return None
        return "--url, --prefix, --json, --debug", "Common options: see jobrunner --help."


def _named(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value == "":  # from an unset variable: the command would act on the default server
        raise click.BadParameter("it is empty: give one, or leave the option out", param=parameter)
    return value


def with_shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --url, --prefix, --json and --debug; the command gets them as its first argument, a `CommonOptions`."""

    @click.option("--url", cls=_SharedOption, metavar="URL", callback=_named, help=SHARED[0][1])
    @click.option("--prefix", cls=_SharedOption, metavar="NAME", callback=_named, help=SHARED[1][1])
    @click.option("--json", "as_json", cls=_SharedOption, is_flag=True, help=SHARED[2][1])
    @click.option("--debug", cls=_SharedOption, is_flag=True, help=SHARED[3][1])
    @wraps(command)
    def shared(url: str | None, prefix: str | None, as_json: bool, debug: bool, **rest: Any) -> Any:
        return command(CommonOptions(url=url, prefix=prefix, as_json=as_json, debug=debug), **rest)

    return shared


def with_wide(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --wide, which prints all columns of a list in full."""
    return click.option("--wide", is_flag=True, help="Prints all columns, and shortens none.")(command)


def not_empty(_: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """A callback of options that select. Raises click.BadParameter for an empty text, as from an unset variable, which
    would select everything, and for a text that is no UTF-8, which cannot be sent."""
    if "" in (value if isinstance(value, tuple) else (value,)):
        hint = f"{value!r} is empty and would select everything: give a text, or leave it out"
        raise click.BadParameter(hint, param=parameter)
    for text in value if isinstance(value, tuple) else (value or "",):
        if not text.isprintable() and any(0xD800 <= ord(char) <= 0xDFFF for char in text):  # of bytes that are no UTF-8
            raise click.BadParameter(f"{text!r} is no UTF-8: give a text", param=parameter)
    return value


def seconds_of(text: str) -> float:
    """The seconds of `90`, `1.5s`, `250ms`, `5m`, `2h` or `1d`. Raises click.BadParameter."""
    try:
        return seconds_of_text(text)
    except InvalidOption as error:
        raise click.BadParameter(str(error)) from error


def bytes_of(text: str) -> int:
    """The bytes of `800`, `64KB`, `512MB`, `1.5GB`; units are powers of 1024. Raises click.BadParameter."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise click.BadParameter(f"{describe(text)} is no size; write 800, 64KB, 512MB or 1.5GB")
    size = float(found["number"]) * _BYTES[found["unit"] or ""]
    if size > _MOST_BYTES:
        raise click.BadParameter(f"{describe(text)} is out of range: give a size of up to {_MOST_BYTES >> 30}GB")
    return round(size)


def modules_or_configured(given: tuple[str, ...]) -> tuple[str, ...]:
    """The given modules, else those of [tool.jobrunner] in pyproject.toml; empty when there are none."""
    return given or file_settings().modules


def redaction() -> Redaction:
    """The hidden names of this machine, without the server's list: built in, `redact` of [tool.jobrunner], and
    JOBRUNNER_REDACT. Raises InvalidOption."""
    return Redaction(hidden_names())


def connected(shared: CommonOptions, *, starts: bool = False, like: Client | None = None) -> Client:
    """A client with a short retry timeout, as a person is waiting. It has the settings of `like`, else those that a
    loaded module passed to `configure`, at the address that the options name.

    A stopped private server is started only for a command that changes something (`starts`). Raises ServerUnavailable
    for other commands: a query from the wrong folder must neither create a server there nor show an empty one.
    """
    in_code = like or configured_client()
    if in_code is None:
        client = Client(shared.url, shared.prefix, retry_timeout=_RETRY_TIMEOUT_S)
    else:
        settings = shared.at_address(in_code.settings)
        # Without the buffer, as a command reports only tasks that the server has accepted.
        client = Client.like(replace(settings, retry_timeout=_RETRY_TIMEOUT_S, buffer_tasks=0))
    if starts:
        announce_start(client)
    elif (server := endpoint_of(client).embedded) is not None and not (status := server.status()).running:
        client.close()
        raise ServerUnavailable(_not_running(status.folder))
    return client


def announce_start(client: Client) -> None:
    """Registers this process as a user of the client's private server, if it has one; reports a start on stderr.

    Registers also when the server runs already: a client connects at its first call, and until then the server would
    stop with its last other user.
    """
    server = endpoint_of(client).embedded
    if server is None:
        return
    status = server.status()
    server.acquire()
    if not status.running:
        say_started(status.folder)


def say_started(folder: Path) -> None:
    """Reports on stderr that a private server was started."""
    talk(f"started a private server in {folder}")


def _not_running(folder: Path) -> str:
    project = folder.parent if folder.name == FOLDER else folder
    kept = f" (its tasks are kept in {folder})" if folder.is_dir() else ""
    return f"no server is running for {project}{kept}; start one with jobrunner work, or name another with --url"


def confirm(question: str, *, yes: bool) -> None:
    """Asks for confirmation. Raises click.UsageError without a terminal, Refusal when the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question.removesuffix('?')}: stdin is no terminal to confirm on; add --yes")
    if not click.confirm(question, err=True):
        raise Refusal("nothing was changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAddress:
    """The address at which metrics are served; not served when the port is None."""

    host: str
    port: int | None
    token: str = field(default="", repr=False)

    def check(self) -> None:
        """Makes the folder for metrics that jobs define, before their modules are loaded. Raises InvalidOption, also
        when the library that serves metrics is not installed."""
        if self.port is None:
            return
        if find_spec("prometheus_client") is None:
            raise InvalidOption(f"--metrics-port needs prometheus_client; {install_command('metrics')}")
        from jobrunner.metrics.application import made_folder

        made_folder()

    @contextmanager
    def serving(
        self, client: Client | None, health: Callable[[], tuple[bool, Mapping[str, Any]]]
    ) -> "Iterator[MetricsEndpoint | None]":
        """Serves metrics within the block."""
        if self.port is None:
            yield None
            return
        from jobrunner.metrics.endpoint import MetricsEndpoint

        endpoint = MetricsEndpoint(client, self.host, self.port, health, self.token)
        endpoint.start()
        try:
            yield endpoint
        finally:
            endpoint.close()


NOWHERE = MetricsAddress(host="", port=None)
