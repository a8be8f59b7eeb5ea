"""Errors of single rows: the row's item is dead with the error, and the batch goes on.

A column may carry, next to its value, the error of its row: a struct with the fields `_value` and `_error`. Functions
that `guarded` makes and `checked` return such columns. `fold_errors` replaces such a column by its values, and puts the
first error of a row into the column `_error`; stations fold the remaining columns at their end.
"""

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql import types as spark_types

from jobrunner.errors import InvalidOption, StationError
from jobrunner.spark.columns import quoted
from jobrunner.spark.exact_values import Check, exact, exact_series
from jobrunner.spark.running import conf_of, running_session, text_of

ID, ERROR = "_id", "_error"
_VALUE = "_value"
_LONGEST = 1000
CAUSED_BY_CODE = (ImportError, MemoryError, NameError)
"""Errors of the code, which no row causes: they fail the batch, as otherwise a missing module would kill every item."""


def guarded(
    returns: str | spark_types.DataType, *, pandas: bool = False
) -> Callable[[Callable[..., Any]], "GuardedFunction"]:
    """Makes a Python function usable on columns. An exception becomes the error of its row, instead of failing the
    batch.

    `returns`: the type of its value, as DDL or a DataType; a value of another type, or one that the type cannot hold,
    is an error of its row, too. With `pandas` the function takes and returns Series, and DataFrames of structs; where
    it raises for a whole Series, it is called row by row. ImportError and NameError fail the batch all the same. Needs
    no session where it is declared.
    """
    if not isinstance(returns, (str, spark_types.DataType)):
        raise InvalidOption(f"guarded({returns!r}): name the type that the function returns, as in @guarded('int')")
    return lambda function: GuardedFunction(function, returns, pandas)


class GuardedFunction:
    """A function that `guarded` made. Called with columns or their names it returns a column with values and errors;
    `__wrapped__` is the function itself."""

    def __init__(self, function: Callable[..., Any], returns: str | spark_types.DataType, pandas: bool) -> None:
        self._function = function
        self._returns = returns
        self._pandas = pandas
        update_wrapper(self, function)

    def __call__(self, *columns: Column | str) -> Column:
        """The result column of the function on these columns, in the session that is active now."""
        returns = self._returns
        if isinstance(returns, str):
            returns = _type_of(returns)
        functions: Any = F  # its stubs lack pandas_udf
        result = spark_types.StructType().add(_VALUE, returns).add(ERROR, spark_types.StringType())
        if self._pandas:
            made = functions.pandas_udf(_on_series(self._function, returns, _zone()), result)
        else:
            made = functions.udf(_on_values(self._function, exact(returns)), result)
        column: Column = made(*columns)
        return column


def checked(value: Column, *inputs: Column | str, error: str | None = None) -> Column:
    """`value`, with an error in each row where it is null though none of the `inputs` is, as `F.try_to_date` and other
    `try_` functions return null. `error` replaces the text, which names inputs and their values."""
    if not inputs:
        raise InvalidOption("checked(value) has no inputs: name the columns that the value is made of")
    columns = [F.col(one) if isinstance(one, str) else one for one in inputs]
    is_failed = value.isNull()
    for column in columns:
        is_failed = is_failed & column.isNotNull()
    if error is None:
        pairs = zip(inputs, columns, strict=True)
        parts = [F.concat(F.lit(f"{_name(one)}="), column.cast("string")) for one, column in pairs]
        text = F.concat(F.lit("ValueError: no value of "), F.concat_ws(", ", *parts))
    else:
        text = F.lit(error)
    return F.struct(value.alias(_VALUE), F.when(is_failed, text).alias(ERROR))


def fold_errors(df: DataFrame) -> DataFrame:
    """Replaces each column that carries errors by its plain value, and puts the first error of a row into the column
    `_error`. An `_error` that the frame has already counts first."""
    carrying = [one.name for one in df.schema.fields if _carries_errors(one.dataType)]
    if not carrying:
        return df
    errors = [F.col(ERROR)] if ERROR in df.columns else []
    errors += [F.col(quoted(name, ERROR)) for name in carrying]
    kept = [
        F.col(quoted(name, _VALUE)).alias(name) if name in carrying else F.col(quoted(name))
        for name in df.columns
        if name != ERROR
    ]
    return df.select(*kept, F.coalesce(*errors).alias(ERROR))


