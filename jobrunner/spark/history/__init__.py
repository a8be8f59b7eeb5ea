"""History on Spark: the archive in Parquet, and replays from it."""
