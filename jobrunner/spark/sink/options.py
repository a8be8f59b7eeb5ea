"""Checks the options of `df.write.format("jobrunner")` and of `writeStream`, and the columns of the rows, before a
write."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
from pyspark.sql import types as spark

from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import split_queue
from jobrunner.errors import InvalidOption, ParameterError
from jobrunner.formatting import describe
from jobrunner.jobs.registry import JobDefinition, load_modules, lookup
from jobrunner.option_names import check_names, listed, settle_names
from jobrunner.settings import client_settings, file_settings
from jobrunner.spark.columns import NUMBER, WHOLE, JsonForms, whole_number
from jobrunner.spark.parsed_values import check_names as check_field_names
from jobrunner.spark.payloads import check_plain
from jobrunner.spark.sink.micro_batch import MicroBatch

KNOWN = ("queue", "type", "modules", "id", "idFrom", "url", "prefix")
_OF_A_MICRO_BATCH = ("queryId", "microBatch")
"""Options of a write in `foreachBatch`. A streaming sink reads both from Spark."""
_OF_A_STREAM = ("checkpointLocation", "path", "queryName")
"""Spark passes these on; they are not for the data source."""
_TEXT = (spark.StringType,)
_TIME = (spark.TimestampType,)
_FORMS = JsonForms(
    keys=(
        spark.StringType, spark.NumericType, spark.DateType, spark.TimestampType, spark.TimestampNTZType,
        spark.TimeType, spark.BinaryType, spark.NullType,
    ),
    formless=(spark.YearMonthIntervalType, spark.CalendarIntervalType),
)  # fmt: skip
STEERING: Mapping[str, tuple[tuple[type[spark.DataType], ...], str]] = {
    "_id": (_TEXT, "a string: the id of the task"),
    "_priority": (WHOLE, "a whole number: 0, 1 or 2"),
    "_delay": (NUMBER, "a number: seconds until it is due"),
    "_at": (_TIME, "a timestamp: when it is due"),
    "_headers": ((spark.MapType, spark.StringType), "a map of strings, or its JSON"),
    "_partition": (_TEXT, "a string: the key of limits"),
}
"""Columns that steer a task, with their types and the text of errors about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The job or queue to write to, and the server. Plain values, as it is sent to other processes."""

    url: str = field(repr=False)
    prefix: str
    payload_limit: int
    queue: str
    type: str = ""
    modules: tuple[str, ...] = ()
    id_column: str | None = None
    id_from: tuple[str, ...] = ()
    micro_batch: MicroBatch | None = None
    """The micro-batch of a stream that this batch write is a part of."""

    def definition(self) -> JobDefinition | None:
        """The job of `type`, its module imported; None for a bare queue. Raises UnknownJob, ModuleNotLoadable."""
        if not self.type:
            return None
        load_modules(self.modules)
        return lookup(self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteShape:
    """The columns of the rows by their purpose."""

    payload: tuple[str, ...]
    """Fields of the payload, in their order; just ("payload",) when `is_raw`."""
    steering: tuple[str, ...]
    is_raw: bool = False
    """Whether the one column `payload` is the payload as it is stored."""


def write_options(given: Mapping[str, str], *, streams: bool = False) -> WriteOptions:
    """Parses and checks the options of a write. Raises UnknownOption, InvalidOption, InvalidName, UnknownJob."""
    if streams:
        options = settle_names(given, KNOWN, "a streaming write to jobrunner", unsaid=_OF_A_STREAM)
    else:
        options = settle_names(given, (*KNOWN, *_OF_A_MICRO_BATCH), "a write to jobrunner")
    where = client_settings(options.get("url"), options.get("prefix"))
    check_plain(where, "a write from Spark")
    settled = WriteOptions(
        url=Endpoint(where.url).shared_url(),
        prefix=where.prefix,
        payload_limit=where.payload_limit,
        queue=options.get("queue", ""),
        type=options.get("type", ""),
        modules=listed(options.get("modules", "")) or file_settings().modules,
        id_column=options.get("id"),
        id_from=listed(options.get("idFrom", "")),
        micro_batch=_micro_batch(options.get("queryId"), options.get("microBatch")),
    )
    if settled.id_column is not None and settled.id_from:
        raise InvalidOption(
            f"both id={settled.id_column!r} and idFrom={options['idFrom']!r} are given; give one of them"
        )
    definition = settled.definition()
    if definition is not None and definition.options.unique is not None:
        raise InvalidOption(
            f"job {definition.name!r} is unique=…, which a bulk write cannot check; use idFrom, or enqueue_many"
        )
    queue = settled.queue or (definition.options.queue if definition else "")
    if not queue:
        raise InvalidOption(
            "the option queue is missing: name the queue, or give type, the job; in SQL: INSERT INTO t WITH (queue='…')"
        )
    split_queue(queue)
    return replace(settled, queue=queue)


def write_shape(schema: spark.StructType, options: WriteOptions) -> WriteShape:
    """The purpose of each column. Raises InvalidOption and ParameterError that name the column."""
    names = [column.name for column in schema.fields]
    if not names:  # Arrow's batches have no count of rows then, and all would be lost
        raise InvalidOption("the rows have no column, and so none would arrive: select one, such as '_id'")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidOption(f"column {twice[0]!r} occurs twice; rename one of them")
    steering = [column for column in schema.fields if column.name.startswith("_")]
    for column in steering:
        _check_steering(column)
    _check_ids(names, options)
    fields = [column for column in schema.fields if not column.name.startswith("_")]
    try:
        check_field_names(spark.StructType(fields))
    except ValueError as error:
        raise InvalidOption(f"the columns cannot be fields of a payload: {error}; rename one of them") from None
    for column in fields:
        try:
            _FORMS.check(column.dataType)
        except ValueError as error:
            raise InvalidOption(f"column {column.name!r}: {error}") from None
    definition = options.definition()
    if definition is not None:
        _check_parameters([column.name for column in fields], definition)
    is_raw = definition is None and [column.name for column in fields] == ["payload"]
    is_raw = is_raw and isinstance(fields[0].dataType, (spark.StringType, spark.BinaryType))
    if not fields and definition is None:
        raise InvalidOption("there is no column for the payload: all begin with _; add at least one")
    return WriteShape(
        payload=tuple(column.name for column in fields),
        steering=tuple(column.name for column in steering),
        is_raw=is_raw,
    )


def _micro_batch(query: str | None, number: str | None) -> MicroBatch | None:
    if number is None:
        if query is not None:
            raise InvalidOption(f"queryId={query!r} without microBatch: give the number that foreachBatch passes, too")
        return None
    if (whole := whole_number(number)) is None:
        raise InvalidOption(f"microBatch={describe(number)}: give the number that foreachBatch passes, from 0 on")
    if query is not None and not query.strip():
        raise InvalidOption(f"queryId={query!r}: give the id of the query, or leave it out")
    return MicroBatch(query=query or "", number=whole)


def _check_steering(column: spark.StructField) -> None:
    if column.name not in STEERING:
        near = ["_partition"] if column.name == "_key" else []  # its name in builds before 0.1.0
        near = near or difflib.get_close_matches(column.name, STEERING, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(STEERING)}."
        raise InvalidOption(f"column {column.name!r} steers nothing; {hint} Other columns must not begin with _")
    kinds, told = STEERING[column.name]
    kind = column.dataType
    if isinstance(kind, spark.NullType):
        return
    is_map = not isinstance(kind, spark.MapType) or isinstance(kind.valueType, spark.StringType)
    if not isinstance(kind, kinds) or not is_map:
        raise InvalidOption(f"column {column.name!r} is {kind.simpleString()}; it must be {told}")


def _check_ids(names: list[str], options: WriteOptions) -> None:
    named = [options.id_column] if options.id_column is not None else list(options.id_from)
    for name in named:
        check_names([name], names, "column of the rows")
    if named and "_id" in names:
        raise InvalidOption("column '_id' and the option id or idFrom are both given; give one of them")


def _check_parameters(names: list[str], definition: JobDefinition) -> None:
    struct = definition.parameters.struct
    check_names(names, struct.__struct_fields__, f"parameter of job {definition.name!r}")
    missing = [field.name for field in msgspec.structs.fields(struct) if field.required and field.name not in names]
    if missing:
        raise ParameterError(f"job {definition.name!r} needs a column for its parameter {missing[0]!r}")

