"""Snapshots of an Iceberg table that add and delete data files."""

from collections.abc import Mapping
from typing import Any

from pyiceberg.table import Transaction


def overwrite(transaction: Transaction, about: Mapping[str, str]) -> Any:
    """The change, a context manager that commits; `about` is noted in its snapshot.

    pyiceberg 0.12 asks one evaluator about all manifests, in several threads, and the evaluator keeps what it was last
    asked about: it passed over the manifest of a file to delete, and the change failed as if the file was missing.
    Here each question has an evaluator of its own. Before 0.12 there is none.
    """
    change = transaction.update_snapshot(dict(about)).overwrite()
    build = getattr(change, "_build_manifest_evaluator", None)
    if build is not None:
        vars(change)["_build_manifest_evaluator"] = lambda spec_id: lambda manifest: build(spec_id)(manifest)
    return change
