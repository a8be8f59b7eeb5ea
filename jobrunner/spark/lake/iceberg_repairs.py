"""Workarounds for three faults of `pyiceberg`: it loses nulls and partitions, and misses a file to delete."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io import pyarrow as library
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import ListType, MapType


class _WithNulls(library.ArrowProjectionVisitor):
    """Restores nulls that `pyiceberg` loses: it turns a null list of structs, or null map to structs, into an empty one
    when it reads or writes, also in rows that a merge or a compaction only copies.

    pyiceberg rebuilds such an array from offsets and values, without the null mask. Its readers and writers look the
    visitor up by name in their module and take no other visitor as an argument, so `keep_nulls` replaces that name.
    """

    def list(self, list_type: ListType, list_array: Any, value_array: Any) -> Any:
        made = super().list(list_type, list_array, value_array)
        if made is None or made.null_count == list_array.null_count:
            return made
        return type(made).from_arrays(_unsliced(made), made.values, type=made.type, mask=list_array.is_null())

    def map(self, map_type: MapType, map_array: Any, key_result: Any, value_result: Any) -> Any:
        made = super().map(map_type, map_array, key_result, value_result)
        if made is None or made.null_count == map_array.null_count:
            return made
        mask = map_array.is_null()
        return pa.MapArray.from_arrays(_unsliced(made), made.keys, made.items, type=made.type, mask=mask)


def _unsliced(made: Any) -> Any:
    """The offsets in a separate buffer: Arrow accepts no mask for a slice of a buffer."""
    return pc.add(made.offsets, pa.scalar(0, made.offsets.type))


def keep_nulls() -> None:
    """Makes pyiceberg keep nulls, for the rest of this process."""
    library.ArrowProjectionVisitor = _WithNulls  # type: ignore[misc]


_data_file = library.parquet_file_to_data_file


def _with_partition(io: FileIO, table_metadata: TableMetadata, file_path: str) -> DataFile:
    """A data file for a commit, with its partition.

    pyiceberg takes the partition from the bounds of the column, and has none of a column with a dot in its name, or of
    one whose bounds the table's properties (`write.metadata.metrics…`) leave out. The file was then one of null, in
    which neither readers nor merges look for another value.
    """
    made = _data_file(io, table_metadata, file_path)
    spec, schema = table_metadata.spec(), table_metadata.schema()
    for place, field in enumerate(spec.fields):
        if made.partition[place] is not None:
            continue
        name = str(schema.find_column_name(field.source_id))
        with io.new_input(file_path).open() as stream:
            first = next(pq.ParquetFile(stream).iter_batches(batch_size=1, columns=[name]))
        value = PartitionFieldValue(field, first.column(name)[0].as_py())
        made.partition[place] = PartitionKey([value], spec, schema).partition[0]
    return made


def keep_partitions() -> None:
    """Makes pyiceberg add data files under their partitions, for the rest of this process."""
    library.parquet_file_to_data_file = _with_partition


def overwrite(transaction: Transaction, about: Mapping[str, str]) -> Any:
    """A snapshot that adds and deletes data files, as a context manager that commits. `about`: its properties.

    pyiceberg 0.12 evaluates all manifests with one evaluator in several threads, and the evaluator stores the manifest:
    it skipped the manifest of a file to delete, and the change failed as if the file was missing. Here each evaluation
    has its own evaluator. pyiceberg before 0.12 has no evaluator.
    """
    change = transaction.update_snapshot(dict(about)).overwrite()
    build = getattr(change, "_build_manifest_evaluator", None)
    if build is not None:
        vars(change)["_build_manifest_evaluator"] = lambda spec_id: lambda manifest: build(spec_id)(manifest)
    return change
