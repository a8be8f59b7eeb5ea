"""Catalogs of Apache Iceberg: opened by name, and the namespace of a new table.

A catalog in a SQL database makes tables of its own when it is opened for the first time. The library looks whether they
are there before it makes them, and does the same for a namespace, so of two processes that begin together one may fail.
"""

from contextlib import suppress
from random import uniform
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError

from jobrunner.clock import sleep

_TRIES = 5
_LONGEST_S = 0.2
_MADE_BY_ANOTHER = ("already exists", "duplicate key")
"""Words of SQLite and PostgreSQL."""


def open_catalog(name: str) -> Any:
    """The catalog of this name. Raises what the library and the database raise."""
    for _ in range(_TRIES - 1):
        try:
            return load_catalog(name)
        except Exception as error:  # of SQLAlchemy, which a REST catalog does not need
            if not any(words in str(error) for words in _MADE_BY_ANOTHER):
                raise
        sleep(uniform(0, _LONGEST_S))
    return load_catalog(name)


def make_namespace(catalog: Any, name: str) -> None:
    """Makes a namespace, unless it is there by now."""
    try:
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(name)
    except Exception:  # of SQL: two processes made it
        if not catalog.namespace_exists(name):
            raise
