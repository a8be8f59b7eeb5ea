"""Settings of a client and of the project file. Argument > environment > pyproject.toml > default.

Reading happens when a client or a worker is made, never at import.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

from jobrunner.errors import InvalidOption, UnknownOption
from jobrunner.formatting import describe
from jobrunner.option_names import check_options, unknown
from jobrunner.retry import seconds

Duration = timedelta | int | float
DURABILITIES = ("none", "fsync", "replicated")
PROTECTIONS = ("encrypt", "sign")
_LONGEST_WAIT_S = 4.0
"""Less than the timeout of a read, after which its connection counts as broken."""
DEFAULT_RESULT_LIMIT = 1024 * 1024
DEFAULT_RESULT_TTL_S = 60.0
EMBEDDED_URL = "embedded://"
_LISTS = {"modules": "module names", "middleware": "texts, ['app.middleware:Tenant']", "redact": "names"}
_OF_WORK = frozenset(
    {
        "concurrency", "min_concurrency", "processes", "executor", "grace", "heartbeat", "unknown_grace", "max_tasks",
        "max_memory", "max_per_queue", "gate", "burst", "drain", "reload", "events", "log_format", "log_level",
        "metrics_port", "metrics_host", "metrics_token", "otel", "allow_eviction",
    }
)  # fmt: skip
"""Options of `jobrunner work`, which differ between the workers of a project, so the project's file has none of
them."""
MOST_RELEASE = 64
_EXACT = 2**53
"""The largest whole number that is exact in a script."""
DEFAULT_PAYLOAD_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings of a client. Sizes in bytes, times in seconds."""

    url: str = field(repr=False)
    """The server: redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or, by default, embedded://."""
    prefix: str = "jobrunner"
    """The prefix of all keys; clients with different prefixes do not see each other."""
    payload_limit: int = DEFAULT_PAYLOAD_LIMIT
    """The largest payload in bytes that is sent; a larger payload raises PayloadTooLarge."""
    result_limit: int = DEFAULT_RESULT_LIMIT
    """The largest result in bytes that is stored; a larger result raises ResultTooLarge and fails its job."""
    retry_timeout: float = 2.0
    """How long a call waits for a server that is away before it raises."""
    durability: str = "none"
    """When an enqueue returns: "none" as soon as the server has it, "fsync" when it is on the server's disk,
    "replicated" when a replica has it."""
    durability_timeout: float = 2.0
    """How long an enqueue waits for its durability before it raises OutcomeUnknown."""
    buffer_tasks: int = 0
    """The most tasks that wait in this process for a server that is away; 0: an enqueue raises then."""
    buffer_bytes: int = 16 * 1024 * 1024
    """The largest total size of the payloads of buffered tasks."""
    buffer_flush: float = 5.0
    """How long the exit of the process waits to send buffered tasks; unsent tasks are lost then."""
    payload_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys for encrypting or signing payloads and results, each 32 bytes as base64. The first key is used for new
    values, all keys for stored values. As arguments or in JOBRUNNER_PAYLOAD_KEYS, separated by commas; never in a file
    of the project."""
    payload_encryption: str = "encrypt"
    """The protection: "encrypt" (needs the extra `encryption`), or "sign", which leaves payloads readable."""
    require_encryption: bool = False
    """Whether plain payloads are refused: their tasks are dead then."""
    payload_store: str | None = field(default=None, repr=False)
    """The store for payloads of jobs larger than `payload_store_above`: a URL that fsspec can open, file:///folder or
    s3://bucket/folder; the server then has a reference. None: all payloads are in the server."""
    payload_store_above: int = 64 * 1024
    """The largest payload in bytes, in its stored form, that stays in the server when there is a store."""
    middleware: tuple[Any, ...] = field(default=(), repr=False)
    """Code around every enqueue and every run, outermost first: objects, or texts 'module:Name' of classes or objects.
    In JOBRUNNER_MIDDLEWARE separated by commas."""
    redact: tuple[str, ...] = ()
    """Names of parameters that pages, commands and errors hide, besides `password`, `token` and the like; regular
    expressions that match a whole name. Names in JOBRUNNER_REDACT, separated by commas, and in the file count too."""


def as_arguments(settings: ClientSettings) -> dict[str, Any]:
    """The arguments of a client that has these settings."""
    return {known.name: getattr(settings, known.name) for known in fields(settings)}


