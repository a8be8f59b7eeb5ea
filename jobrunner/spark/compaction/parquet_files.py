"""Merges many Parquet files into one file with the same rows, types and schema. Needs Arrow, but no Spark and no
JVM."""

import errno
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_ROWS_AT_ONCE = 64_000
_ROWS_OF_A_GROUP = 1_000_000
_INT96 = "INT96"
_UPDATE = "pip install 'pyarrow>=22', and run this again"
_OF_READING = (None, errno.EACCES, errno.EPERM)
"""`errno` of read errors; Arrow sets none for damaged content. Other numbers come from the writer."""


_VARIANT = re.compile(r"Logical type \w+ cannot be applied to group node")
"""The error of pyarrow before 22 for a column of variants, a type that it does not know."""


class UnreadableFile(Exception):
    """A file that cannot be read: damaged, without read permission, or of a type that this pyarrow does not know. Has
    the path; the text is the reason."""

    def __init__(self, path: Path, reason: BaseException) -> None:
        line = str(reason).splitlines()[0] if str(reason) else type(reason).__name__
        words = f"cannot be read ({line})"
        if _VARIANT.search(line):
            words = f"has a column of variants, which pyarrow {pa.__version__} is too old to read; {_UPDATE}"
        super().__init__(words)
        self.path = path


def merge_files(sources: Sequence[Path], folder: Path, name: str, tell: Callable[[int], None]) -> int:
    """Writes the rows of `sources`, in this order, to files in `folder`: one for each schema that they have. A file
    whose types a merge would change is linked unchanged. Returns how many files were written; `tell` is called with the
    size of each merged source. Raises UnreadableFile, FileNotFoundError."""
    by_schema: dict[Any, list[Path]] = {}
    for source in sources:
        by_schema.setdefault(_schema_of(source), []).append(source)
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for number, alike in enumerate(by_schema.values()):
        target = folder / f"part-{number:05d}-{name}.parquet"
        if len(alike) > 1 and _merge_alike(alike, target, tell):
            written += 1
            continue
        target.unlink(missing_ok=True)
        for at, source in enumerate(alike):
            _link(source, folder / f"part-{number:05d}-{at:05d}-{name}.parquet")
            tell(source.stat().st_size)
        written += len(alike)
    return written


def unreadable_files(sources: Iterable[Path]) -> list[UnreadableFile]:
    """The errors of those files whose footer cannot be read. Passes over files that are gone."""
    found = []
    for source in sources:
        with suppress(FileNotFoundError):
            try:
                _schema_of(source)
            except UnreadableFile as error:
                found.append(error)
    return found


@contextmanager
def _naming(source: Path, kinds: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Raises UnreadableFile for errors of reading this file; those of a missing file and a full disk pass unchanged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except kinds as error:
        if getattr(error, "errno", None) not in _OF_READING:
            raise
        raise UnreadableFile(source, error) from error


def _schema_of(path: Path) -> tuple[str, bytes | None]:
    """Physical and logical types, and Spark's own description of them. Raises UnreadableFile, FileNotFoundError."""
    with _naming(path, (OSError, pa.ArrowException)), pq.ParquetFile(path) as file:
        return _types_of(file), (file.metadata.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata")


def _types_of(file: Any) -> str:
    columns = (file.schema.column(at) for at in range(len(file.schema)))
    return repr([
        (one.path, one.physical_type, str(one.logical_type), one.max_definition_level, one.max_repetition_level)
        for one in columns
    ])  # fmt: skip


def _merge_alike(sources: Sequence[Path], target: Path, tell: Callable[[int], None]) -> bool:
    """Returns False when the merged file would have other types, or other rows, than its sources."""
    with pq.ParquetFile(sources[0], coerce_int96_timestamp_unit="us") as first:
        types, schema = _types_of(first), first.schema_arrow.remove_metadata()
        kept = {key: value for key, value in (first.metadata.metadata or {}).items() if key != b"ARROW:schema"}
        options = _options_of(first) | {"write_statistics": _with_bounds(first, sources)}
    rows = 0
    try:
        with pq.ParquetWriter(target, schema, store_schema=False, **options) as writer:
            for source in sources:
                with _naming(source):
                    rows += _copy(source, schema, writer)
                tell(source.stat().st_size)
            writer.add_key_value_metadata(kept)  # Spark's own description of the types is among the metadata
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    with pq.ParquetFile(target) as merged:
        return _types_of(merged) == types and merged.metadata.num_rows == rows


def _options_of(file: Any) -> dict[str, Any]:
    """Options of a writer that keep the physical types of this file."""
    physical = [file.schema.column(at).physical_type for at in range(len(file.schema))]
    groups = file.metadata
    codec = groups.row_group(0).column(0).compression.lower() if groups.num_row_groups and physical else "snappy"
    return {
        "use_deprecated_int96_timestamps": _INT96 in physical,
        "store_decimal_as_integer": any(
            str(file.schema.column(at).logical_type).startswith("Decimal") and one in ("INT32", "INT64")
            for at, one in enumerate(physical)
        ),
        "compression": "none" if codec == "uncompressed" else codec,
        "version": "2.6",
    }


def _with_bounds(first: Any, sources: Sequence[Path]) -> bool | list[str]:
    """Paths of the columns that get bounds, or True for all columns. Columns of floats that may have NaN get none:
    Arrow ignores NaN in bounds, so Spark, which ranks NaN above all numbers, would skip its rows. A file with NaN has
    no bounds, or NaN as a bound."""
    columns = [first.schema.column(at) for at in range(len(first.schema))]
    floats = [at for at, one in enumerate(columns) if one.physical_type in ("FLOAT", "DOUBLE")]
    odd: set[int] = set()
    for source in sources if floats else ():
        with _naming(source), pq.ParquetFile(source) as file:
            groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
        odd |= {at for at in floats if any(_may_have_nan(group.column(at)) for group in groups)}
    return [one.path for at, one in enumerate(columns) if at not in odd] if odd else True


def _may_have_nan(column: Any) -> bool:
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return statistics is None or statistics.num_values > 0
    return math.isnan(statistics.min) or math.isnan(statistics.max)


def _copy(source: Path, schema: Any, writer: Any) -> int:
    rows, held = 0, []
    with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        for batch in file.iter_batches(_ROWS_AT_ONCE, use_threads=False):
            held.append(batch.cast(schema) if batch.schema != schema else batch)
            rows += len(batch)
            if sum(map(len, held)) >= _ROWS_OF_A_GROUP:
                _write(held, schema, writer)
    _write(held, schema, writer)
    if rows != file.metadata.num_rows:
        raise pa.ArrowInvalid(f"{source} has {file.metadata.num_rows} rows and gave {rows}")
    return rows


def _write(held: list[Any], schema: Any, writer: Any) -> None:
    if held:
        writer.write_table(pa.Table.from_batches(held, schema), row_group_size=_ROWS_OF_A_GROUP)
        held.clear()


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a mounted file system may have no links
        shutil.copy2(source, target)
