"""Declarations of sinks into tables of a lakehouse: the checked address of the table, and the options.

This module needs neither Spark nor a library of a table format. `jobrunner.spark.lake.write` writes the rows; this
module names it by its path and imports it with the first batch, as this package must not depend on it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from jobrunner.errors import InvalidOption, SparkMissing
from jobrunner.etl.graph import nearest
from jobrunner.etl.station import QueueOptions
from jobrunner.formatting import describe, install_command

WRITER = "jobrunner.spark.lake.write"
_LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}
_LOWEST = {"deltalake": "1.6.3", "pyiceberg": "0.11"}
"""The lowest versions, as in the extra `lake`. deltalake below 1.6 silently ignores the application's transaction when
it writes files: a repeated batch would be in the table twice. In deltalake 1.6.0 a merge by keys of several columns
takes two rows for one, beyond some thousand rows, and below 1.6.3 a merge does not find a key of -0.0 by 0.0. pyiceberg
below 0.11 has no properties of a merge.
"""
_UNFIT_IN_A_PATH = re.compile(r"\\|[\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")
"""Parts of a local path that deltalake changes: it turns a backslash into a slash, and decodes URL escapes."""
_CUTS_A_URL = re.compile(r"[#?]")
_UNFIT_IN_A_FILE_URL = re.compile(r"[^A-Za-z0-9._~:/@!$&'()*+,;=%-]")
"""The characters that may be in a URL: deltalake and PyArrow misread other characters, or refuse them."""
_EXAMPLES = "'delta:/lake/late', 'delta:s3://bucket/late' or 'iceberg:catalog.db.late'"


class SinkOptions(QueueOptions, total=False):
    """Options of a sink on Spark, in addition to the options of its queue.

    table         where the rows go: "delta:/lake/late", "delta:s3://bucket/late" or "iceberg:catalog.db.late"
    partition_by  columns by which a new table is partitioned
    merge_on      columns of a key: a row replaces the row with its key; without it rows are appended
    latest_by     the column whose largest value wins among rows of one key in one batch; default: enqueued last
    id_column     the column that gets the id of the item; default: none does
    """

    table: str
    partition_by: str | Sequence[str]
    merge_on: str | Sequence[str]
    latest_by: str
    id_column: str


TABLE_OPTIONS = ("table", "partition_by", "merge_on", "latest_by", "id_column")


@dataclass(frozen=True, slots=True)
class TableAddress:
    """The address of a table: the folder or URL of a Delta table, or the name of an Iceberg table in a catalog."""

    format: Literal["delta", "iceberg"]
    where: str

    def __str__(self) -> str:
        return f"{self.format}:{self.where}"

    def check_installed(self) -> None:
        """Raises SparkMissing, with the command that installs it, when the library of the format is missing or too
        old."""
        library = _LIBRARIES[self.format]
        if find_spec(library) is None:
            raise SparkMissing(f"the table {self} needs {library}: {install_command('lake')}")
        lowest = _LOWEST[library]
        if _numbers(found := _version(library)) < _numbers(lowest):
            needed = f"{library} {lowest} or newer, not {found}"
            raise SparkMissing(f"the table {self} needs {needed}: {install_command('lake')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink:
    """The table that a sink writes to, and the way of writing."""

    address: TableAddress
    partition_by: tuple[str, ...] = ()
    merge_on: tuple[str, ...] = ()
    """Columns of the key: a row replaces the row with its key. Empty: rows are appended."""
    latest_by: str | None = None
    """The column whose largest value wins among rows of one key in one batch."""
    id_column: str | None = None
    """The column that gets the id of the item."""
    shape: Callable[..., Any] | None = field(default=None, repr=False)
    """(df, spark) -> DataFrame, the rows to write; None: the columns of the payload."""

    @property
    def addresses(self) -> tuple[TableAddress, ...]:
        """The tables that it writes to, in the same form as for a chain."""
        return (self.address,)

    def __call__(self, df: Any, spark: Any, batch: Any) -> Any:
        """The function of the sink, as the driver calls it."""
        return import_module(WRITER).write_sink(self, df, spark, batch)


@cache
def _version(library: str) -> str:
    """The installed version, which each batch reads; the lowest sufficient version when the metadata is missing."""
    from importlib.metadata import PackageNotFoundError, version  # imports email, 10 ms

    try:
        return version(library)
    except PackageNotFoundError:
        return _LOWEST[library]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def is_table(target: str) -> bool:
    """Whether a text has the prefix of a table's address."""
    return target.partition(":")[0] in _LIBRARIES