class ClientOptions(TypedDict, total=False):
    """The options of `configure(…)` and `Client(…)` besides the URL and the prefix."""

    payload_limit: int
    result_limit: int
    retry_timeout: Duration
    durability: str
    durability_timeout: Duration
    buffer_tasks: int
    buffer_bytes: int
    buffer_flush: Duration
    payload_keys: list[str] | tuple[str, ...] | None
    payload_encryption: str
    require_encryption: bool
    payload_store: str | None
    payload_store_above: int | None
    middleware: list[Any] | tuple[Any, ...] | None
    redact: list[str] | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """The table [tool.jobrunner] of the nearest pyproject.toml."""

    url: str | None = field(repr=False, default=None)
    """The server, when neither an argument nor the environment names one."""
    prefix: str | None = None
    """The prefix of all keys."""
    modules: tuple[str, ...] = ()
    """Modules that declare jobs, for commands without modules."""
    payload_limit: int | None = None
    """As for a client."""
    result_limit: int | None = None
    """As for a client."""
    payload_encryption: str | None = None
    """As for a client. Keys must not be in this file."""
    require_encryption: bool | None = None
    """As for a client."""
    payload_store: str | None = field(repr=False, default=None)
    """As for a client."""
    payload_store_above: int | None = None
    """As for a client."""
    middleware: tuple[str, ...] = ()
    """Texts 'module:Name', as for a client."""
    redact: tuple[str, ...] = ()
    """Names of parameters that the dashboard and the command line hide, besides the built-in names."""
    release: str | None = None
    """As for a worker."""
    dashboard: Mapping[str, Any] = field(default_factory=dict)
    """The table [tool.jobrunner.dashboard], unchecked."""
    job_defaults: Mapping[str, Any] = field(default_factory=dict)
    """The table [tool.jobrunner.job_defaults], unchecked: defaults for options that jobs do not declare."""
    queues: Mapping[str, Any] = field(default_factory=dict)
    """The tables [tool.jobrunner.queues.NAME], unchecked: settings of declared queues."""
    spark: Mapping[str, Any] = field(default_factory=dict)
    """The table [tool.jobrunner.spark], unchecked: master or remote, and Spark's own settings."""


def client_settings(url: str | None = None, prefix: str | None = None, **options: Any) -> ClientSettings:
    """Resolves every option of a client. Raises UnknownOption, InvalidOption."""
    known = [known.name for known in fields(ClientSettings)]
    check_options(options, known, "client option")
    for name, given in (("url", url), ("prefix", prefix)):
        if given == "":  # from an unset variable: the default could be another server or prefix
            raise InvalidOption(f"{name}='': give one, or leave it out for that of the environment or pyproject.toml")
    stored = file_settings()
    environment = os.environ
    chosen = url or environment.get("JOBRUNNER_URL") or environment.get("REDIS_URL") or stored.url or EMBEDDED_URL
    for name in ("payload_limit", "result_limit"):
        if (limit := getattr(stored, name)) is not None:
            options.setdefault(name, limit)
        if name in options:
            check_whole(options[name], name, minimum=1)
    _settle_encryption(options, stored)
    _settle_payload_store(options, stored)
    options["redact"] = _names_to_hide(options.get("redact", ()), stored)
    options["middleware"] = _middleware(options.get("middleware"), stored)
    _check_buffer(options)
    if "retry_timeout" in options:
        options["retry_timeout"] = seconds(options["retry_timeout"], option="retry_timeout")
    if options.get("durability", "none") not in DURABILITIES:
        raise InvalidOption(f"durability={describe(options['durability'])}: choose one of {', '.join(DURABILITIES)}")
    if "durability_timeout" in options:
        options["durability_timeout"] = seconds(options["durability_timeout"], option="durability_timeout")
        if not 0 < options["durability_timeout"] <= _LONGEST_WAIT_S:
            described = describe(options["durability_timeout"])
            raise InvalidOption(f"durability_timeout={described}: give more than 0, at most {_LONGEST_WAIT_S:g} s")
    named = prefix or environment.get("JOBRUNNER_PREFIX") or stored.prefix or "jobrunner"
    return ClientSettings(url=chosen, prefix=named, **options)


def hidden_names() -> tuple[str, ...]:
    """Names of hidden parameters for code without a client: from JOBRUNNER_REDACT and the file."""
    return _names_to_hide((), file_settings())


def _names_to_hide(given: object, stored: FileSettings) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, (list, tuple)) or not all(isinstance(one, str) for one in given):
        raise InvalidOption(f"redact={describe(given)}: give a list of names")
    of_environment = [one.strip() for one in os.environ.get("JOBRUNNER_REDACT", "").split(",") if one.strip()]
    return tuple(dict.fromkeys((*given, *of_environment, *stored.redact)))


