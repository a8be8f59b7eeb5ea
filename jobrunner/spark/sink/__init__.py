"""Writing DataFrames into a queue."""
