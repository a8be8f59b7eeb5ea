"""Items as rows: columns, payloads, and scans of a queue in chunks."""
