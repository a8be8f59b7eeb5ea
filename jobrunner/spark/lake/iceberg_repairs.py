"""Two faults of `pyiceberg`, mended here: it loses nulls, and overlooks a file to delete."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import pyarrow as library
from pyiceberg.table import Transaction
from pyiceberg.types import ListType, MapType


class _WithNulls(library.ArrowProjectionVisitor):
    """Restores nulls that `pyiceberg` loses: each null list of structs, and null map to structs, that it reads or
    writes is an empty one behind it, also in rows that a merge or a compaction only copies.

    It builds such an array anew from offsets and values alone. Reading and writing come to it by a name of its module,
    and have no argument for another one, so the name is given to this class.
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
    """The offsets in a buffer of their own: Arrow takes no mask for a part of one."""
    return pc.add(made.offsets, pa.scalar(0, made.offsets.type))


def keep_nulls() -> None:
    """From now on in this process."""
    library.ArrowProjectionVisitor = _WithNulls  # type: ignore[misc]


def overwrite(transaction: Transaction, about: Mapping[str, str]) -> Any:
    """A snapshot that adds and deletes data files, as a context manager that commits; `about` is noted in it.

    pyiceberg 0.12 asks one evaluator about all manifests, in several threads, and the evaluator keeps what it was last
    asked about: it passed over the manifest of a file to delete, and the change failed as if the file was missing.
    Here each question has an evaluator of its own. Before 0.12 there is none.
    """
    change = transaction.update_snapshot(dict(about)).overwrite()
    build = getattr(change, "_build_manifest_evaluator", None)
    if build is not None:
        vars(change)["_build_manifest_evaluator"] = lambda spec_id: lambda manifest: build(spec_id)(manifest)
    return change
