"""Which columns a read has: from its options to a schema, and from a schema to what must be fetched."""

import difflib
from dataclasses import dataclass

from pyspark.sql.types import BinaryType, StringType, StructType

from jobrunner.errors import InvalidOption
from jobrunner.spark.rows.columns import ITEM_COLUMNS, USUAL_COLUMNS
from jobrunner.spark.rows.payload import check_readable
from jobrunner.spark.source.options import ReadOptions

PAYLOAD = "payload"
MISFIT = "_misfit"
"""Why a payload does not fit the schema; null when it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSchema:
    """The columns of a read by where they come from. `schema` has them all, in their order."""

    schema: StructType
    item: tuple[str, ...]
    fields: StructType
    """Columns made of the fields of a payload that is a JSON object."""
    raw: bool = False
    """Whether the payload itself is a column."""
    misfit: bool = False


def default_schema(options: ReadOptions) -> str:
    """The schema of a read for which the user gave none, as DDL."""
    if options.payload_schema is None:
        names = options.columns or (PAYLOAD, *USUAL_COLUMNS)
        return ", ".join(f"{name} {_ddl(name)}" for name in names)
    names = options.columns or (*USUAL_COLUMNS, MISFIT)
    return ", ".join([options.payload_schema, *(f"{name} {_ddl(name)}" for name in names)])


def shape_of(schema: StructType) -> ReadSchema:
    """How to fill a schema. Raises InvalidOption for a column that cannot be."""
    item, fields, raw, misfit = [], [], False, False
    for column in schema.fields:
        if column.name == PAYLOAD and isinstance(column.dataType, (StringType, BinaryType)):
            raw = True
        elif column.name == MISFIT:
            misfit = True
        elif column.name.startswith("_"):
            _check_item_column(column.name, column.dataType.simpleString())
            item.append(column.name)
        else:
            fields.append(column)
    of_payload = StructType(fields)
    check_readable(of_payload)
    return ReadSchema(schema=schema, item=tuple(item), fields=of_payload, raw=raw, misfit=misfit)


def _ddl(name: str) -> str:
    return ITEM_COLUMNS[name].ddl if name in ITEM_COLUMNS else "string"


def _check_item_column(name: str, kind: str) -> None:
    if name not in ITEM_COLUMNS:
        near = difflib.get_close_matches(name, [*ITEM_COLUMNS, MISFIT], n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(ITEM_COLUMNS)}"
        raise InvalidOption(f"column {name!r} is none of an item; {hint}")
    if kind != ITEM_COLUMNS[name].ddl:
        raise InvalidOption(f"column {name!r} is {ITEM_COLUMNS[name].ddl}, not {kind}; cast it after the read")
