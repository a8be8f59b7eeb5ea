"""Tables of a lakehouse (Delta Lake, Apache Iceberg) as sinks: each batch is committed to a table once. See
docs/lakehouse.md."""
