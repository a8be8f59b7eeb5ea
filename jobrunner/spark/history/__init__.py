"""History on Spark: the archive in Parquet, reports on it, and replays from it."""