def _middleware(given: object, stored: FileSettings) -> tuple[Any, ...]:
    if given is None:
        named = [one.strip() for one in os.environ.get("JOBRUNNER_MIDDLEWARE", "").split(",") if one.strip()]
        return tuple(named) or stored.middleware
    if not isinstance(given, (list, tuple)):
        raise InvalidOption(f"middleware={describe(given)}: give a list, [Tenant()] or ['app.middleware:Tenant']")
    return tuple(given)


def _settle_encryption(options: dict[str, Any], stored: FileSettings) -> None:
    keys = options.get("payload_keys")
    if keys is None:
        configured = os.environ.get("JOBRUNNER_PAYLOAD_KEYS", "")
        keys = [key for key in configured.split(",") if key.strip()]
        if configured and not keys:  # such as "$NEW,$OLD" with both unset: payloads would be plain
            raise InvalidOption(
                "JOBRUNNER_PAYLOAD_KEYS has commas or blanks and no key; see whether the variables in it are set, or "
                "unset it for plain payloads"
            )
    if not isinstance(keys, (list, tuple)) or not all(isinstance(key, str) for key in keys):
        raise InvalidOption("payload_keys is not a list of texts; give [key] or [new_key, old_key]")
    options["payload_keys"] = tuple(keys)
    for name in ("payload_encryption", "require_encryption"):
        if getattr(stored, name) is not None:
            options.setdefault(name, getattr(stored, name))
    if options.get("payload_encryption", "encrypt") not in PROTECTIONS:
        raise InvalidOption(
            f"payload_encryption={describe(options['payload_encryption'])}: choose one of {', '.join(PROTECTIONS)}"
        )
    if not isinstance(options.get("require_encryption", False), bool):
        raise InvalidOption(f"require_encryption={describe(options['require_encryption'])}: give true or false")
    if options.get("require_encryption") and not keys:
        raise InvalidOption("require_encryption is set and there are no payload_keys; set JOBRUNNER_PAYLOAD_KEYS")


def _settle_payload_store(options: dict[str, Any], stored: FileSettings) -> None:
    url = options.get("payload_store")
    if url is None:
        url = os.environ.get("JOBRUNNER_PAYLOAD_STORE") or stored.payload_store
    if url is not None and (not isinstance(url, str) or not url.strip() or not ("://" in url or url.startswith("/"))):
        raise InvalidOption(f"payload_store={describe(url)}: give a URL, as file:///srv/payloads or s3://bucket/folder")
    if url is not None and url.startswith(("file://", "local://")) and not url.partition("://")[2].startswith("/"):
        raise InvalidOption(
            f"payload_store={describe(url)} would be a folder below that in which each process runs; write the whole "
            "path, as file:///srv/payloads"
        )
    options["payload_store"] = url
    above = options.get("payload_store_above")
    if above is None and (said := os.environ.get(variable := "JOBRUNNER_PAYLOAD_STORE_ABOVE")):
        above = check_whole(int(said) if said.isdecimal() else said, variable, minimum=0)
    if above is None:
        above = stored.payload_store_above
    if above is None:
        options.pop("payload_store_above", None)
    else:
        options["payload_store_above"] = check_whole(above, "payload_store_above", minimum=0)


def _check_buffer(options: dict[str, Any]) -> None:
    for name, least in (("buffer_tasks", 0), ("buffer_bytes", 1)):
        if name in options:
            check_whole(options[name], name, minimum=least)
    if "buffer_flush" in options:
        options["buffer_flush"] = seconds(options["buffer_flush"], option="buffer_flush")
    if options.get("buffer_tasks") and options.get("durability", "none") != "none":
        raise InvalidOption(
            f"buffer_tasks with durability={options['durability']!r}: a task that waits in this process is not safe; "
            "choose one of them"
        )


def working_folder() -> Path | None:
    """The working directory; None when it was deleted, such as that of an earlier release whose processes still run."""
    try:
        return Path.cwd()
    except OSError:
        return None


_last_here = FileSettings()
"""The settings read last. They stay in force when the working directory is deleted."""


def file_settings(folder: Path | None = None) -> FileSettings:
    """[tool.jobrunner] of the pyproject.toml in `folder` (default: here) or the nearest one above it."""
    global _last_here
    if folder is None and working_folder() is None:
        return _last_here
    path = project_file(folder)
    found = FileSettings() if path is None else _read_table(path)
    if folder is None:
        _last_here = found
    return found


