"""Lists the files of an Iceberg table: the live files of the loaded version, and all files that a retained version
names."""

from collections.abc import Iterator
from typing import Any

from pyiceberg.expressions import AlwaysTrue, EqualTo
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from jobrunner.errors import TableError
from jobrunner.etl.table_sink import TableAddress
from jobrunner.spark.lake.tables import LiveFile


def live_files(table: Table, address: TableAddress, column: str, value: str) -> list[LiveFile]:
    """As `LakeTable.live_files`."""
    names: dict[int, str] = {}
    for schema in table.schemas().values():
        for one in schema.fields:
            if names.setdefault(one.field_id, one.name) != one.name:
                raise TableError(f"column {one.name!r} of table {address} had another name before, which "
                                 "older files still have: read it with Spark's Iceberg connector")  # fmt: skip
    found = []
    wanted: Any = EqualTo
    for task in table.scan(row_filter=wanted(column, value) if column else AlwaysTrue()).plan_files():
        if task.delete_files:
            raise TableError(f"rows of table {address} are deleted in files of their own (merge on read): "
                             "rewrite its data files, or read it with Spark's Iceberg connector")  # fmt: skip
        found.append(LiveFile(path=task.file.file_path, partition=_partition_of(table, task.file)))
    return found


def _partition_of(table: Table, file: DataFile) -> dict[str, str | None]:
    schema, spec = table.schema(), table.specs()[file.spec_id]
    kinds = [one.field_type for one in spec.partition_type(schema).fields]
    return {
        str(schema.find_column_name(one.source_id)): None
        if file.partition[at] is None
        else one.transform.to_human_string(kinds[at], file.partition[at])
        for at, one in enumerate(spec.fields)
        if str(one.transform) == "identity"
    }


def named_files(table: Table) -> Iterator[str]:
    """Locations of all files that a retained snapshot, or the log of the metadata, names."""
    yield table.metadata_location
    yield from (one.metadata_file for one in table.metadata.metadata_log)
    seen: set[str] = set()
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                yield from (one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io))
    statistics = [*table.metadata.statistics, *table.metadata.partition_statistics]
    yield from (one.statistics_path for one in statistics)


def unquoted(location: str) -> str:
    """The path of a location without its scheme. A `%` in it is literal, as the library has quoted partition values
    already: nothing is decoded."""
    return f"/{location.removeprefix('file:').lstrip('/')}" if location.startswith("file:") else location
