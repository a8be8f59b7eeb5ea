"""Tables of a lakehouse (Delta Lake, Apache Iceberg) as sinks: each batch is in a table once. docs/lakehouse.md."""