def project_file(folder: Path | None = None) -> Path | None:
    """The pyproject.toml in `folder` (default: here) or the nearest one above it."""
    here = folder or working_folder()
    paths = (place / "pyproject.toml" for place in ((here, *here.parents) if here is not None else ()))
    return next((path for path in paths if path.is_file()), None)


def see_project() -> None:
    """Makes modules importable from the working directory and the folder of the project's pyproject.toml."""
    project = project_file()
    for folder in (None if project is None else project.parent, working_folder()):
        if folder is not None and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


@lru_cache(maxsize=4)
def _table(text: str) -> Mapping[str, Any]:
    """Parses [tool.jobrunner]. Cached by the content of the file: each new client reads it, and parsing takes 5 ms."""
    import tomllib  # a program without a project reads no file

    tools = tomllib.loads(text).get("tool", {})
    table: Mapping[str, Any] = tools.get("jobrunner", {}) if isinstance(tools, Mapping) else {}
    return table


def _check_names(table: Mapping[str, Any], what: str) -> None:
    known = [known.name for known in fields(FileSettings)]
    for name in table:
        if name.replace("-", "_") in _OF_WORK:
            option = name.replace("_", "-")
            raise UnknownOption(f"{unknown(what, name)}; it is an option of a worker: jobrunner work --{option}")
        if name not in known and name in ClientOptions.__annotations__:
            raise UnknownOption(f"{unknown(what, name)}; it is an option of configure() and Client()")
    check_options(table, known, what)


def _check_values(table: Mapping[str, Any], path: Path) -> None:
    """Raises InvalidOption, with the name of the file, for values that a client would refuse."""
    for name, least in (("payload_limit", 1), ("result_limit", 1), ("payload_store_above", 0)):
        if name in table:
            check_whole(table[name], f"{name} in {path}", minimum=least)
    if (protection := table.get("payload_encryption", "encrypt")) not in PROTECTIONS:
        raise InvalidOption(f"payload_encryption = {protection!r} in {path}: choose one of {', '.join(PROTECTIONS)}")
    if not isinstance(required := table.get("require_encryption", False), bool):
        raise InvalidOption(f"require_encryption = {required!r} in {path}: give true or false")


def _read_table(path: Path) -> FileSettings:
    try:
        table = _table(path.read_text("utf-8"))
    except (OSError, ValueError) as error:  # includes the errors of tomllib and of decoding
        raise InvalidOption(f"{path} cannot be read: {error}; mend it") from error
    if not isinstance(table, Mapping):
        raise InvalidOption(f"jobrunner = {describe(table)} in {path}: give a table, [tool.jobrunner]")
    _check_names(table, f"option in [tool.jobrunner] of {path}")
    _check_values(table, path)
    if "release" in table:
        check_release(table["release"], f"release in {path}")
    for name in ("url", "prefix", "payload_store"):
        if name in table and not isinstance(table[name], str):
            raise InvalidOption(f"{name} = {table[name]!r} in {path}: give a string")
    for name, remedy in _LISTS.items():
        listed = table.get(name, [])
        if not (isinstance(listed, list) and all(isinstance(one, str) for one in listed)):
            raise InvalidOption(f"{name} = {listed!r} in {path}: give a list of {remedy}")
    for name in ("dashboard", "job_defaults", "queues", "spark"):
        if not isinstance(table.get(name, {}), Mapping):
            raise InvalidOption(f"{name} = {table[name]!r} in {path}: give a table, [tool.jobrunner.{name}]")
    return FileSettings(**{**table, **{name: tuple(table.get(name, ())) for name in _LISTS}})


def check_release(value: object, option: str) -> None:
    """Raises InvalidOption for an invalid name of a release."""
    if not (isinstance(value, str) and value.isprintable() and value == value.strip() and len(value) <= MOST_RELEASE):
        raise InvalidOption(f"{option}={describe(value)}: give at most {MOST_RELEASE} printable characters, as '1.4.2'")


def check_whole(value: object, option: str, *, minimum: int, maximum: int = _EXACT) -> int:
    """Returns a whole number within its range, which ends where the server's scripts count exactly. Raises
    InvalidOption."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and minimum <= value <= maximum:  # type: ignore[operator]
        return value  # type: ignore[return-value]
    limit = f" to {maximum}" if maximum != _EXACT or (is_whole and value > _EXACT) else ""  # type: ignore[operator]
    raise InvalidOption(f"{option}={describe(value)}: give a whole number from {minimum}{limit}")
