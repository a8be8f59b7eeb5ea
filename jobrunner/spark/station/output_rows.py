"""Converts the DataFrame that a station's function returned to rows to stage, and raises the errors that its columns
alone reveal. Columns that begin with `_` steer the item or belong to it; all others are its payload."""

import inspect
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql import types as spark_types

from jobrunner.errors import StationError
from jobrunner.etl.graph import nearest
from jobrunner.outcome import Steer
from jobrunner.spark.columns import NUMBER, WHOLE, JsonForms, quoted
from jobrunner.spark.row_errors import ERROR, ID, fold_errors
from jobrunner.spark.running import names_told, same_names
from jobrunner.spark.station.payload_shape import OWN, PAYLOAD, PayloadShape
from jobrunner.spark.station.staging import RowRules

TO, DELAY, PRIORITY, HEADERS = "_to", "_delay", "_priority", "_headers"
_STEERING = (TO, DELAY, PRIORITY, HEADERS, ERROR)
_FORMS = JsonForms(
    keys=(spark_types.StringType, spark_types.NumericType, spark_types.BooleanType, spark_types.NullType),
    formless=(spark_types.YearMonthIntervalType,),
)
"""Types that `to_json` carries. It turns a date as a map key into the number of its day, and an interval of months into
a text that the next station cannot read."""
_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",  # an offset has no seconds here, but offsets of most zones before 1900 do
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_HEADERS_TYPE = spark_types.MapType(spark_types.StringType(), spark_types.StringType())


@dataclass(frozen=True, slots=True)
class OutputRows:
    """Rows to stage: `frame` has `_id`, `payload` and the steering columns that the function returned."""

    frame: DataFrame
    checks_payload: bool
    """Whether the payload is the user's own text, which may be no JSON."""


def steered(returned: Any) -> Any:
    """Raises `returned` if it is a steering value, which a function may return or raise; else returns it."""
    if isinstance(returned, Steer):
        raise returned
    return returned


def check_sink(queue: str, returned: Any) -> None:
    """Raises StationError when the function of a sink returned rows instead of writing them, or is lazy and did not
    run."""
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise StationError(
            f"sink {queue!r} returned a {type(returned).__name__}, so nothing of it ran: write def, and no yield"
        )
    if isinstance(returned, DataFrame):
        raise StationError(
            f"sink {queue!r} returned a DataFrame, which Spark never evaluates: write it, or declare a spark_station"
        )


def rows_of(returned: Any, rules: RowRules, shape: PayloadShape) -> OutputRows:
    """The rows to stage for the function's result. `shape`: that of its payloads. Raises StationError that names the
    column."""
    returned, columns = check_output(returned, rules)
    payload = {name: kind for name, kind in columns.items() if not name.startswith("_")}
    text, checked = payload_text(payload, shape, rules.station)
    kept = [_steering(name) for name in columns if name in _STEERING]
    task_id = F.col(ID) if ID in columns else F.lit(None).cast("string").alias(ID)
    return OutputRows(returned.select(task_id, text.alias(PAYLOAD), *kept), checked)


def check_output(returned: Any, rules: RowRules) -> tuple[DataFrame, dict[str, spark_types.DataType]]:
    """(the function's result with the errors of its rows in one column, the types of its columns). Raises
    StationError."""
    who = f"station {rules.station!r}"
    if not isinstance(returned, DataFrame):
        described = "nothing" if returned is None else f"{type(returned).__name__} {returned!r}"[:80]
        raise StationError(f"{who} returned {described}: return a DataFrame")
    if returned.isStreaming:
        raise StationError(f"{who} returned a streaming DataFrame: return one made from df")
    if twice := same_names(returned.sparkSession, returned.columns):
        raise StationError(f"{who} returned {names_told(twice)}")
    returned = fold_errors(returned)
    columns = {field.name: field.dataType for field in returned.schema.fields}
    _check_names(who, returned.columns, rules)
    check_types(f"{who} returned", columns)
    if all(name.startswith("_") for name in columns):
        raise StationError(f"{who} returned no column for the payload: keep those that are to go on, next to _id")
    return returned, columns


def _check_names(who: str, names: list[str], rules: RowRules) -> None:
    if ID not in names and not rules.emits_new:
        raise StationError(
            f"{who} lost the column _id: keep it in select and groupBy, or declare emits_new=True for new items"
        )
    targets = dict.fromkeys(rules.targets.values())
    if TO not in names and len(targets) != 1:
        short = ", ".join(map(repr, targets))
        raise StationError(f"{who} returned no column _to but leads to {short}: name one of them for each row")
    for name in names:
        if name.startswith("_") and name not in _STEERING + OWN:
            hint = nearest(name, _STEERING)
            raise StationError(f"{who} returned column {name!r}: names that begin with _ steer the item; {hint}")


def check_types(who_has: str, columns: dict[str, spark_types.DataType]) -> None:
    """Raises StationError for a steering column of a wrong type; the error begins with `who_has`."""
    wanted: dict[str, tuple[tuple[type[spark_types.DataType], ...], str]] = {
        ID: ((spark_types.StringType,), "a string, as it was in df"),
        TO: ((spark_types.StringType,), "a string, the name of a queue"),
        DELAY: (NUMBER, "a number of seconds"),
        PRIORITY: (WHOLE, "a whole number: 0, 1 or 2"),
        HEADERS: ((spark_types.MapType,), "a map of strings"),
        ERROR: ((spark_types.StringType,), "a string, the error of the row, or null"),
    }
    for name, (kinds, should) in wanted.items():
        kind = columns.get(name)
        if kind is None or isinstance(kind, (*kinds, spark_types.NullType)):
            continue
        raise StationError(f"{who_has} column {name!r} of type {kind.simpleString()}: make it {should}")


def payload_text(
    columns: dict[str, spark_types.DataType], shape: PayloadShape, station: str
) -> tuple[Column, bool]:
    """(a column with the JSON of the payload's columns, whether it is the user's own text). A null payload is the JSON
    null. Raises StationError for a column whose values JSON would change."""
    for name, kind in columns.items():
        try:
            _FORMS.check(kind)
        except ValueError as error:
            raise StationError(f"station {station!r} returned column {name!r}: {error}") from None
    if list(columns) == [PAYLOAD] and shape.columns is None:
        if isinstance(columns[PAYLOAD], spark_types.StringType):
            return F.coalesce(F.col(PAYLOAD), F.lit("null")), True
        if isinstance(columns[PAYLOAD], spark_types.VariantType):
            return F.coalesce(F.to_json(F.col(PAYLOAD)), F.lit("null")), False
    return F.to_json(F.struct(*[F.col(quoted(name)) for name in columns]), _JSON), False


def _steering(name: str) -> Column:
    if name == HEADERS:
        return F.to_json(F.col(name).cast(_HEADERS_TYPE)).alias(name)
    return F.col(name).cast({TO: "string", DELAY: "double", PRIORITY: "bigint", ERROR: "string"}[name]).alias(name)
