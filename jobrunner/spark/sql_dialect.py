"""Differences between drivers of the DB-API and their databases: parameters, quotes, errors, autocommit."""

import sys
from collections.abc import Sequence
from typing import Any

from jobrunner.errors import InvalidOption
from jobrunner.spark.failures import MYSQL_DRIVERS


class Statements:
    """Statements in the parameter style of a connection's driver, and names in the quotes of its database."""

    def __init__(self, connection: Any) -> None:
        module = _module_of(connection)
        self.error: type[Exception] = module.Error
        self.clash: type[Exception] = module.IntegrityError
        self._style: str = module.paramstyle
        self.is_mysql = module.__name__.partition(".")[0] in MYSQL_DRIVERS
        self._quote = "`" if self.is_mysql else '"'

    def insert(self, table: str, names: Sequence[str], batch_column: str) -> str:
        """An insert of one row. The columns of the rows are quoted; the batch column is as the user wrote it, as in the
        delete."""
        values = ", ".join("?" * (len(names) + 1))
        return self.of(f"{self._into(table, names, batch_column)} values ({values})")

    def insert_nothing(self, table: str, names: Sequence[str], batch_column: str) -> str:
        """An insert into the same columns that adds no row."""
        nulls = ", ".join(["null"] * (len(names) + 1))
        into = self._into(table, names, batch_column)
        return self.of(f"{into} select {nulls} from {table} where 1 = 0")  # noqa: S608  checked

    def _into(self, table: str, names: Sequence[str], batch_column: str) -> str:
        return f"insert into {table} ({', '.join([*map(self._quoted, names), batch_column])})"

    def of(self, statement: str) -> str:
        """Converts a statement with `?` for parameters to the driver's parameter style."""
        if self._style == "qmark":
            return statement
        if self._style in ("format", "pyformat"):
            return statement.replace("?", "%s")
        first, *others = statement.split("?")  # numeric, and named, whose drivers take positions as well
        return first + "".join(f":{number}{text}" for number, text in enumerate(others, 1))

    def _quoted(self, name: str) -> str:
        if self._quote in name or "?" in name:
            raise InvalidOption(f"column {name!r} has a quote or a question mark in its name; rename it")
        name = name.replace("%", "%%") if self._style in ("format", "pyformat") else name
        return f"{self._quote}{name}{self._quote}"


def _module_of(connection: Any) -> Any:
    """The DB-API module of a connection, also when the program derives the connection's class from the driver's."""
    for kind in type(connection).__mro__:
        name = kind.__module__
        while name:
            module = sys.modules.get(name)
            if hasattr(module, "paramstyle"):
                return module
            name = name.rpartition(".")[0]
    raise InvalidOption(
        f"connect() returned {type(connection).__qualname__}, which is of no DB-API module: return a connection of the "
        "driver itself, such as psycopg.connect(...) or sqlite3.connect(...)"
    )


def is_in_autocommit(connection: Any) -> bool:
    """Whether a connection commits each statement. Checked before the first statement, which would be committed. The
    DB-API defines no attribute for it, so each driver has its own."""
    if hasattr(connection, "in_transaction"):  # sqlite3; its `autocommit`, from Python 3.12 on, is -1 unless it is set
        own = getattr(connection, "autocommit", -1)
        return own is True or (own == -1 and connection.isolation_level is None)
    if hasattr(connection, "get_autocommit"):  # MySQL
        return bool(connection.get_autocommit())
    return getattr(connection, "autocommit", False) is True
