"""Rules by which the columns of rows fit a table: a new column is added, a number may widen, any other difference is
refused before a row is written.

Types are those of Arrow, in one form for both formats (`plain`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from jobrunner.errors import TableError

_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FRACTIONS = (pa.float32(), pa.float64())


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaPlan:
    """The plan for rows of one schema: `files` is the schema of the data files, `new` and `widened` change the table
    first."""

    files: pa.Schema
    new: tuple[pa.Field, ...] = ()
    widened: tuple[pa.Field, ...] = ()

    @property
    def changes_table(self) -> bool:
        """Whether the table gets columns or types first."""
        return bool(self.new or self.widened)


def fit(table: str, columns: pa.Schema, rows: pa.Schema, *, widens_table: bool) -> SchemaPlan:
    """The plan for rows with this schema in a table with these columns. `widens_table`: the format can widen a column.

    Raises TableError that names the column, both types and the table.
    """
    _check_names(table, columns, rows)
    files, new, widened = [], [], []
    for own in rows:
        if pa.types.is_null(own.type):
            raise TableError(f"column {own.name!r} for table {table} has no type (void): cast it")
        if own.name not in columns.names:
            files.append(pa.field(own.name, own.type))
            new.append(files[-1])
            continue
        there = columns.field(own.name)
        if own.type == there.type or _widens(own.type, there.type):
            files.append(pa.field(own.name, there.type, there.nullable))
        elif _widens(there.type, own.type) and widens_table:
            files.append(pa.field(own.name, own.type, there.nullable))
            widened.append(files[-1])
        else:
            raise TableError(_misfit(table, there, own))
    if missing := [one.name for one in columns if not one.nullable and one.name not in rows.names]:
        raise TableError(f"table {table} allows no null in column {missing[0]!r}, and the rows have no such column")
    return SchemaPlan(files=pa.schema(files), new=tuple(new), widened=tuple(widened))


def check_partitions(
    table: str, columns: Sequence[str], wanted: Sequence[str], rows: pa.Schema, *, in_files: bool
) -> None:
    """Raises TableError unless the table is partitioned by the wanted columns (by any when none are wanted), the rows
    have them, and their types can name a partition. `in_files`: data files have these columns, too."""
    if wanted and list(wanted) != list(columns):
        raise TableError(
            f"table {table} is partitioned by {_names(columns)}, the sink says partition_by={list(wanted)}: leave it "
            "out, or write to another table"
        )
    for name in columns:
        if name not in rows.names:
            raise TableError(f"table {table} is partitioned by {name!r}, and the rows have no such column")
        kind = rows.field(name).type
        if pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise TableError(f"table {table} cannot be partitioned by {name!r}, of type {kind}: take a text, a date, "
                             "a whole number, a decimal, a boolean or a timestamp")  # fmt: skip
    if not in_files and rows.names and set(rows.names) <= set(columns):
        raise TableError(f"table {table} is partitioned by all columns of the rows, {_names(columns)}: its data files "
                         "would have none, so add a column, or partition by fewer")  # fmt: skip


def check_key(table: str, merge_on: Sequence[str], rows: pa.Schema) -> None:
    """Raises TableError when a column of the key is missing, or its values cannot be compared."""
    for name in merge_on:
        if name not in rows.names:
            raise TableError(f"merge_on={list(merge_on)} for table {table}: the rows have no column {name!r}")
        if pa.types.is_nested(kind := rows.field(name).type):
            raise TableError(
                f"merge_on={list(merge_on)} for table {table}: column {name!r} is {kind}: take a column of plain values"
            )


def plain(schema: pa.Schema, *, smallest: pa.DataType | None = None) -> pa.Schema:
    """The schema with one type for each meaning, without metadata; `smallest`: the narrowest integer type of the
    format."""
    return pa.schema([pa.field(one.name, _plain(one.type, smallest), one.nullable) for one in schema])


def _plain(kind: pa.DataType, smallest: pa.DataType | None) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if smallest is not None and pa.types.is_signed_integer(kind) and _widens(kind, smallest):
        return smallest
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type, smallest)))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type, smallest), pa.field("value", _plain(kind.item_type, smallest)))
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([pa.field(one.name, _plain(one.type, smallest)) for one in fields])
    return kind


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether each value of the type `narrow` is a value of the type `wide`, in both formats."""
    for ranks in (_WHOLE, _FRACTIONS):
        if narrow in ranks and wide in ranks:
            return ranks.index(narrow) < ranks.index(wide)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale == wide.scale and narrow.precision < wide.precision)
    return False


def _check_names(table: str, columns: pa.Schema, rows: pa.Schema) -> None:
    if not rows.names:
        raise TableError(f"the rows for table {table} have no column")
    seen: dict[str, str] = {}
    for name in rows.names:
        if (other := seen.setdefault(name.lower(), name)) != name or rows.names.count(name) > 1:
            raise TableError(f"two columns for table {table} are called {other!r} and {name!r}: rename one of them")
    for name in columns.names:
        if (own := seen.get(name.lower())) is not None and own != name:
            raise TableError(f"table {table} has a column {name!r}, the rows have {own!r}: write it the same way")


def _misfit(table: str, there: pa.Field, own: pa.Field) -> str:
    hint = "a new column may have another type, under another name"
    if _widens(there.type, own.type):
        hint = "this format cannot widen a column: rewrite the table, or cast the column"
    return f"column {own.name!r} of table {table} is {there.type}, and that of the rows is {own.type}: {hint}"


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns)) or "nothing"