def address_of(table: object) -> TableAddress:
    """Parses the address of a table. Raises InvalidOption, which names the fault."""
    if not isinstance(table, str):
        raise InvalidOption(f"table={describe(table)}: give a text such as {_EXAMPLES}")
    kind, colon, where = table.partition(":")
    where = where.strip()
    if not colon or kind not in _LIBRARIES:
        hint = nearest(kind, sorted(_LIBRARIES))
        raise InvalidOption(f"table={table!r}: {kind!r} is no table format ({hint}); give {_EXAMPLES}")
    if kind == "iceberg":
        parts = where.split(".")
        if len(parts) < 3 or not all(parts):
            raise InvalidOption(f"table={table!r}: name catalog, namespace and table, as in 'iceberg:catalog.db.late'")
        return TableAddress("iceberg", where)
    scheme = urlsplit(where).scheme
    if not scheme and not PurePath(where).is_absolute():
        raise InvalidOption(
            f"table={table!r} is relative to the folder of whichever process writes it; give an absolute path or a URL"
        )
    root = where.rstrip("/")
    if not root or root == f"{scheme}:":
        raise InvalidOption(f"table={table!r}: name a folder of its own below the root")
    _check_readable(table, root, scheme)
    return TableAddress("delta", root)


def _check_readable(table: str, root: str, scheme: str) -> None:
    """Raises InvalidOption for a path that the library of Delta takes for another path: files would be written to one
    folder, and looked for in the other."""
    found = (_UNFIT_IN_A_FILE_URL if scheme == "file" else _CUTS_A_URL).search(root) if scheme else None
    if found is None and scheme in ("", "file"):
        found = _UNFIT_IN_A_PATH.search(unquote(urlsplit(root).path) if scheme else root)
    if found is not None:
        raise InvalidOption(
            f"table={table!r} is a path with {found[0]!r}, which the library of Delta takes for another one: give it "
            f"another name{', or leave out file:' if scheme == 'file' else ''}"
        )


def settle_table(
    queue: str, schema: str | None, options: Mapping[str, Any]
) -> tuple[TableSink | None, dict[str, Any]]:
    """(the table that the options of a sink name, the options of its queue). Raises InvalidOption."""
    given = {name: value for name, value in options.items() if name in TABLE_OPTIONS and value}
    of_queue = {name: value for name, value in options.items() if name not in TABLE_OPTIONS}
    table, latest_by = given.pop("table", None), given.get("latest_by")
    if table is None:
        if given:
            raise InvalidOption(f"{min(given)} of queue {queue!r} is an option of a sink into a table; add table=…")
        return None, of_queue
    sink = TableSink(
        address=address_of(table),
        partition_by=names_of(given.get("partition_by", ()), "partition_by"),
        merge_on=names_of(given.get("merge_on", ()), "merge_on"),
        latest_by=latest_by,
        id_column=given.get("id_column"),
    )
    if latest_by and not sink.merge_on:
        raise InvalidOption(f"latest_by={latest_by!r} of queue {queue!r} chooses among rows of one key; add merge_on=…")
    if schema is not None and schema.strip().lower() == "variant":
        raise InvalidOption(f"schema='variant' of queue {queue!r}: a table has typed columns; name them")
    return sink, of_queue


def names_of(value: object, option: str) -> tuple[str, ...]:
    """Column names: one, or several. Raises InvalidOption."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Sequence) or not all(isinstance(one, str) and one for one in value):
        raise InvalidOption(f"{option}={describe(value)}: give names of columns, as in {option}=['day']")
    if len(set(value)) < len(value):
        raise InvalidOption(f"{option}={describe(value)} names a column twice")
    return tuple(value)
