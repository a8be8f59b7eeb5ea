"""Stores the options of tables in Spark's catalog: `CREATE TABLE … USING jobrunner OPTIONS (queue 'orders')`.

Spark passes the options of a table to a source in Python only once, among its own properties (`owner`, `provider`),
when it asks for the columns of a new table. It keeps the columns and passes them to each read, without the options. So
the options are stored in the comment of a column. An insert keeps the comments of columns that Spark casts.
"""

import json
from collections.abc import Mapping

from pyspark.sql.types import StructType

from jobrunner.broker.connect import Endpoint
from jobrunner.errors import InvalidOption
from jobrunner.option_names import folded

_OPTION = "option."
_PROVIDER = "provider"
_MARK = "jobrunner: "
_WRITES = ("queue", "url", "prefix")
"""Options of a table that concern an insert."""


def options_of_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options in a `CREATE TABLE`; None for any other use of the source. Raises InvalidOption for a password."""
    if _PROVIDER not in given:
        return None
    options = {
        name.removeprefix(_OPTION): value for name, value in given.items() if name.lower().startswith(_OPTION)
    }
    for name, value in options.items():
        if folded(name) == "url" and "@" in value:
            raise InvalidOption(
                f"url={Endpoint(value)!s} of a table has a user or a password, which the catalog would keep; leave out "
                "the option and set JOBRUNNER_URL for the processes that read the table"
            )
    return options


def storing_options(ddl: str, options: Mapping[str, str]) -> str:
    """The columns of a table, with its options in the comment of the last."""
    text = (_MARK + json.dumps(dict(options), ensure_ascii=False)).replace("\\", "\\\\").replace("'", "\\'")
    return f"{ddl} COMMENT '{text}'"


def stored_options(schema: StructType, *, writes: bool = False) -> dict[str, str]:
    """The options of the table with these columns; none for a plain read. `writes`: only options that concern an
    insert."""
    for column in schema.fields:
        comment = column.metadata.get("comment", "") if column.metadata else ""
        if isinstance(comment, str) and comment.startswith(_MARK):
            found: dict[str, str] = json.loads(comment.removeprefix(_MARK))
            return {name: value for name, value in found.items() if not writes or folded(name) in _WRITES}
    return {}
