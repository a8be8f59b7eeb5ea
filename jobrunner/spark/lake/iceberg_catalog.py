"""Catalogs of Apache Iceberg: opened by name, and the namespace of a new table.

A catalog in a SQL database creates its own tables when it is first opened. The library checks for them before it
creates them, and does the same for a namespace, so one of two processes that start together may fail. The library waits
for a REST catalog without limit, which would block a station, so requests get a time limit here.
"""

from contextlib import suppress
from functools import cache, partial
from random import uniform
from typing import Any

from pyiceberg.catalog import _ENV_CONFIG, load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError

from jobrunner.clock import sleep

ANSWER_S = 60.0
"""Longest wait for an answer of a REST catalog, to each request."""
_TRIES = 5
_LONGEST_S = 0.2
_MADE_BY_ANOTHER = ("already exists", "duplicate key")
"""Parts of error messages of SQLite and PostgreSQL."""


def open_catalog(name: str) -> Any:
    """The catalog of this name. Raises the errors of the library and of the database."""
    for _ in range(_TRIES - 1):
        try:
            return _load(name)
        except Exception as error:  # of SQLAlchemy, which a REST catalog does not need
            if not any(words in str(error) for words in _MADE_BY_ANOTHER):
                raise
        sleep(uniform(0, _LONGEST_S))
    return _load(name)


def make_namespace(catalog: Any, name: str) -> None:
    """Creates a namespace, unless it exists by now."""
    try:
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(name)
    except Exception:  # of SQL: two processes made it
        if not catalog.namespace_exists(name):
            raise


def _load(name: str) -> Any:
    settings: Any = _ENV_CONFIG.get_catalog_config(name) or {}
    uri, kind = str(settings.get("uri", "")), str(settings.get("type", "")).lower()
    if uri and (kind == "rest" or (not kind and uri.startswith("http"))):  # the rule of the library
        return _rest_catalog()(name, **settings)
    return load_catalog(name)


@cache
def _rest_catalog() -> type:
    """The library's REST catalog with a time limit for requests. Imported here, as other catalogs need no
    `requests`."""
    from pyiceberg.catalog.rest import RestCatalog

    class LimitedRestCatalog(RestCatalog):
        def _create_session(self) -> Any:
            session = super()._create_session()
            session.request = partial(session.request, timeout=ANSWER_S)  # type: ignore[method-assign]
            return session

    return LimitedRestCatalog