def without_errors(df: DataFrame) -> DataFrame:
    """Returns `df` for a sink that cannot set rows aside. Raises StationError if a row can have an error."""
    folded = fold_errors(df)
    if ERROR in folded.columns:
        raise StationError("rows with errors need the batch of a sink that runs: remove the column _error before")
    return folded


def _carries_errors(kind: spark_types.DataType) -> bool:
    return isinstance(kind, spark_types.StructType) and kind.fieldNames() == [_VALUE, ERROR]


def _name(column: Column | str) -> str:
    return column if isinstance(column, str) else "its input"


def _zone() -> str:
    """The session's time zone, for points in time without a zone in a Series."""
    session = running_session()
    return (conf_of(session, "spark.sql.session.timeZone") if session is not None else None) or "UTC"


def _type_of(ddl: str) -> spark_types.DataType:
    fields: Any = spark_types.StructType.fromDDL(f"{_VALUE} {ddl}")
    found: spark_types.DataType = fields[_VALUE].dataType
    return found


def _on_values(function: Callable[..., Any], check: Check) -> Callable[..., Any]:
    def run(*values: Any) -> tuple[Any, str | None]:
        try:
            return check(function(*values)), None
        except CAUSED_BY_CODE:
            raise
        except Exception as error:
            return None, one_line(error)

    return run


def _on_series(function: Callable[..., Any], returns: spark_types.DataType, zone: str) -> Callable[..., Any]:
    import pandas as pd

    check = exact(returns, zone)
    each, by_row = _on_values(lambda value: value, check), _on_values(partial(_first_of, function, returns), check)

    def run(*columns: Any) -> Any:
        try:
            found = _values_of(function(*columns), returns)
            is_series = isinstance(found, pd.Series)
            series = found.reset_index(drop=True) if is_series else pd.Series(list(found), dtype=object)
        except CAUSED_BY_CODE:
            raise
        except Exception:  # only a call for each row can find the row at fault
            series = None
        if series is None or len(series) != len(columns[0]):
            rows = [by_row(*[_single(column, number) for column in columns]) for number in range(len(columns[0]))]
        elif (whole := exact_series(series, returns, zone)) is not None:
            return pd.DataFrame({_VALUE: whole, ERROR: None})
        else:
            rows = [each(value) for value in series]
        values, errors = zip(*rows, strict=True) if rows else ((), ())
        return pd.DataFrame({_VALUE: pd.Series(values, dtype=object), ERROR: pd.Series(errors, dtype=object)})

    run.__annotations__ = {"columns": pd.Series, "return": pd.DataFrame}
    return run


def _single(column: Any, number: int) -> Any:
    """One row as a Series or DataFrame that the function may change: Arrow's data may be read-only."""
    row = column.iloc[number : number + 1].copy()
    row.index = range(1)  # `reset_index` takes twice the time
    return row


def _values_of(found: Any, returns: spark_types.DataType) -> Any:
    """The values that a function returned; a DataFrame has the values of a struct."""
    import pandas as pd

    if not isinstance(found, pd.DataFrame):
        return found
    named = found[returns.fieldNames()] if isinstance(returns, spark_types.StructType) else found
    return named.to_dict("records")


def _first_of(function: Callable[..., Any], returns: spark_types.DataType, *columns: Any) -> Any:
    found = list(_values_of(function(*columns), returns))
    if len(found) != 1:
        raise ValueError(f"the function returned {len(found)} values for one row")
    return found[0]


def one_line(error: BaseException) -> str:
    """Class and text of an error, at most 1 000 characters in one line. Never raises."""
    return f"{type(error).__name__}: {' '.join(text_of(error).split()) or 'no reason given'}"[:_LONGEST]
