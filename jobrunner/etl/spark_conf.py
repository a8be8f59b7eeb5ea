"""The address of Spark for this process, and Spark's own settings. This module does not need Spark.

The command line resolves them before it loads the user's modules. The first of these sources wins: arguments of
`spark_session`, the command line, the environment, `[tool.jobrunner.spark]` of pyproject.toml.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.settings import file_settings

MASTER, REMOTE, CONF = "JOBRUNNER_SPARK_MASTER", "JOBRUNNER_SPARK_REMOTE", "JOBRUNNER_SPARK_CONF"
NEEDED_CONF = {"spark.sql.python.filterPushdown.enabled": "true"}
"""The setting without which Spark refuses every read of a source that takes filters; it is off by default."""
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
_PLACES = ("master", "remote")
_OF_PLACES = tuple(f"spark.{one}" for one in _PLACES)
_KEY = re.compile(r"spark(\.[A-Za-z0-9_-]+)+")
_TABLE = "[tool.jobrunner.spark] of pyproject.toml"


def choose(*, master: str | None = None, remote: str | None = None, conf: Iterable[str] = ()) -> dict[str, str]:
    """Checks the command line's options for sessions of this process and of its children, before modules of the user
    are imported. `conf`: texts `key=value`. Returns variables for the environment. Raises InvalidOption.
    """
    if master and remote:
        raise InvalidOption("--master and --remote exclude each other; give one of them")
    given, stored = conf_of_options(conf), conf_of_environment()
    conf_of_file()
    variables = {MASTER: master or "", REMOTE: remote or ""} if master or remote else {}
    prepare_for(remote or (None if master else where()[1]))
    return variables | ({CONF: json.dumps(stored | given)} if given else {})


def prepare_for(remote: str | None) -> None:
    """Selects Connect mode before user modules are imported: PySpark reads the mode when a module declares a `@udf`,
    which would otherwise be made for a JVM of this process and fail on a Connect server. Silences py4j."""
    if remote:
        os.environ.setdefault(_CONNECT_MODE, "1")
    silence_py4j()


def silence_py4j() -> None:
    """Silences py4j, which logs a traceback for each object when the JVM is gone, thousands of lines. This package logs
    the cause in one line. A level that the program chose stays."""
    py4j, root = logging.getLogger("py4j"), logging.getLogger()
    if py4j.level != logging.NOTSET:
        return
    py4j.setLevel(logging.CRITICAL + 1)
    root.addFilter(_is_not_of_py4j)  # py4j writes some lines to the root logger


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def where() -> tuple[str | None, str | None]:
    """(master, remote) of environment and file; at most one of them is set. Raises InvalidOption."""
    master, remote = os.environ.get(MASTER) or None, os.environ.get(REMOTE) or None
    if not master and not remote:
        master, remote = (_place(_table(), name) for name in _PLACES)
        if master and remote:
            raise InvalidOption(f"{_TABLE} names both a master and a remote; remove one of them")
    return (None if remote else master), remote


def _place(table: Mapping[str, Any], name: str) -> str | None:
    found = table.get(name)
    if not isinstance(found, str | None):
        raise InvalidOption(f"{name} = {describe(found)} in {_TABLE}: give a text, as in master = 'local[2]'")
    return found or None


def conf_of_file() -> dict[str, str]:
    """Spark's own settings in `[tool.jobrunner.spark]`. Raises InvalidOption."""
    named = {name: value for name, value in _table().items() if name not in _PLACES}
    return dict(check_setting(name, value, f"in {_TABLE}") for name, value in named.items())


def conf_of_options(conf: Iterable[str]) -> dict[str, str]:
    """Spark's own settings in texts `key=value` of the command line. Raises InvalidOption."""
    return dict(map(_pair, conf))


def conf_of_environment() -> dict[str, str]:
    """Spark's own settings in JOBRUNNER_SPARK_CONF, a JSON object; the command line puts its own there."""
    text = os.environ.get(CONF)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidOption(f'{CONF}={describe(text)} is no JSON object; write {{"spark.driver.memory": "4g"}}')
    return dict(check_setting(name, value, f"in {CONF}") for name, value in found.items())


def check_setting(name: str, value: object, at: str) -> tuple[str, str]:
    """(name, value as text). Raises InvalidOption for an impossible name or value of a Spark setting."""
    if not isinstance(name, str) or not _KEY.fullmatch(name):
        near = _near(name) if isinstance(name, str) else ""
        hint = f"did you mean {near!r}?" if _KEY.fullmatch(near) or near in _PLACES else "write spark.driver.memory"
        raise InvalidOption(f"{describe(name)} {at} is no setting of Spark's: their names begin with 'spark.'; {hint}")
    if name in _OF_PLACES:  # the session's other settings depend on the place
        place = name.removeprefix("spark.")
        raise InvalidOption(
            f"{name} = {describe(value)} {at}: give it as {place}= of spark_session, --{place}, or {place} in {_TABLE}"
        )
    if isinstance(value, bool):
        return name, str(value).lower()
    if not isinstance(value, (str, int, float)):
        raise InvalidOption(f"{name} = {describe(value)} {at}: give a text, a number, true or false")
    return name, str(value)


def _near(name: str) -> str:
    """The name with the prefix `spark.`, or with `spark.` instead of a first part that resembles it; master or remote
    for a name that resembles it."""
    from difflib import get_close_matches  # for an error only

    if places := get_close_matches(name.lower(), _PLACES, cutoff=0.7):
        return places[0]

    first, _, rest = name.partition(".")
    return f"spark.{rest if get_close_matches(first.lower(), ['spark'], cutoff=0.7) else name}"


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise InvalidOption(f"--conf {describe(word)} has no value; write --conf spark.driver.memory=4g")
    return check_setting(name.strip(), value, "in --conf")


def _table() -> dict[str, Any]:
    return _flat(file_settings().spark)


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flattens tables to dotted names: TOML makes tables of an unquoted `spark.driver.memory = "4g"`."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and (above or name == "spark"):
            found |= _flat(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found
